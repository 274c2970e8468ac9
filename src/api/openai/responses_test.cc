// OpenAI's Responses API: what goes into the prompt, whole answers, events, errors.

#include <doctest/doctest.h>

#include "api/openai/api_server_for_test.h"
#include "base/utf8.h"

namespace tandem::openai {
namespace {

constexpr std::string_view kTools = R"("tools":[{"type":"function","name":"get_weather","parameters":{"type":"object",
    "properties":{"city":{"type":"string"}}}},{"type":"function","name":"now"}])";

struct ResponsesServer : ApiServer {
  explicit ResponsesServer(const std::string& says) : ApiServer(says, with_calls(), true, 700, true) {}
  static ApiConfig with_calls() {
    ApiConfig config = default_config();
    config.tool_call_format = text::ToolCallFormat::kHermes;
    return config;
  }
  // <tool_call> is one token of the small vocabulary.
  void say(std::string text) {
    std::vector<TokenId> tokens;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool is_marker = std::string_view(text).substr(i).starts_with("<tool_call>");
      tokens.push_back(is_marker ? text::kToolCall : static_cast<unsigned char>(text[i]));
      if (is_marker) i += 10;
    }
    script = [tokens](const sched::Request&, uint32_t) { return Script{tokens, {}, 0}; };
  }
  JsonValue respond(const std::string& more = {}) const { return ok("/v1/responses", R"({"input":"hi")" + more + "}"); }
  // The events, whose numbers count up from 0 and whose names are their types.
  std::vector<JsonValue> stream(const std::string& more = {}) const {
    const auto answer = post("/v1/responses", R"({"input":"hi","stream":true)" + more + "}");
    CHECK(answer.status == 200);
    CHECK(is_valid_utf8(answer.body));
    std::vector<JsonValue> events;
    std::string_view body = answer.body;
    while (!body.empty()) {
      const size_t end = body.find("\n\n");
      REQUIRE(end != std::string_view::npos);
      const std::string_view event = body.substr(0, end);
      body.remove_prefix(end + 2);
      REQUIRE(event.starts_with("event: "));
      const size_t line_end = event.find('\n');
      events.push_back(json_of(event.substr(line_end + 7)));
      CHECK(text_at(events.back(), "type") == event.substr(7, line_end - 7));
      CHECK(int_at(events.back(), "sequence_number") == static_cast<int64_t>(events.size()) - 1);
    }
    return events;
  }
};

std::string types_of(const std::vector<JsonValue>& events) {
  std::string types;
  for (const JsonValue& event : events) {
    std::string type = text_at(event, "type");
    type = type.substr(std::string_view("response.").size());
    if (!types.ends_with(" " + type)) types += " " + type;
  }
  return types;
}

TEST_CASE("responses: a whole answer with its text, status and usage") {
  ResponsesServer server("Hello");
  const JsonValue answer = server.respond(R"(,"store":true,"temperature":0.7,"metadata":{"k":"v"},"model":"tiny")");
  CHECK(text_at(answer, "object") == "response");
  CHECK(text_at(answer, "id").starts_with("resp_"));
  CHECK(text_at(answer, "status") == "completed");
  CHECK(text_at(answer, "model") == "tiny");
  CHECK(text_at(answer, "output.0.type") == "message");
  CHECK(text_at(answer, "output.0.role") == "assistant");
  CHECK(json_at(answer, "output.0.content") ==
        R"([{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}])");
  CHECK(json_at(answer, "temperature") == "0.7");
  CHECK(json_at(answer, "store") == "false");
  CHECK(json_at(answer, "metadata") == R"({"k":"v"})");
  const auto num_prompt = static_cast<int64_t>(server.generator->seen()[0].prompt.size());
  CHECK(int_at(answer, "usage.input_tokens") == num_prompt);
  CHECK(int_at(answer, "usage.output_tokens") == 6);
  CHECK(int_at(answer, "usage.total_tokens") == num_prompt + 6);
  CHECK(int_at(answer, "usage.input_tokens_details.cached_tokens") == 0);
  const JsonValue cut = server.respond(R"(,"max_output_tokens":2)");
  CHECK(text_at(cut, "status") == "incomplete");
  CHECK(text_at(cut, "incomplete_details.reason") == "max_output_tokens");
  CHECK(text_at(cut, "output.0.status") == "incomplete");
  CHECK(text_at(cut, "output.0.content.0.text") == "He");
}

