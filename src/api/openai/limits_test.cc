// What one request may cost: bodies that would take memory or time out of proportion are 400 with the field, or cost no
// more than their size. And what the server says in which API's words.

#include <doctest/doctest.h>

#include <chrono>

#include "api/openai/api_server_for_test.h"
#include "api/openai/messages_request.h"
#include "api/openai/reply_shape.h"
#include "api/openai/responses_request.h"

namespace tandem::openai {
namespace {

std::string many(const std::string& one, size_t count) {
  std::string all = one;
  for (size_t i = 1; i < count; ++i) all += "," + one;
  return all;
}

// The field that is refused, as "messages" names it too; "accepted" when none is.
template <class T>
std::string fault_in(const Parsed<T>& parsed) {
  const ApiError* error = std::get_if<ApiError>(&parsed);
  return error ? error->message.substr(0, error->message.find(':')) : "accepted";
}

std::string messages_fault(const std::string& fields) {
  return fault_in(parse_messages_request(
      R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}],)" + fields + "}", {.vocab_size = 300}, {}, false));
}

std::string responses_fault(const std::string& fields) {
  return fault_in(parse_responses_request(R"({"input":"x",)" + fields + "}", {.vocab_size = 300}, {}));
}

std::string completion_fault(const std::string& fields) {
  return fault_in(parse_completion_request("{" + fields + "}", {.vocab_size = 300}, {}));
}

TEST_CASE("a call's function counts once, however often it is written") {
  // The fault: a copy of it for each time, the square of the body.
  const std::string call = R"({"id":"c","function":{"name":"g","arguments":"{}"},"type":"function",)" +
                           many(R"("function":{"name":"f","arguments":"{\"a\":1}"})", 1000) + "}";
  const auto parsed =
      parse_chat_request(R"({"messages":[{"role":"assistant","tool_calls":[)" + call + "]}]}", {.vocab_size = 300}, {});
  REQUIRE(std::holds_alternative<ChatRequest>(parsed));
  CHECK(json_at(std::get<ChatRequest>(parsed).prompt.messages[0], "tool_calls") ==
        R"([{"id":"c","type":"function","function":{"name":"f","arguments":{"a":1}}}])");
}

