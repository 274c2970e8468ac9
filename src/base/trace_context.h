#pragma once
// TraceContext: which trace a request belongs to, as the header `traceparent` says it.
// Source: W3C Trace Context, level 2, section 3 (https://www.w3.org/TR/trace-context-2/).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

struct TraceContext {
  uint64_t trace_high = 0, trace_low = 0;  // both 0: there is no trace
  uint64_t span = 0;                       // whoever holds this context
  uint64_t parent = 0;                     // the span that asked; 0: nobody
  bool is_sampled = true;

  bool is_set() const { return trace_high != 0 || trace_low != 0; }
  bool operator==(const TraceContext&) const = default;
};

// Nothing: not a header that the specification lets in, to be ignored. `span` is the sender's.
std::optional<TraceContext> parse_traceparent(std::string_view header);
// "00-<trace>-<span>-<flags>"; empty without a trace.
std::string traceparent_of(const TraceContext& context);

// Of random numbers. Any thread.
TraceContext new_trace();
uint64_t new_span_id();
// A span of our own under `asked_by`.
TraceContext child_of(const TraceContext& asked_by);

std::string trace_id_hex(const TraceContext& context);  // 32 digits; empty without a trace
std::string span_id_hex(uint64_t span);                 // 16 digits

}  // namespace tandem
