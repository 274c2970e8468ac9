// Tool calls of chat completions: what goes into the prompt, what comes out of the text, what is refused.

#include <doctest/doctest.h>

#include "api/openai/api_server_for_test.h"
#include "base/utf8.h"
#include "serve/text/constraint.h"

namespace tandem::openai {
namespace {

constexpr std::string_view kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object",
       "properties":{"city":{"type":"string"}},"required":["city"]}}},{"type":"function","function":{"name":"now"}}])";

ApiConfig config_for(text::ToolCallFormat format) {
  ApiConfig config = ApiServer::default_config();
  config.tool_call_format = format;
  return config;
}

// Hermes with the opening marker as the token that the small vocabulary has for it.
std::vector<TokenId> with_marker_tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  while (!text.empty()) {
    if (text.starts_with("<tool_call>")) {
      tokens.push_back(text::kToolCall);
      text.remove_prefix(11);
    } else {
      tokens.push_back(static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    }
  }
  return tokens;
}

struct ToolServer : ApiServer {
  explicit ToolServer(const std::string& says, text::ToolCallFormat format = text::ToolCallFormat::kHermes)
      : ApiServer("", config_for(format), true, 600, true) {
    script = [says](const sched::Request&, uint32_t) { return Script{with_marker_tokens(says), {}, 0}; };
  }
  JsonValue ask(const std::string& more = {}) const { return chat(std::string(kTools) + more); }
  std::vector<JsonValue> stream(const std::string& more = {}) const {
    const auto answer = post("/v1/chat/completions", chat_body(std::string(kTools) + R"(,"stream":true)" + more));
    CHECK(answer.status == 200);
    CHECK(is_valid_utf8(answer.body));
    return events_of(answer.body);
  }
};

// A choice's message as a stream's deltas give it.
std::string streamed_message(const std::vector<JsonValue>& events, int64_t index) {
  std::string content;
  struct Call {
    std::string id, name, arguments;
  };
  std::vector<Call> calls;
  for (const JsonValue& event : events) {
    for (const JsonValue& choice : *at(event, "choices").if_array()) {
      if (int_at(choice, "index") != index) continue;
      if (at(choice, "delta.content").if_string()) content += text_at(choice, "delta.content");
      const auto* deltas = at(choice, "delta.tool_calls").if_array();
      if (!deltas) continue;
      REQUIRE(deltas->size() == 1);
      const auto call = static_cast<size_t>(int_at((*deltas)[0], "index"));
      const JsonValue& function = at((*deltas)[0], "function");
      if (call == calls.size()) {  // the first one of a call has all but the arguments
        CHECK(text_at((*deltas)[0], "type") == "function");
        CHECK(text_at(function, "arguments").empty());
        calls.push_back({text_at((*deltas)[0], "id"), text_at(function, "name"), ""});
        continue;
      }
      REQUIRE(call + 1 == calls.size());
      CHECK(at((*deltas)[0], "id").is_null());
      CHECK(at(function, "name").is_null());
      calls[call].arguments += text_at(function, "arguments");
    }
  }
  std::string out = content;
  for (const Call& call : calls) out += "|" + call.name + call.arguments;
  return out;
}

// The same of a whole answer; ids are checked to be calls'.
std::string whole_message(const JsonValue& answer, const std::string& choice = "0") {
  const JsonValue& message = at(answer, "choices." + choice + ".message");
  std::string out = at(message, "content").if_string() ? text_at(message, "content") : "";
  const auto* calls = at(message, "tool_calls").if_array();
  for (size_t i = 0; calls && i < calls->size(); ++i) {
    CHECK(text_at((*calls)[i], "type") == "function");
    CHECK(text_at((*calls)[i], "id").starts_with("call_"));
    out += "|" + text_at((*calls)[i], "function.name") + text_at((*calls)[i], "function.arguments");
  }
  return out;
}