TEST_CASE("many calls in the input of a response take time as their number") {
  // The fault: all calls so far are copied for each.
  const std::string call = R"({"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":[1,2,3]}"})";
  const auto begin = std::chrono::steady_clock::now();
  const auto parsed = parse_responses_request(R"({"input":[)" + many(call, 20'000) + "]}", {.vocab_size = 300}, {});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  REQUIRE(std::holds_alternative<ResponsesRequest>(parsed));
  const auto& messages = std::get<ResponsesRequest>(parsed).chat.prompt.messages;
  REQUIRE(messages.size() == 1);
  CHECK(at(messages[0], "tool_calls").if_array()->size() == 20'000);
  CHECK(took.count() < 10);  // a part of a second on an idle machine
}

TEST_CASE("stop strings, words and tools have the same limits in each API") {
  // The faults: a limit that only one of the APIs has.
  const std::string long_text = "\"" + std::string(5000, 's') + "\"";
  CHECK(messages_fault(R"("stop_sequences":)" + long_text) == "stop_sequences");
  CHECK(messages_fault(R"("stop_sequences":[])") == "accepted");
  CHECK(messages_fault(R"("stop_sequences":[""])") == "stop_sequences");
  CHECK(messages_fault(R"("stop":["a","b"],"stop_sequences":[)" + many("\"s\"", 62) + "]") == "accepted");
  CHECK(messages_fault(R"("stop":["a","b"],"stop_sequences":[)" + many("\"s\"", 63) + "]") == "stop_sequences");
  CHECK(responses_fault(R"("stop":)" + long_text) == "stop");
  for (const auto& fault : {messages_fault, responses_fault}) {
    CHECK(fault(R"("n":2)") == "n");
    CHECK(fault(R"("best_of":2)") == "best_of");
    CHECK(fault(R"("best_of":1,"n":1)") == "accepted");
    CHECK(fault(R"("bad_words":[)" + long_text + "]") == "bad_words");
  }
  std::string tools, functions;
  for (int i = 0; i < 1025; ++i) {
    const std::string name = R"("name":"t)" + std::to_string(i) + "\"";
    tools += (i > 0 ? ",{" : "{") + name + R"(,"input_schema":{"type":"object"}})";
    functions += (i > 0 ? R"(,{"type":"function",)" : R"({"type":"function",)") + name + "}";
  }
  CHECK(messages_fault(R"("tools":[)" + tools + "]") == "tools");
  CHECK(responses_fault(R"("tools":[)" + functions + "]") == "tools");
}

TEST_CASE("what each answer has a copy of is limited by the number of answers") {
  // The faults: only one string's length is looked at; prompts do not count; choices do not count.
  const std::string stops = R"("stop":[)" + many("\"" + std::string(4000, 's') + "\"", 16) + "]";
  CHECK(completion_fault(R"("prompt":"x",)" + stops) == "accepted");
  CHECK(completion_fault(R"("prompt":"x","n":128,)" + stops) == "stop");
  CHECK(completion_fault(R"("prompt":[)" + many("\"x\"", 128) + "]," + stops) == "stop");
  const std::string words = R"("bad_words":[)" + many("\"" + std::string(500, 'w') + "\"", 1000) + "]";
  CHECK(completion_fault(R"("prompt":"x","n":128,)" + words) == "accepted");
  CHECK(completion_fault(R"("prompt":[)" + many("\"x\"", 128) + "]," + words) == "bad_words");
}

TEST_CASE("the name of a call that results repeat is short") {
  const std::string name(200, 'n');
  const std::string body = R"({"max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[
      {"type":"tool_use","id":"c","name":")" +
                           name + R"(","input":{}}]},{"role":"user","content":[
      {"type":"tool_result","tool_use_id":"c","content":"r"}]}]})";
  CHECK(fault_in(parse_messages_request(body, {.vocab_size = 300}, {}, false)).ends_with(".name"));
}

TEST_CASE("OVL-06: prompts shown in every answer, with scores at every token, have a limit") {
  // The faults: n does not count; prompt_logprobs do not count; ids of prompts do not.
  ApiServer server("ok");
  const auto refused = [&](const std::string& fields) {
    const auto answer = server.post("/v1/completions", "{" + fields + "}");
    if (answer.status == 200) return std::string("accepted");
    CHECK(answer.status == 400);
    return text_at(json_of(answer.body), "error.param");
  };
  const std::string prompts = R"("prompt":[)" + many("[" + many("97", 150) + "]", 8) + "]";
  CHECK(refused(prompts + R"(,"echo":true,"logprobs":64,"max_tokens":0,"n":128)") == "echo");
  CHECK(refused(prompts + R"(,"prompt_logprobs":64,"max_tokens":0,"n":128)") == "prompt_logprobs");
  CHECK(refused(prompts + R"(,"echo":true,"logprobs":1,"max_tokens":0,"n":2)") == "accepted");
  CHECK(refused(R"("prompt":"x","echo":true,"logprobs":64,"max_tokens":0,"n":128)") == "accepted");
}

