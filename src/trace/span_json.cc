#include "trace/span_json.h"

#include <map>

#include "base/json.h"

namespace tandem::trace {
namespace {

void write_attribute(JsonWriter& json, std::string_view key, std::string_view value) {
  json.begin_object().key("key").string(key).key("value").begin_object().key("stringValue").string(value);
  json.end_object().end_object();
}

void write_otlp_span(JsonWriter& json, const Span& span) {
  constexpr int64_t kServer = 2, kInternal = 1;
  json.begin_object().key("traceId").string(trace_id_hex(span.context));
  json.key("spanId").string(span_id_hex(span.context.span));
  if (span.context.parent != 0) json.key("parentSpanId").string(span_id_hex(span.context.parent));
  json.key("name").string(span.name).key("kind").integer(span.name == "request" ? kServer : kInternal);
  json.key("startTimeUnixNano").string(std::to_string(span.begin_unix_ns));
  json.key("endTimeUnixNano").string(std::to_string(span.begin_unix_ns + span.duration_ns));
  json.key("attributes").begin_array();
  for (const auto& [key, value] : span.attributes) write_attribute(json, "tandem." + key, value);
  json.end_array().end_object();
}

// By name; in order within one.
std::map<std::string, std::vector<const Span*>> by_process(std::span<const Span> spans) {
  std::map<std::string, std::vector<const Span*>> processes;
  for (const Span& span : spans) processes[span.process].push_back(&span);
  return processes;
}

void write_name(JsonWriter& json, const char* kind, uint64_t process, uint64_t lane, std::string_view name) {
  json.begin_object().key("ph").string("M").key("name").string(kind).key("pid").unsigned_integer(process);
  json.key("tid").unsigned_integer(lane).key("args").begin_object().key("name").string(name).end_object().end_object();
}

}  // namespace

std::string chrome_json(std::span<const Span> spans) {
  JsonWriter json;
  json.begin_object().key("displayTimeUnit").string("ms").key("traceEvents").begin_array();
  uint64_t number = 0;
  for (const auto& [process, own] : by_process(spans)) {
    ++number;
    write_name(json, "process_name", number, 0, process);
    std::map<uint64_t, bool> lanes;
    for (const Span* span : own) {
      if (lanes.emplace(span->lane, true).second) {
        write_name(json, "thread_name", number, span->lane, "request " + std::to_string(span->lane));
      }
      json.begin_object().key("ph").string("X").key("name").string(span->name).key("cat").string("request");
      json.key("pid").unsigned_integer(number).key("tid").unsigned_integer(span->lane);
      json.key("ts").number(static_cast<double>(span->begin_unix_ns) * 1e-3);
      json.key("dur").number(static_cast<double>(span->duration_ns) * 1e-3);
      json.key("args").begin_object().key("trace").string(trace_id_hex(span->context));
      for (const auto& [key, value] : span->attributes) json.key(key).string(value);
      json.end_object().end_object();
    }
  }
  return json.end_array().end_object().take();
}

std::string otlp_json(std::span<const Span> spans) {
  JsonWriter json;
  json.begin_object().key("resourceSpans").begin_array();
  for (const auto& [process, own] : by_process(spans)) {
    json.begin_object().key("resource").begin_object().key("attributes").begin_array();
    write_attribute(json, "service.name", "tandem");
    write_attribute(json, "service.instance.id", process);
    json.end_array().end_object().key("scopeSpans").begin_array().begin_object();
    json.key("scope").begin_object().key("name").string("tandem").end_object().key("spans").begin_array();
    for (const Span* span : own) write_otlp_span(json, *span);
    json.end_array().end_object().end_array().end_object();
  }
  return json.end_array().end_object().take();
}

}  // namespace tandem::trace