TEST_CASE("a call is a tool_calls entry, whole and streamed alike, however many tokens a step") {
  const std::string says =
      "On it.<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Troms\xC3\xB8 \xF0\x9F\x98\x80\"}}"
      "</tool_call>\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>";
  ToolServer server(says);
  const std::string expected = "On it.|get_weather{\"city\":\"Troms\xC3\xB8 \xF0\x9F\x98\x80\"}|now{}";
  const JsonValue whole = server.ask();
  CHECK(whole_message(whole) == expected);
  CHECK(text_at(whole, "choices.0.finish_reason") == "tool_calls");
  for (size_t per_step : {1, 2, 7, 100}) {
    server.generator->set_tokens_per_step(per_step);
    const auto events = server.stream();
    CHECK(streamed_message(events, 0) == expected);
    CHECK(streamed_choice(events, 0).finish_reason == "tool_calls");
    CHECK(streamed_choice(events, 0).num_finishes == 1);
  }
}

TEST_CASE("a call alone has null content; the raw stream gives id, type and name first, then the arguments") {
  ToolServer server("<tool_call>{\"name\": \"now\", \"arguments\": {\"a\":1}}");
  const JsonValue whole = server.ask();
  CHECK(at(whole, "choices.0.message").find("content")->is_null());
  server.generator->set_tokens_per_step(100);
  const std::string raw =
      server.post("/v1/chat/completions", ApiServer::chat_body(std::string(kTools) + R"(,"stream":true)")).body;
  const size_t start = raw.find(R"("delta":{"tool_calls":[{"index":0,"id":"call_)");
  const size_t name = raw.find(R"(","type":"function","function":{"name":"now","arguments":""}}]})");
  const size_t first = raw.find(R"("delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]})");
  const size_t last = raw.find(R"("delta":{},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null)");
  CHECK(start < name);
  CHECK(name < first);
  CHECK(first < last);
  CHECK(last != std::string::npos);
}

// The fault put in: the parser of calls got each token's own bytes, and held no unfinished character back.
TEST_CASE("API-01: the arguments of a call stream in whole characters, also from single byte tokens") {
  ToolServer server("<tool_call>{\"name\":\"now\",\"arguments\":{\"t\":\"\xE8\xB5\x8B\xF0\x9F\x98\x80\xC3\xA9\"}}");
  for (size_t per_step : {1, 2, 3}) {
    server.generator->set_tokens_per_step(per_step);
    const auto answer =
        server.post("/v1/chat/completions", ApiServer::chat_body(std::string(kTools) + R"(,"stream":true)"));
    CHECK(is_valid_utf8(answer.body));
    CHECK(answer.body.find("\xEF\xBF\xBD") == std::string::npos);
    CHECK(streamed_message(events_of(answer.body), 0) == "|now{\"t\":\"\xE8\xB5\x8B\xF0\x9F\x98\x80\xC3\xA9\"}");
  }
}

TEST_CASE("what is no call stays content; the marker's letters alone are none; tool_choice none looks for none") {
  for (const std::string says : {"<tool_call>{\"name\":", "<tool_call>nothing", "plain <b>"}) {
    ToolServer server(says);
    const JsonValue whole = server.ask();
    CHECK(text_at(whole, "choices.0.message.content") == says);
    CHECK(text_at(whole, "choices.0.finish_reason") == "stop");
    CHECK(!at(whole, "choices.0.message").find("tool_calls"));
    CHECK(streamed_message(server.stream(), 0) == says);
  }
  const std::string call = "<tool_call>{\"name\":\"now\",\"arguments\":{}}";
  ToolServer typed("");
  typed.script = [&](const sched::Request&, uint32_t) { return Script{byte_tokens(call), {}, 0}; };
  CHECK(text_at(typed.ask(), "choices.0.message.content") == call);
  ToolServer server(call);
  CHECK(text_at(server.ask(R"(,"tool_choice":"none")"), "choices.0.message.content") == call);
  CHECK(text_at(server.chat(), "choices.0.message.content") == call);
}