TEST_CASE("responses: the events of a text end in the whole response") {
  ResponsesServer server("a\xE8\xB5\x8B");
  const auto events = server.stream();
  CHECK(types_of(events) ==
        " created in_progress output_item.added content_part.added output_text.delta output_text.done "
        "content_part.done output_item.done completed");
  std::string text;
  for (const JsonValue& event : events) {
    if (text_at(event, "type") == "response.output_text.delta") text += text_at(event, "delta");
  }
  CHECK(text == "a\xE8\xB5\x8B");
  CHECK(text_at(events[0], "response.status") == "in_progress");
  CHECK(json_at(events[0], "response.output") == "[]");
  CHECK(text_at(events.back(), "response.status") == "completed");
  CHECK(text_at(events.back(), "response.output.0.content.0.text") == text);
  CHECK(text_at(events.back(), "response.output.0.id") == text_at(events[2], "item.id"));
  CHECK(json_at(events.back(), "response.output.0") == json_at(events[events.size() - 2], "item"));
  CHECK(types_of(server.stream(R"(,"max_output_tokens":1)")).ends_with(" output_item.done incomplete"));
}

TEST_CASE("responses: function calls, whole and streamed alike") {
  ResponsesServer server("");
  server.say(
      "See:<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\":\"\xC3\x85s\"}}</tool_call>"
      "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>");
  const std::string tools = "," + std::string(kTools);
  const JsonValue whole = server.respond(tools);
  CHECK(text_at(whole, "output.0.content.0.text") == "See:");
  CHECK(text_at(whole, "output.1.type") == "function_call");
  CHECK(text_at(whole, "output.1.name") == "get_weather");
  CHECK(text_at(whole, "output.1.arguments") == "{\"city\":\"\xC3\x85s\"}");
  CHECK(text_at(whole, "output.1.call_id").starts_with("call_"));
  CHECK(text_at(whole, "output.2.name") == "now");
  CHECK(text_at(whole, "output.1.call_id") != text_at(whole, "output.2.call_id"));
  for (size_t per_step : {1, 50}) {
    server.generator->set_tokens_per_step(per_step);
    const auto events = server.stream(tools);
    CHECK(types_of(events) ==
          " created in_progress output_item.added content_part.added output_text.delta output_text.done "
          "content_part.done output_item.done output_item.added function_call_arguments.delta "
          "function_call_arguments.done output_item.done output_item.added function_call_arguments.delta "
          "function_call_arguments.done output_item.done completed");
    const auto* output = at(events.back(), "response.output").if_array();
    REQUIRE(output);
    REQUIRE(output->size() == 3);
    std::vector<std::string> deltas(3);
    for (const JsonValue& event : events) {
      if (!text_at(event, "type").ends_with("delta")) continue;
      const auto index = static_cast<size_t>(int_at(event, "output_index"));
      CHECK(text_at(event, "item_id") == text_at((*output)[index], "id"));
      deltas[index] += text_at(event, "delta");
    }
    CHECK(deltas[0] == "See:");
    CHECK(deltas[1] == text_at((*output)[1], "arguments"));
    CHECK(deltas[1] == text_at(whole, "output.1.arguments"));
    CHECK(deltas[2] == "{}");
  }
}

