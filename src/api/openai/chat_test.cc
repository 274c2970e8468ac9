#include <doctest/doctest.h>

#include "api/openai/api_server_for_test.h"

namespace tandem::openai {
namespace {

TEST_CASE("a chat is answered whole, with usage, from the rendered template") {
  ApiServer server("Hello!");
  const JsonValue answer = server.chat(R"("model":"tiny")");
  CHECK(text_at(answer, "object") == "chat.completion");
  CHECK(text_at(answer, "model") == "tiny");
  CHECK(text_at(answer, "id").starts_with("chatcmpl-"));
  CHECK(text_at(answer, "choices.0.message.role") == "assistant");
  CHECK(text_at(answer, "choices.0.message.content") == "Hello!");
  CHECK(text_at(answer, "choices.0.finish_reason") == "stop");
  const std::vector<TokenId> prompt = server.generator->seen()[0].prompt;
  CHECK(server.model.tokenizer.decode(prompt, false) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  CHECK(int_at(answer, "usage.prompt_tokens") == static_cast<int64_t>(prompt.size()));
  CHECK(int_at(answer, "usage.completion_tokens") == 7);  // six letters and the end token
  CHECK(int_at(answer, "usage.total_tokens") == static_cast<int64_t>(prompt.size()) + 7);
}

TEST_CASE("a chat streams role, tokens, end, usage when asked for, [DONE], with one id") {
  ApiServer server("Hi");
  const auto answer = server.post("/v1/chat/completions",
                                  ApiServer::chat_body(R"("stream":true,"stream_options":{"include_usage":true})"));
  CHECK(answer.status == 200);
  CHECK(answer.header("Content-Type") == "text/event-stream");
  const auto events = events_of(answer.body);
  REQUIRE(events.size() == 5);
  for (const JsonValue& event : events) {
    CHECK(text_at(event, "object") == "chat.completion.chunk");
    CHECK(text_at(event, "id") == text_at(events[0], "id"));
    CHECK(int_at(event, "created") == int_at(events[0], "created"));
  }
  CHECK(json_at(events[0], "choices.0.delta") == R"({"role":"assistant","content":""})");
  CHECK(json_at(events[1], "choices.0.delta") == R"({"content":"H"})");
  CHECK(json_at(events[2], "choices.0.delta") == R"({"content":"i"})");
  CHECK(json_at(events[3], "choices.0.delta") == "{}");
  CHECK(text_at(events[3], "choices.0.finish_reason") == "stop");
  CHECK(json_at(events[4], "choices") == "[]");
  CHECK(int_at(events[4], "usage.completion_tokens") == 3);
  for (int i = 0; i < 4; ++i) CHECK(events[i].find("usage")->is_null());
}

TEST_CASE("contents may be parts; tools and variables reach the template; what is not text is refused by name") {
  ApiServer server;
  const auto prompt_of = [&](const std::string& body) {
    const auto answer = server.post("/tokenize", body);
    CHECK_MESSAGE(answer.status == 200, answer.body);
    std::vector<TokenId> ids;
    const JsonValue json = json_of(answer.body);
    for (const JsonValue& id : *at(json, "tokens").if_array()) {
      int64_t value = 0;
      id.as_int64(value);
      ids.push_back(static_cast<TokenId>(value));
    }
    return server.model.tokenizer.decode(ids, false);
  };
  CHECK(
      prompt_of(R"({"messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                      {"role":"assistant","content":null}],"add_generation_prompt":false})") ==
      "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
  const auto refusal = [&](const std::string& fields) {
    const auto answer = server.post("/v1/chat/completions", "{" + fields + "}");
    CHECK(answer.status == 400);
    return text_at(json_of(answer.body), "error.message");
  };
  CHECK(refusal(R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])") ==
        "messages[0].content: parts of type \"image_url\" are not supported, only \"text\"");
  CHECK(refusal(R"("messages":[{"role":"user","content":"x"}],"tools":[],"tool_choice":"required")") ==
        "tool_choice: asks for a call, but there are no tools");
  CHECK(refusal(R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])")
            .starts_with("messages[0].tool_calls[0].function.arguments: expected a string that holds a JSON object"));
}

TEST_CASE("without a chat template chat says what to do, completions work") {
  ApiServer server("ok", ApiServer::default_config(), false);
  const auto answer = server.post("/v1/chat/completions", ApiServer::chat_body());
  CHECK(answer.status == 400);
  CHECK(text_at(json_of(answer.body), "error.message").find("--chat-template FILE") != std::string::npos);
  CHECK(text_at(server.complete(R"("prompt":"x")"), "choices.0.text") == "ok");
}

TEST_CASE("chat logprobs carry text, bytes and alternatives of each token, also when its text is held back") {
  ApiServer server("a\xE8\xB5\x8B");  // a character of three byte tokens
  const std::string fields = R"("logprobs":true,"top_logprobs":2)";
  const JsonValue whole = server.chat(fields);
  const auto* content = at(whole, "choices.0.logprobs.content").if_array();
  REQUIRE(content);
  REQUIRE(content->size() == 5);
  CHECK(json_at((*content)[0], "bytes") == "[97]");
  CHECK(text_at((*content)[0], "token") == "a");
  CHECK(json_at((*content)[1], "bytes") == "[232]");
  CHECK(text_at((*content)[1], "token") == "\xEF\xBF\xBD");
  CHECK(json_at((*content)[0], "top_logprobs.1.token") == R"("b")");
  CHECK(json_at((*content)[0], "logprob") == "-2");  // 97 % 7 = 6: -0.5 - 1.5
  for (size_t per_step : {1, 3}) {
    server.generator->set_tokens_per_step(per_step);
    const auto answer = server.post("/v1/chat/completions", ApiServer::chat_body(fields + R"(,"stream":true)"));
    const Streamed streamed = streamed_choice(events_of(answer.body), 0);
    CHECK(JsonWriter().value(JsonValue(streamed.logprobs)).take() == json_at(whole, "choices.0.logprobs.content"));
    CHECK(streamed.text == text_at(whole, "choices.0.message.content"));
  }
}

TEST_CASE("return_token_ids gives the ids of prompt and answer, in streams once and as they come") {
  ApiServer server("ab");
  const JsonValue whole = server.chat(R"("return_token_ids":true)");
  CHECK(json_at(whole, "choices.0.token_ids") == "[97,98,261]");
  const std::string prompt = json_at(whole, "prompt_token_ids");
  CHECK(prompt.starts_with("[259,"));
  const auto events = events_of(
      server.post("/v1/chat/completions", ApiServer::chat_body(R"("return_token_ids":true,"stream":true)")).body);
  CHECK(json_at(events[0], "prompt_token_ids") == prompt);
  CHECK(json_at(events[1], "choices.0.token_ids") == "[97]");
  CHECK(json_at(events[3], "choices.0.token_ids") == "[261]");
}

TEST_CASE("a silent stream keeps the line open with comments, and headers come at admission") {
  ApiConfig config = ApiServer::default_config();
  config.ping_interval_ms = 20;
  ApiServer server("x", config);
  server.generator->hold(true);
  testing::RawClient client(server.port());
  const std::string body = ApiServer::chat_body(R"("stream":true)");
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  CHECK(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(client.read_bytes(26) == "8\r\n: ping\n\n\r\n8\r\n: ping\n\n\r\n");
  server.generator->hold(false);
  CHECK(client.read_until("[DONE]\n\n").find(R"("content":"x")") != std::string::npos);
}

}  // namespace
}  // namespace tandem::openai