TEST_CASE("n, logprobs, stop strings, limits and usage beside calls") {
  ToolServer server("");
  server.script = [](const sched::Request&, uint32_t choice) {
    const std::string call = "<tool_call>{\"name\":\"now\",\"arguments\":{\"c\":" + std::to_string(choice) + "}}";
    return Script{with_marker_tokens(choice == 1 ? "text" : call), {}, 0};
  };
  const std::string fields = R"(,"n":3,"logprobs":true,"stream_options":{"include_usage":true})";
  const JsonValue whole = server.ask(R"(,"n":3,"logprobs":true)");
  const auto events = server.stream(fields);
  for (int i = 0; i < 3; ++i) {
    const std::string place = std::to_string(i);
    CHECK(whole_message(whole, place) == (i == 1 ? "text" : "|now{\"c\":" + place + "}"));
    CHECK(streamed_message(events, i) == whole_message(whole, place));
    CHECK(text_at(whole, "choices." + place + ".finish_reason") == (i == 1 ? "stop" : "tool_calls"));
    CHECK(JsonWriter().value(JsonValue(streamed_choice(events, i).logprobs)).take() ==
          json_at(whole, "choices." + place + ".logprobs.content"));
  }
  CHECK(text_at(whole, "choices.0.message.tool_calls.0.id") != text_at(whole, "choices.2.message.tool_calls.0.id"));
  CHECK(json_at(events.back(), "usage") == json_at(whole, "usage"));
  const int64_t num_tokens =
      1 + static_cast<int64_t>(std::string("{\"name\":\"now\",\"arguments\":{\"c\":0}}").size()) + 1;
  CHECK(int_at(whole, "usage.completion_tokens") == 2 * num_tokens + 5);

  const JsonValue cut = server.ask(R"(,"max_tokens":30)");
  CHECK(text_at(cut, "choices.0.finish_reason") == "length");
  CHECK(whole_message(cut) == "|now{\"c");
  const JsonValue stopped = server.ask(R"(,"stop":["\"c\""])");
  CHECK(whole_message(stopped) == "|now{");
  CHECK(text_at(stopped, "choices.0.stop_reason") == "\"c\"");
  CHECK(text_at(stopped, "choices.0.finish_reason") == "stop");  // the fault: "tool_calls", with half of the arguments
  CHECK(streamed_choice(server.stream(R"(,"stop":["\"c\""])"), 0).finish_reason == "stop");
  CHECK(text_at(server.ask(R"(,"stop_token_ids":[99])"), "choices.0.finish_reason") == "stop");
  CHECK(text_at(server.ask(R"(,"stop":["}}"])"), "choices.0.finish_reason") == "stop");
  CHECK(text_at(server.ask(R"(,"stop":["}}"],"include_stop_str_in_output":true)"), "choices.0.finish_reason") ==
        "tool_calls");
  CHECK(streamed_message(server.stream(R"(,"stop":["\"c\""])"), 0) == "|now{");
}

TEST_CASE("an error in the middle of a call ends the stream as always") {
  ToolServer server("");
  server.script = [](const sched::Request&, uint32_t) {
    return Script{with_marker_tokens("<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":1}}"),
                  Error{ErrorCode::kInternal, "the device failed"}, 30};
  };
  CHECK(text_at(server.stream().back(), "error.message") == "the device failed");
}

