// Anthropic's Messages API: what goes into the prompt, whole answers, events, errors.

#include <doctest/doctest.h>

#include "api/openai/api_server_for_test.h"
#include "base/utf8.h"

namespace tandem::openai {
namespace {

constexpr std::string_view kShowsCalls =
    "{% for t in tools or [] %}[{{ t.function.name }}:{{ t.function.parameters.type }}]{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments.city }}){% endfor %}"
    "{% if m.tool_call_id is defined %}({{ m.tool_call_id }} {{ m.name }}){% endif %}<|im_end|>\n{% endfor %}";

constexpr std::string_view kTools = R"("tools":[{"name":"get_weather","description":"d","input_schema":{"type":"object",
    "properties":{"city":{"type":"string"}}}},{"name":"now","input_schema":{"type":"object"}}])";

std::string body_of(const std::string& more = {}) {
  return R"({"model":"tiny","max_tokens":150,"messages":[{"role":"user","content":"hi"}])" + more + "}";
}

struct MessagesServer : ApiServer {
  explicit MessagesServer(const std::string& says, ApiConfig config = default_config())
      : ApiServer(says, with_calls(std::move(config)), true, 700, true) {}
  static ApiConfig with_calls(ApiConfig config) {
    config.tool_call_format = text::ToolCallFormat::kMistral;
    return config;
  }
  std::string prompt() const { return model.tokenizer.decode(generator->seen().back().prompt, false); }
};

struct Event {
  std::string name;
  JsonValue data;
};

// The events of a stream; each one's name is its data's type.
std::vector<Event> named_events(std::string_view body) {
  std::vector<Event> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    REQUIRE(end != std::string_view::npos);
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    REQUIRE(event.starts_with("event: "));
    const size_t line_end = event.find('\n');
    REQUIRE(event.substr(line_end + 1).starts_with("data: "));
    events.push_back({std::string(event.substr(7, line_end - 7)), json_of(event.substr(line_end + 7))});
    CHECK(text_at(events.back().data, "type") == events.back().name);
  }
  return events;
}

std::string names_of(const std::vector<Event>& events) {
  std::string names;
  for (const Event& event : events) {
    if (names.empty() || !names.ends_with(" " + event.name)) names += " " + event.name;
  }
  return names;
}

// The content that a stream's events add up to, as JSON; inputs as the text they came in.
std::string streamed_content(const std::vector<Event>& events) {
  std::string out;
  int64_t index = -1;
  for (const Event& event : events) {
    if (event.name == "content_block_start") {
      CHECK(int_at(event.data, "index") == ++index);
      const JsonValue& block = at(event.data, "content_block");
      out += text_at(block, "type") == "text" ? "|text:" : "|" + text_at(block, "name") + ":";
      if (text_at(block, "type") == "tool_use") CHECK(json_at(block, "input") == "{}");
    } else if (event.name == "content_block_delta") {
      CHECK(int_at(event.data, "index") == index);
      const bool is_text = text_at(event.data, "delta.type") == "text_delta";
      out += text_at(event.data, is_text ? "delta.text" : "delta.partial_json");
    }
  }
  return out;
}

TEST_CASE("messages: a whole answer with its stop reasons and usage") {
  MessagesServer server("Hello there");
  const JsonValue answer = server.ok("/v1/messages", body_of());
  CHECK(text_at(answer, "type") == "message");
  CHECK(text_at(answer, "role") == "assistant");
  CHECK(text_at(answer, "model") == "tiny");
  CHECK(text_at(answer, "id").starts_with("msg_"));
  CHECK(json_at(answer, "content") == R"([{"type":"text","text":"Hello there"}])");
  CHECK(text_at(answer, "stop_reason") == "end_turn");
  CHECK(answer.find("stop_sequence")->is_null());
  CHECK(int_at(answer, "usage.output_tokens") == 12);
  CHECK(int_at(answer, "usage.input_tokens") == static_cast<int64_t>(server.generator->seen()[0].prompt.size()));
  const JsonValue cut = server.ok("/v1/messages", R"({"max_tokens":3,"messages":[{"role":"user","content":"hi"}]})");
  CHECK(text_at(cut, "stop_reason") == "max_tokens");
  CHECK(text_at(cut, "content.0.text") == "Hel");
  const JsonValue stopped = server.ok("/v1/messages", body_of(R"(,"stop_sequences":["zz"," the"])"));
  CHECK(text_at(stopped, "stop_reason") == "stop_sequence");
  CHECK(text_at(stopped, "stop_sequence") == " the");
  CHECK(text_at(stopped, "content.0.text") == "Hello");
}

