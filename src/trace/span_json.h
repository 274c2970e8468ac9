#pragma once
// Spans as text that others' programs read.

#include <span>
#include <string>

#include "trace/span.h"

namespace tandem::trace {

// A page for Perfetto and chrome://tracing: a process per Span::process, a lane per request. Source: "Trace Event
// Format", JSON object form, complete events ("X"), times in microseconds.
std::string chrome_json(std::span<const Span> spans);

// The body of POST /v1/traces. Source: OTLP 1.x, JSON encoding of ExportTraceServiceRequest: ids in hex, 64-bit numbers
// as strings. A resource per Span::process, service.name "tandem".
std::string otlp_json(std::span<const Span> spans);

}  // namespace tandem::trace