TEST_CASE("a forced call has a grammar, and its answer is read as JSON whatever the model's own format") {
  ToolServer server("[{\"name\":\"get_weather\",\"parameters\":{\"city\":\"Oslo\"}}]", text::ToolCallFormat::kNone);
  const JsonValue required = server.ask(R"(,"tool_choice":"required")");
  CHECK(whole_message(required) == "|get_weather{\"city\":\"Oslo\"}");
  CHECK(text_at(required, "choices.0.finish_reason") == "tool_calls");
  CHECK(streamed_message(server.stream(R"(,"tool_choice":"required")"), 0) == "|get_weather{\"city\":\"Oslo\"}");

  server.script = [](const sched::Request&, uint32_t) { return Script{byte_tokens("{\"city\":\"Bergen\"}"), {}, 0}; };
  const std::string named = R"(,"tool_choice":{"type":"function","function":{"name":"get_weather"}})";
  CHECK(whole_message(server.ask(named)) == "|get_weather{\"city\":\"Bergen\"}");

  const auto seen = server.generator->seen();
  REQUIRE(seen.size() == 3);
  REQUIRE(seen[0].grammar);
  REQUIRE(seen[2].grammar);
  const auto engine = text::must(
      text::ConstraintEngine::create(server.model.tokenizer, server.model.tokenizer.vocab_size(), {text::kEnd}));
  const auto accepts = [&](const sched::Grammar& grammar, std::string_view text) {
    auto constraint = text::must(engine.compile(grammar.kind, grammar.source));
    const std::vector<TokenId> ids = byte_tokens(text);
    return text::must(constraint.validate(ids)) == ids.size();
  };
  CHECK(accepts(*seen[0].grammar,
                R"([{"name":"get_weather","parameters":{"city":"Oslo"}},{"name":"now","parameters":{)"));
  CHECK(!accepts(*seen[0].grammar, R"([{"name":"other")"));
  CHECK(!accepts(*seen[0].grammar, R"([{"name":"get_weather","parameters":{"city":1)"));
  CHECK(!accepts(*seen[0].grammar, "[]"));
  CHECK(accepts(*seen[2].grammar, R"({"city":"x"})"));
  CHECK(!accepts(*seen[2].grammar, R"([)"));
}

TEST_CASE("schemas that refer to themselves keep doing so inside the list of calls; one call where only one may be") {
  ToolServer server("[]");
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"a","parameters":{"type":"object",
         "properties":{"t":{"$ref":"#/$defs/T"}},"required":["t"],"$defs":{"T":{"type":"integer"}}}}},
         {"type":"function","function":{"name":"b","parameters":{"type":"object",
         "properties":{"t":{"$ref":"#/$defs/T"}},"required":["t"],"$defs":{"T":{"type":"boolean"}}}}}],
         "tool_choice":"required","parallel_tool_calls":false)";
  server.chat(tools);
  const sched::Grammar grammar = *server.generator->seen().back().grammar;
  const auto engine = text::must(
      text::ConstraintEngine::create(server.model.tokenizer, server.model.tokenizer.vocab_size(), {text::kEnd}));
  const auto accepts = [&](std::string_view text) {
    auto constraint = text::must(engine.compile(grammar.kind, grammar.source));
    const std::vector<TokenId> ids = byte_tokens(text);
    return text::must(constraint.validate(ids)) == ids.size();
  };
  CHECK(accepts(R"([{"name":"a","parameters":{"t":1}}])"));
  CHECK(!accepts(R"([{"name":"a","parameters":{"t":tr)"));
  CHECK(accepts(R"([{"name":"b","parameters":{"t":true}}])"));
  CHECK(!accepts(R"([{"name":"b","parameters":{"t":1)"));
  CHECK(!accepts(R"([{"name":"a","parameters":{"t":1}},)"));
}

TEST_CASE("a forced call whose schema does not compile is 400 for the tools") {
  ToolServer server("[]");
  const auto answer = server.post(
      "/v1/chat/completions",
      ApiServer::chat_body(R"("tools":[{"type":"function","function":{"name":"a","parameters":{"type":"object",
          "properties":{"x":{"type":"string","pattern":"("}}}}}],"tool_choice":"required")"));
  CHECK(answer.status == 400);
  CHECK(text_at(json_of(answer.body), "error.param") == "tools");
  CHECK(server.generator->seen().empty());
}

TEST_CASE("without parallel calls only the first one counts") {
  ToolServer server("<tool_call>{\"name\":\"now\"}<tool_call>{\"name\":\"get_weather\"}");
  CHECK(whole_message(server.ask(R"(,"parallel_tool_calls":false)")) == "|now{}");
  CHECK(whole_message(server.ask()) == "|now{}|get_weather{}");
}