TEST_CASE("responses: instructions, items, calls and their outputs become what templates know") {
  ResponsesServer server("ok");
  server.model.chat_template = text::must(text::ChatTemplate::compile(
      "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments.city "
      "}})"
      "{% endfor %}{% if m.tool_call_id is defined %}({{ m.tool_call_id }}){% endif %}<|im_end|>\n{% endfor %}"));
  server.ok("/v1/responses", R"({"instructions":"be brief",)" + std::string(kTools) + R"(,"input":[
      {"role":"user","content":[{"type":"input_text","text":"A"},{"type":"input_text","text":"B"}]},
      {"type":"reasoning","id":"r","summary":[]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"look"}]},
      {"type":"function_call","call_id":"c1","name":"get_weather","arguments":"{\"city\":\"Oslo\"}"},
      {"type":"function_call","call_id":"c2","name":"get_weather","arguments":"{\"city\":\"Bergen\"}"},
      {"type":"function_call_output","call_id":"c1","output":"rain"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"sun"}]}]})");
  CHECK(server.model.tokenizer.decode(server.generator->seen().back().prompt, false) ==
        "[get_weather][now]<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nA\nB<|im_end|>\n"
        "<|im_start|>assistant\nlook(c1 get_weather Oslo)(c2 get_weather Bergen)<|im_end|>\n"
        "<|im_start|>tool\nrain(c1)<|im_end|>\n<|im_start|>tool\nsun(c2)<|im_end|>\n");
}

TEST_CASE("responses: text.format and forced calls are grammars") {
  ResponsesServer server("{}");
  server.respond(R"(,"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object","title":"T"}}})");
  CHECK(server.generator->seen().back().grammar->source == R"({"type":"object","title":"T"})");
  server.respond(R"(,"text":{"format":{"type":"json_object"}})");
  CHECK(server.generator->seen().back().grammar);
  server.respond(R"(,"text":{"format":{"type":"text"}})");
  CHECK(!server.generator->seen().back().grammar);
  const JsonValue named =
      server.respond("," + std::string(kTools) + R"(,"tool_choice":{"type":"function","name":"now"})");
  CHECK(text_at(named, "output.0.name") == "now");
  CHECK(text_at(named, "output.0.arguments") == "{}");
}

TEST_CASE("responses: what is wrong or not done is 400 with the field") {
  ResponsesServer server("abcdef");
  const auto param = [&](const std::string& fields) {
    const auto answer = server.post("/v1/responses", "{" + fields + "}");
    CHECK_MESSAGE(answer.status == 400, fields);
    return text_at(json_of(answer.body), "error.param");
  };
  CHECK(param(R"("model":"tiny")") == "input");
  CHECK(param(R"("input":"x","previous_response_id":"resp_1")") == "previous_response_id");
  CHECK(param(R"("input":"x","background":true)") == "background");
  CHECK(param(R"("input":"x","max_output_tokens":0)") == "max_output_tokens");
  CHECK(param(R"("input":[])") == "input");
  CHECK(param(R"("input":[{"role":"user","content":[{"type":"input_image"}]}])") == "input[0].content");
  CHECK(param(R"("input":[{"type":"item_reference","id":"x"}])") == "input[0].type");
  CHECK(param(R"("input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{"}])") ==
        "input[0].arguments");
  CHECK(param(R"("input":"x","tools":[{"type":"web_search"}])") == "tools[0].type");
  CHECK(param(R"("input":"x","text":{"format":{"type":"xml"}})") == "text.format.type");
  CHECK(param(R"("input":"x","tool_choice":{"type":"function","name":"f"})") == "tool_choice");
  CHECK(param(R"("input":")" + std::string(3000, 'x') + "\"") == "input");
}

TEST_CASE("responses: an error within a stream ends it as failed") {
  ResponsesServer server("");
  server.script = [](const sched::Request&, uint32_t) {
    return Script{byte_tokens("abcdef"), Error{ErrorCode::kInternal, "the device failed"}, 3};
  };
  const auto events = server.stream();
  CHECK(text_at(events.back(), "type") == "response.failed");
  CHECK(text_at(events.back(), "response.status") == "failed");
  CHECK(text_at(events.back(), "response.error.message") == "the device failed");
  CHECK(text_at(events.back(), "response.output.0.content.0.text") == "abc");
}

}  // namespace
}  // namespace tandem::openai
