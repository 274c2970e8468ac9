#include <doctest/doctest.h>

#include "api/openai/api_server_for_test.h"

namespace tandem::openai {
namespace {

TEST_CASE("the prompt may be text, texts, ids or lists of ids; one choice each, in order") {
  ApiServer server;
  server.script = [&](const sched::Request& request, uint32_t) {
    return Script{byte_tokens("<" + server.model.tokenizer.decode(request.prompt, true) + ">"), {}, 0};
  };
  const JsonValue one = server.complete(R"("prompt":"ab")");
  CHECK(text_at(one, "object") == "text_completion");
  CHECK(text_at(one, "id").starts_with("cmpl-"));
  CHECK(text_at(one, "choices.0.text") == "<ab>");
  CHECK(text_at(server.complete(R"("prompt":[97,98])"), "choices.0.text") == "<ab>");
  const JsonValue two = server.complete(R"("prompt":["ab","c"],"n":2)");
  CHECK(at(two, "choices").if_array()->size() == 4);
  const char* expected[] = {"<ab>", "<ab>", "<c>", "<c>"};
  for (int i = 0; i < 4; ++i) {
    const std::string base = "choices." + std::to_string(i);
    CHECK(text_at(two, base + ".text") == expected[i]);
    CHECK(int_at(two, base + ".index") == i);
    CHECK(text_at(two, base + ".finish_reason") == "stop");
  }
  CHECK(int_at(two, "usage.prompt_tokens") == 5);  // two BOS and three letters, each prompt once
  CHECK(int_at(two, "usage.completion_tokens") == 5 + 5 + 4 + 4);
  CHECK(text_at(server.complete(R"("prompt":[[97],[98]])"), "choices.1.text") == "<b>");
}

TEST_CASE("control tokens in a raw prompt are parsed unless the request or the server says otherwise") {
  ApiServer server("x");
  server.complete(R"("prompt":"<|im_end|>")");
  server.complete(R"("prompt":"<|im_end|>","parse_special":false)");
  server.complete(R"("prompt":"a","add_special_tokens":false)");
  const auto seen = server.generator->seen();
  CHECK(seen[0].prompt == std::vector<TokenId>{text::kImStart, text::kImEnd});
  CHECK(seen[1].prompt.size() == 1 + 10);
  CHECK(seen[2].prompt == std::vector<TokenId>{'a'});
  ApiConfig config = ApiServer::default_config();
  config.parse_special = false;
  ApiServer plain("x", config);
  plain.complete(R"("prompt":"<|im_end|>")");
  CHECK(plain.generator->seen()[0].prompt.size() == 11);
  plain.complete(R"("prompt":"<|im_end|>","parse_special":true)");  // the operator has the last word
  CHECK(plain.generator->seen()[1].prompt.size() == 11);
}

// The faults: max_tokens 0 gives a token; the prompt is shown without its logprobs.
TEST_CASE("API-10: echo, logprobs and max_tokens 0 score a prompt; with max_tokens 1 the prompt's part is the same") {
  ApiServer server("Z");
  const std::string base = R"("prompt":"abc","echo":true,"logprobs":1,"max_tokens":)";
  const JsonValue scored = server.complete(base + "0");
  CHECK(text_at(scored, "choices.0.text") == "abc");
  CHECK(text_at(scored, "choices.0.finish_reason") == "length");
  CHECK(int_at(scored, "usage.completion_tokens") == 0);
  CHECK(json_at(scored, "choices.0.logprobs.tokens") == R"(["<|im_start|>","a","b","c"])");
  // scripted_logprob: -0.5 - 0.25 * (token % 7); 97 % 7 = 6, 98 % 7 = 0, 99 % 7 = 1
  CHECK(json_at(scored, "choices.0.logprobs.token_logprobs") == "[null,-2,-0.5,-0.75]");
  CHECK(json_at(scored, "choices.0.logprobs.top_logprobs") == R"([null,{"a":-0.5},{"b":-0.5},{"c":-0.5}])");
  CHECK(json_at(scored, "choices.0.logprobs.text_offset") == "[0,0,1,2]");
  const JsonValue more = server.complete(base + "1");
  CHECK(text_at(more, "choices.0.text") == "abcZ");
  CHECK(json_at(more, "choices.0.logprobs.tokens") == R"(["<|im_start|>","a","b","c","Z"])");
  CHECK(json_at(more, "choices.0.logprobs.text_offset") == "[0,0,1,2,3]");
  CHECK(text_at(server.complete(R"("prompt":"abc","echo":true,"max_tokens":0)"), "choices.0.text") == "abc");
  CHECK(json_at(server.complete(R"("prompt":[97],"echo":true,"max_tokens":0,"logprobs":2)"),
                "choices.0.logprobs.tokens") == R"(["a"])");
}

TEST_CASE("the token itself is always among the top ones; ids may stand for text; bytes name what is no text") {
  ApiServer server("\xE8\xB5\x8B");
  const JsonValue none = server.complete(R"("prompt":"x","logprobs":0,"max_tokens":1)");
  CHECK(json_at(none, "choices.0.logprobs.top_logprobs") == R"([{"bytes:\\xe8":-0.75}])");
  const JsonValue ids =
      server.complete(R"("prompt":"x","logprobs":1,"max_tokens":1,"return_tokens_as_token_ids":true)");
  CHECK(json_at(ids, "choices.0.logprobs.tokens") == R"(["token_id:232"])");
}

// The text between the offsets of two tokens is what the first of them brought.
void check_offsets(const JsonValue::Array& offsets, const std::string& text) {
  int64_t before = 0;
  for (const JsonValue& offset : offsets) {
    int64_t here = -1;
    REQUIRE(offset.as_int64(here));
    CHECK(here >= before);
    CHECK(here <= static_cast<int64_t>(num_code_points(text)));
    before = here;
  }
}

// The faults: offsets begin again with each chunk; an echoed prompt does not count.
TEST_CASE("API-18: text offsets go on from the echoed prompt across chunks, and are those of the whole answer") {
  ApiServer server(
      "de\xE8\xB5\x8B"
      "f");
  const std::string fields = R"("prompt":"a\u8d4bc","echo":true,"logprobs":1,"max_tokens":6)";
  const JsonValue whole = server.complete(fields);
  CHECK(text_at(whole, "choices.0.text") ==
        "a\xE8\xB5\x8B"
        "cde\xE8\xB5\x8B"
        "f");
  CHECK(json_at(whole, "choices.0.logprobs.text_offset") == "[0,0,1,1,1,2,3,4,5,5,5,6]");
  const auto events = events_of(server.post("/v1/completions", "{" + fields + R"(,"stream":true})").body);
  JsonValue::Array offsets, tokens, logprobs;
  const Streamed streamed = streamed_choice(events, 0);
  for (const JsonValue& piece : streamed.logprobs) {
    const auto append = [&piece](JsonValue::Array& to, const char* name) {
      const auto& from = *piece.find(name)->if_array();
      to.insert(to.end(), from.begin(), from.end());
    };
    append(offsets, "text_offset");
    append(tokens, "tokens");
    append(logprobs, "token_logprobs");
  }
  CHECK(streamed.text == text_at(whole, "choices.0.text"));
  CHECK(JsonWriter().value(JsonValue(offsets)).take() == json_at(whole, "choices.0.logprobs.text_offset"));
  CHECK(JsonWriter().value(JsonValue(tokens)).take() == json_at(whole, "choices.0.logprobs.tokens"));
  CHECK(JsonWriter().value(JsonValue(logprobs)).take() == json_at(whole, "choices.0.logprobs.token_logprobs"));
  check_offsets(offsets, streamed.text);
}

TEST_CASE("API-19: prompts of a list have their own logprobs, equal to those of single calls") {
  ApiServer server;
  server.script = [](const sched::Request& request, uint32_t) {
    return Script{{request.prompt.back() + 1, request.prompt.back() + 2, 'x', 'y', 'z'}, {}, 0};
  };
  const std::string rest = R"(,"logprobs":2,"max_tokens":4)";
  const JsonValue both = server.complete(R"("prompt":["a","b"])" + rest);
  const JsonValue a = server.complete(R"("prompt":"a")" + rest);
  const JsonValue b = server.complete(R"("prompt":"b")" + rest);
  for (const char* field : {"text", "logprobs", "finish_reason"}) {
    CHECK(json_at(both, std::string("choices.0.") + field) == json_at(a, std::string("choices.0.") + field));
    CHECK(json_at(both, std::string("choices.1.") + field) == json_at(b, std::string("choices.0.") + field));
  }
  CHECK(text_at(both, "choices.1.finish_reason") == "length");
  CHECK(json_at(both, "choices.0.logprobs") != json_at(both, "choices.1.logprobs"));
}

TEST_CASE("API-25: a prompt of ids that ends inside a character shows only what is generated") {
  ApiServer server("\x98\x80!");
  std::string ids = "[";
  for (TokenId id : byte_tokens("Hello \xF0\x9F")) ids += (ids.size() > 1 ? "," : "") + std::to_string(id);
  ids += "]";
  const JsonValue whole = server.complete(R"("prompt":)" + ids);
  CHECK(text_at(whole, "choices.0.text") == "\xF0\x9F\x98\x80!");
  const auto events = events_of(server.post("/v1/completions", R"({"stream":true,"prompt":)" + ids + "}").body);
  CHECK(streamed_choice(events, 0).text == "\xF0\x9F\x98\x80!");
}

TEST_CASE("API-09: a prompt that is empty, or empty after tokenizing, is refused; the next request works") {
  ApiServer server("ok");
  for (const char* prompt :
       {R"("",  "add_special_tokens":false)", R"([""], "add_special_tokens":false)", "[]", "[[]]", "[[97],[]]"}) {
    const auto answer = server.post("/v1/completions", std::string(R"({"prompt":)") + prompt + "}");
    CHECK_MESSAGE(answer.status == 400, prompt);
    CHECK(text_at(json_of(answer.body), "error.param") == "prompt");
    CHECK(text_at(server.complete(R"("prompt":"x")"), "choices.0.text") == "ok");
  }
  CHECK(server.post("/v1/chat/completions", R"({"messages":[]})").status == 400);
  CHECK(text_at(server.complete(R"("prompt":"")"), "choices.0.text") == "ok");  // from the BOS that the model adds
}

TEST_CASE("streams of several choices and prompts keep each text apart, whatever the order") {
  ApiServer server;
  server.script = [](const sched::Request& request, uint32_t choice) {
    return Script{byte_tokens(std::string(1 + choice * 3, static_cast<char>(request.prompt.back()))), {}, 0};
  };
  const auto answer = server.post(
      "/v1/completions", R"({"prompt":["a","b"],"n":3,"stream":true,"stream_options":{"include_usage":true}})");
  const auto events = events_of(answer.body);
  for (int i = 0; i < 6; ++i) {
    const Streamed streamed = streamed_choice(events, i);
    CHECK(streamed.text == std::string(static_cast<size_t>(1 + (i % 3) * 3), i < 3 ? 'a' : 'b'));
    CHECK(streamed.num_finishes == 1);
  }
  CHECK(int_at(events.back(), "usage.completion_tokens") == 2 * (2 + 5 + 8));
}

}  // namespace
}  // namespace tandem::openai