TEST_CASE("messages: the events of a text, in order, add up to the whole answer") {
  MessagesServer server(
      "a\xF0\x9F\x98\x80"
      "b");
  const auto answer = server.post("/v1/messages", body_of(R"(,"stream":true)"), "anthropic-version: 2023-06-01\r\n");
  CHECK(answer.status == 200);
  CHECK(answer.header("Content-Type") == "text/event-stream");
  CHECK(is_valid_utf8(answer.body));
  const auto events = named_events(answer.body);
  CHECK(names_of(events) ==
        " message_start content_block_start content_block_delta content_block_stop message_delta message_stop");
  CHECK(streamed_content(events) ==
        "|text:a\xF0\x9F\x98\x80"
        "b");
  CHECK(json_at(events[0].data, "message.content") == "[]");
  CHECK(at(events[0].data, "message").find("stop_reason")->is_null());
  const JsonValue& delta = events[events.size() - 2].data;
  CHECK(json_at(delta, "delta") == R"({"stop_reason":"end_turn","stop_sequence":null})");
  CHECK(int_at(delta, "usage.output_tokens") == 7);
}

TEST_CASE("messages: tool use blocks, whole and streamed alike") {
  MessagesServer server("Let me see. [TOOL_CALLS]get_weather[ARGS]{\"city\": \"\xC3\x85s\"}[TOOL_CALLS]now[ARGS]{}");
  const JsonValue answer = server.ok("/v1/messages", body_of("," + std::string(kTools)));
  CHECK(text_at(answer, "stop_reason") == "tool_use");
  const auto* content = at(answer, "content").if_array();
  REQUIRE(content);
  REQUIRE(content->size() == 3);
  CHECK(text_at((*content)[0], "text") == "Let me see. ");
  CHECK(text_at((*content)[1], "type") == "tool_use");
  CHECK(text_at((*content)[1], "name") == "get_weather");
  CHECK(text_at((*content)[1], "input.city") == "\xC3\x85s");
  CHECK(json_at((*content)[2], "input") == "{}");
  CHECK(text_at((*content)[1], "id") != text_at((*content)[2], "id"));
  for (size_t per_step : {1, 9}) {
    server.generator->set_tokens_per_step(per_step);
    const auto streamed = server.post("/v1/messages", body_of("," + std::string(kTools) + R"(,"stream":true)"));
    CHECK(is_valid_utf8(streamed.body));
    const auto events = named_events(streamed.body);
    CHECK(streamed_content(events) == "|text:Let me see. |get_weather:{\"city\": \"\xC3\x85s\"}|now:{}");
    CHECK(text_at(events[events.size() - 2].data, "delta.stop_reason") == "tool_use");
  }
}

TEST_CASE("messages: input that the limit cut off is wrapped, so that it is an object") {
  MessagesServer server("[TOOL_CALLS]now[ARGS]{\"a\": 1}");
  const JsonValue answer = server.ok(
      "/v1/messages", R"({"max_tokens":25,"messages":[{"role":"user","content":"hi"}],)" + std::string(kTools) + "}");
  CHECK(text_at(answer, "stop_reason") == "max_tokens");
  CHECK(json_at(answer, "content.0.input") == R"({"INVALID_JSON":"{\"a\""})");
}

TEST_CASE("messages: system, blocks, calls and results become what templates know") {
  MessagesServer server("ok");
  server.model.chat_template = text::must(text::ChatTemplate::compile(kShowsCalls));
  server.ok(
      "/v1/messages",
      R"({"max_tokens":5,"system":[{"type":"text","text":"S1"},{"type":"text","text":"S2","cache_control":{}}],)" +
          std::string(kTools) + R"(,"messages":[
      {"role":"user","content":[{"type":"text","text":"A"},{"type":"text","text":"B"}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"look"},
        {"type":"tool_use","id":"t1","name":"get_weather","input":{"city":"Oslo"}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"rain"}]},
        {"type":"text","text":"and now?"}]}]})");
  CHECK(server.prompt() ==
        "[get_weather:object][now:object]<|im_start|>system\nS1\nS2<|im_end|>\n<|im_start|>user\nA\nB<|im_end|>\n"
        "<|im_start|>assistant\nlook(t1 get_weather Oslo)<|im_end|>\n"
        "<|im_start|>tool\nrain(t1 get_weather)<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n");
}