TEST_CASE("what is too long for the model is refused before it is made into tokens or text") {
  ApiServer server("ok");
  server.model.infill = text::InfillTokens{text::kImEnd, text::kEnd, text::kToolCall};
  const auto param = [&](const char* path, const std::string& body) {
    const auto answer = server.post(path, body);
    CHECK_MESSAGE(answer.status == 400, answer.body.substr(0, 200));
    return text_at(json_of(answer.body), "error.param");
  };
  CHECK(param("/detokenize", R"({"tokens":[)" + many("97", 201) + "]}") == "tokens");
  server.ok("/detokenize", R"({"tokens":[)" + many("97", 200) + "]}");
  CHECK(param("/tokenize", R"({"prompt":")" + std::string(1 << 20, 'x') + "\"}") == "prompt");
  // The faults: the suffix is not looked at beside ids; it is encoded once for each prompt.
  const std::string suffix = R"(,"suffix":")" + std::string(300, 's') + "\"}";
  CHECK(param("/v1/completions", R"({"prompt":[[97],[98]])" + suffix) == "suffix");
  const std::string long_one = R"(,"suffix":")" + std::string(1 << 20, 's') + "\"}";
  CHECK(param("/v1/completions", R"({"prompt":[[97],[98]])" + long_one) == "suffix");
  CHECK(param("/v1/completions", R"({"prompt":[[97],[)" + many("98", 250) + R"(]],"echo":true})") == "prompt");
  server.ok("/v1/completions", R"({"prompt":["a","b"],"suffix":"sss"})");
  for (const sched::Request& request : server.generator->seen()) {
    CHECK(std::count(request.prompt.begin(), request.prompt.end(), 's') == 3);
  }
}

TEST_CASE("numbers of any size in a call's arguments arrive, and may be sent back") {
  // The faults: wrapped as no JSON in the answer; 400 for the next turn.
  ApiConfig config = ApiServer::default_config();
  config.tool_call_format = text::ToolCallFormat::kMistral;
  ApiServer server(R"([TOOL_CALLS][{"name":"f","arguments":{"n":12345678901234567890123}}])", config, true, 700);
  const auto answer = server.post("/v1/messages", R"({"max_tokens":150,"messages":[{"role":"user","content":"hi"}],
      "tools":[{"name":"f","input_schema":{"type":"object"}}]})");
  CHECK_MESSAGE(answer.body.find(R"("input":{"n":12345678901234567890123})") != std::string::npos, answer.body);
  CHECK(answer.body.find(R"("stop_reason":"tool_use")") != std::string::npos);
  const auto next = parse_chat_request(
      R"({"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":
          {"name":"f","arguments":"{\"n\":12345678901234567890123}"}}]}]})",
      {.vocab_size = 300}, {});
  REQUIRE(std::holds_alternative<ChatRequest>(next));
  CHECK(json_at(std::get<ChatRequest>(next).prompt.messages[0], "tool_calls.0.function.arguments") ==
        R"({"n":1.2345678901234568e+22})");
  const auto stopped = server.post("/v1/messages", R"({"max_tokens":150,"stop_sequences":["789"],
      "messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":{"type":"object"}}]})");
  CHECK(text_at(json_of(stopped.body), "stop_reason") == "stop_sequence");
  CHECK(text_at(json_of(stopped.body), "stop_sequence") == "789");
}

TEST_CASE("errors by the path alone have the shape of that path's API") {
  // The fault: one shape for all.
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
    const JsonValue error = json_of(error_body_at(413, "large", path));
    CHECK(text_at(error, "type") == "error");
    CHECK(text_at(error, "error.type") == "request_too_large");
  }
  CHECK(text_at(json_of(error_body_at(413, "large", "/v1/chat/completions")), "error.type") == "invalid_request_error");
  CHECK(text_at(json_of(error_body_at(400, "what", "")), "error.message") == "what");
  ApiServer server("ok");
  const auto wrong_method = server.get("/v1/messages");
  CHECK(wrong_method.status == 405);
  CHECK(text_at(json_of(wrong_method.body), "type") == "error");
  CHECK(text_at(json_of(server.get("/v1/messages/no").body), "error.type") == "not_found_error");
  CHECK(at(json_of(server.get("/v1/no").body), "type").is_null());
  server.gate->drain();
  CHECK(text_at(json_of(server.post("/v1/messages", "{}").body), "error.type") == "overloaded_error");
}

}  // namespace
}  // namespace tandem::openai
