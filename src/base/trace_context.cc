#include "base/trace_context.h"

#include <charconv>
#include <random>

namespace tandem {
namespace {

constexpr size_t kHeaderBytes = 55;  // of version 00: 2 + 1 + 32 + 1 + 16 + 1 + 2

// Lower-case hex digits only, as many as there are bytes: from_chars would take capitals too.
bool take_hex(std::string_view text, uint64_t& value) {
  for (const char c : text) {
    if ((c < '0' || c > '9') && (c < 'a' || c > 'f')) return false;
  }
  return std::from_chars(text.data(), text.data() + text.size(), value, 16).ec == std::errc();
}

std::string hex(uint64_t value, size_t num_digits) {
  std::string text(num_digits, '0');
  for (size_t i = num_digits; i > 0; value >>= 4) text[--i] = "0123456789abcdef"[value & 15];
  return text;
}

uint64_t draw() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return random();
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  if (header.size() < kHeaderBytes) return std::nullopt;
  uint64_t version = 0, flags = 0;
  TraceContext context;
  const bool is_read = take_hex(header.substr(0, 2), version) && take_hex(header.substr(3, 16), context.trace_high) &&
                       take_hex(header.substr(19, 16), context.trace_low) &&
                       take_hex(header.substr(36, 16), context.span) && take_hex(header.substr(53, 2), flags);
  if (!is_read || header[2] != '-' || header[35] != '-' || header[52] != '-' || version == 0xff) return std::nullopt;
  // A later version may have more fields.
  const bool has_more = header.size() > kHeaderBytes;
  if (has_more && (version == 0 || header[kHeaderBytes] != '-')) return std::nullopt;
  if (!context.is_set() || context.span == 0) return std::nullopt;
  context.is_sampled = (flags & 1) != 0;
  return context;
}

std::string traceparent_of(const TraceContext& context) {
  if (!context.is_set()) return {};
  return "00-" + trace_id_hex(context) + "-" + span_id_hex(context.span) + (context.is_sampled ? "-01" : "-00");
}

uint64_t new_span_id() {
  const uint64_t id = draw();
  return id == 0 ? 1 : id;
}

TraceContext new_trace() { return {draw(), new_span_id(), new_span_id(), 0, true}; }

TraceContext child_of(const TraceContext& asked_by) {
  TraceContext child = asked_by;
  child.parent = asked_by.span;
  child.span = new_span_id();
  return child;
}

std::string trace_id_hex(const TraceContext& context) {
  return context.is_set() ? hex(context.trace_high, 16) + hex(context.trace_low, 16) : std::string();
}

std::string span_id_hex(uint64_t span) { return hex(span, 16); }

}  // namespace tandem