TEST_CASE("messages: an assistant's message at the end is the beginning of the answer") {
  MessagesServer server("llo");
  const JsonValue answer = server.ok("/v1/messages", R"({"max_tokens":9,"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":"He"}]})");
  CHECK(text_at(answer, "content.0.text") == "llo");
  CHECK(server.prompt() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHe");
}

TEST_CASE("messages: any and tool force a call, none forbids it") {
  MessagesServer server("[{\"name\":\"now\",\"parameters\":{}}]");
  const std::string tools = "," + std::string(kTools);
  const JsonValue any = server.ok("/v1/messages", body_of(tools + R"(,"tool_choice":{"type":"any"})"));
  CHECK(text_at(any, "content.0.name") == "now");
  CHECK(server.generator->seen().back().grammar);
  server.script = [](const sched::Request&, uint32_t) { return Script{byte_tokens("{\"city\":\"X\"}"), {}, 0}; };
  const JsonValue tool =
      server.ok("/v1/messages", body_of(tools + R"(,"tool_choice":{"type":"tool","name":"get_weather"})"));
  CHECK(text_at(tool, "content.0.input.city") == "X");
  const JsonValue none = server.ok("/v1/messages", body_of(tools + R"(,"tool_choice":{"type":"none"})"));
  CHECK(text_at(none, "content.0.text") == "{\"city\":\"X\"}");
}

TEST_CASE("messages: count_tokens counts the prompt") {
  MessagesServer server("x");
  const JsonValue count =
      server.ok("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"hi"}],"system":"be brief"})");
  server.ok("/v1/messages", R"({"max_tokens":1,"messages":[{"role":"user","content":"hi"}],"system":"be brief"})");
  CHECK(int_at(count, "input_tokens") == static_cast<int64_t>(server.generator->seen().back().prompt.size()));
}

TEST_CASE("messages: errors have Anthropic's shape, before and within a stream") {
  ApiConfig config = ApiServer::default_config();
  config.keys = {{"a", "secret", 0}};
  MessagesServer server("abcdef", config);
  const std::string key = "x-api-key: secret\r\n";
  const auto refusal = [&](const std::string& body, int status) {
    const auto answer = server.post("/v1/messages", body, key);
    CHECK_MESSAGE(answer.status == status, answer.body);
    const JsonValue json = json_of(answer.body);
    CHECK(text_at(json, "type") == "error");
    return text_at(json, "error.type") + ": " + text_at(json, "error.message");
  };
  CHECK(refusal(R"({"messages":[{"role":"user","content":"x"}]})", 400) ==
        "invalid_request_error: max_tokens: is missing");
  CHECK(refusal(R"({"max_tokens":1})", 400) == "invalid_request_error: messages: is missing");
  CHECK(refusal("{", 400).starts_with("invalid_request_error: the request's body is"));
  CHECK(refusal(R"({"max_tokens":1,"messages":[{"role":"tool","content":"x"}]})", 400).find("messages[0].role") !=
        std::string::npos);
  CHECK(refusal(R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]})", 400)
            .find("messages[0].content[0].type") != std::string::npos);
  CHECK(refusal(R"({"max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[
                    {"type":"tool_use","id":"c","name":"f","input":{}}]}]})",
                400)
            .find("its result has to follow") != std::string::npos);
  CHECK(refusal(body_of(R"(,"tools":[{"name":"a","input_schema":[]}])"), 400).find("tools[0].input_schema") !=
        std::string::npos);
  CHECK(refusal(body_of(R"(,"tool_choice":{"type":"any"})"), 400).find("tool_choice") != std::string::npos);
  CHECK(refusal(R"({"model":"other","max_tokens":1,"messages":[{"role":"user","content":"x"}]})", 404)
            .starts_with("not_found_error"));
  CHECK(text_at(json_of(server.post("/v1/messages", body_of()).body), "error.type") == "authentication_error");
  server.script = [](const sched::Request&, uint32_t) {
    return Script{byte_tokens("abcdef"), Error{ErrorCode::kInternal, "the device failed"}, 3};
  };
  const auto events = named_events(server.post("/v1/messages", body_of(R"(,"stream":true)"), key).body);
  CHECK(events.back().name == "error");
  CHECK(text_at(events.back().data, "error.type") == "api_error");
  CHECK(text_at(events.back().data, "error.message") == "the device failed");
  server.generator->refuse_with(Error{ErrorCode::kUnavailable, "the queue is full"});
  CHECK(refusal(body_of(), 503).starts_with("overloaded_error"));
  server.generator->refuse_with({});
  server.gate->drain();
  CHECK(refusal(body_of(), 503).starts_with("overloaded_error"));
}

TEST_CASE("messages: a silent stream is kept open by pings") {
  ApiConfig config = ApiServer::default_config();
  config.ping_interval_ms = 20;
  MessagesServer server("x", config);
  server.generator->hold(true);
  testing::RawClient client(server.port());
  const std::string body = body_of(R"(,"stream":true)");
  client.send("POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
              body);
  CHECK(client.read_until("data: {\"type\":\"ping\"}\n\n").find("event: ping\n") != std::string::npos);
  server.generator->hold(false);
  CHECK(client.read_until("message_stop\"}\n\n").find("text_delta") != std::string::npos);
}

}  // namespace
}  // namespace tandem::openai