TEST_CASE("the ids of Mistral's family are nine letters and digits") {
  ToolServer server("[TOOL_CALLS]now[ARGS]{}", text::ToolCallFormat::kMistral);
  const JsonValue answer = server.ask();
  const std::string id = text_at(answer, "choices.0.message.tool_calls.0.id");
  CHECK(id.size() == 9);
  CHECK(id.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == std::string::npos);
}

TEST_CASE("API-13: wrong tools, choices and replayed arguments are 400 with the field") {
  ToolServer server("x");
  const auto refusal = [&](const std::string& fields) {
    const auto answer = server.post("/v1/chat/completions", ApiServer::chat_body(fields));
    CHECK_MESSAGE(answer.status == 400, fields);
    CHECK(text_at(json_of(answer.body), "error.type") == "invalid_request_error");
    return text_at(json_of(answer.body), "error.param");
  };
  const auto tool = [](const std::string& function) {
    return R"("tools":[{"type":"function","function":)" + function + "}]";
  };
  CHECK(refusal(R"("tools":3)") == "tools");
  CHECK(refusal(R"("tools":["x"])") == "tools[0]");
  CHECK(refusal(R"("tools":[{"type":"web_search"}])") == "tools[0].type");
  CHECK(refusal(R"("tools":[{"type":"function"}])") == "tools[0].function");
  CHECK(refusal(tool("{}")) == "tools[0].function.name");
  CHECK(refusal(tool(R"({"name":""})")) == "tools[0].function.name");
  CHECK(refusal(tool(R"({"name":"a b"})")) == "tools[0].function.name");
  CHECK(refusal(tool(R"({"name":"a","parameters":[]})")) == "tools[0].function.parameters");
  CHECK(refusal(tool(R"({"name":"a","parameters":{"type":"string"}})")) == "tools[0].function.parameters");
  CHECK(refusal(R"("tools":[{"function":{"name":"a"}},{"function":{"name":"a"}}])") == "tools[1].function.name");
  const std::string tools = std::string(kTools);
  CHECK(refusal(tools + R"(,"tool_choice":"sometimes")") == "tool_choice");
  CHECK(refusal(tools + R"(,"tool_choice":{"type":"function","function":{"name":"other"}})") == "tool_choice");
  CHECK(refusal(tools + R"(,"tool_choice":{"type":"allowed_tools"})") == "tool_choice");
  CHECK(refusal(R"("tool_choice":"required")") == "tool_choice");
  CHECK(refusal(tools + R"(,"parallel_tool_calls":"no")") == "parallel_tool_calls");
  const auto replay = server.post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"c","type":"function",
          "function":{"name":"now","arguments":"{"}}]},{"role":"tool","tool_call_id":"c","content":"1"}]})");
  CHECK(replay.status == 400);
  CHECK(text_at(json_of(replay.body), "error.param") == "messages[1].tool_calls[0].function.arguments");
}

TEST_CASE("a second turn: the call and its result go through the template, what the model wrote can be sent back") {
  ToolServer server("");
  server.model.chat_template = text::must(text::ChatTemplate::compile(
      "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments.city "
      "}})"
      "{% endfor %}<|im_end|>\n{% endfor %}"));
  const auto answer = server.post(
      "/v1/chat/completions",
      "{" + std::string(kTools) +
          R"(,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1",
              "type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Oslo\"}"}}]},
              {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"rain"}]}]})");
  CHECK_MESSAGE(answer.status == 200, answer.body);
  CHECK(server.model.tokenizer.decode(server.generator->seen().back().prompt, false) ==
        "[get_weather][now]<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n(c1 get_weather Oslo)<|im_end|>\n"
        "<|im_start|>tool\nrain<|im_end|>\n");
}

}  // namespace
}  // namespace tandem::openai
