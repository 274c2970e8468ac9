// What clients ask for beside plain answers: scores of prompts, the best of several, infilling, words that must not
// come, answers that go on where a message ends, deadlines, embeddings.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "api/openai/api_server_for_test.h"
#include "base/base64.h"

namespace tandem::openai {
namespace {

using testing::RawAnswer;

std::string fault_param(const RawAnswer& answer) {
  CHECK_MESSAGE(answer.status == 400, answer.body);
  return text_at(json_of(answer.body), "error.param");
}

TEST_CASE("prompt_logprobs has vLLM's shape in both APIs: null first, then each token's own and the best others") {
  ApiServer server("ok");
  const JsonValue scored = server.complete(R"("prompt":"ab","add_special_tokens":false,"prompt_logprobs":2)");
  // scripted_logprob: b is 98, of rank 98 % 7 + 1; the best are itself and its successor.
  CHECK(json_at(scored, "choices.0.prompt_logprobs") == R"([null,{"98":{"logprob":-0.5,"rank":1,"decoded_token":"b"},)"
                                                        R"("99":{"logprob":-0.75,"rank":2,"decoded_token":"c"}}])");
  CHECK(at(scored, "prompt_logprobs").is_null());
  CHECK(json_at(server.complete(R"("prompt":[97],"prompt_logprobs":0)"), "choices.0.prompt_logprobs") == "[null]");
  CHECK(at(server.complete(R"("prompt":"ab")"), "choices.0").find("prompt_logprobs") == nullptr);

  const JsonValue chat = server.chat(R"("prompt_logprobs":0,"n":2)");
  CHECK(static_cast<int64_t>(at(chat, "prompt_logprobs").if_array()->size()) == int_at(chat, "usage.prompt_tokens"));
  CHECK(at(chat, "choices.0").find("prompt_logprobs") == nullptr);

  // Without an answer; and with an echo that asks for fewer.
  const JsonValue alone = server.complete(R"("prompt":"xyz","prompt_logprobs":1,"max_tokens":0)");
  CHECK(int_at(alone, "usage.completion_tokens") == 0);
  CHECK(text_at(alone, "choices.0.text").empty());
  CHECK(at(alone, "choices.0.prompt_logprobs").if_array()->size() == 4);
  const JsonValue both =
      server.complete(R"("prompt":"ab","prompt_logprobs":5,"echo":true,"logprobs":1,"max_tokens":1)");
  const JsonValue echo = server.complete(R"("prompt":"ab","echo":true,"logprobs":1,"max_tokens":1)");
  CHECK(json_at(both, "choices.0.logprobs") == json_at(echo, "choices.0.logprobs"));
  CHECK(server.generator->seen().back().prompt_logprobs == 1);
}

// The fault: the highest sum, which prefers short answers.
TEST_CASE("best_of generates more and shows the n of the highest mean logprob, best first") {
  ApiServer server;
  // By scripted_logprob "b" has -0.5, "a" -2 and the end token -1: means -0.56, -0.75 and -1.75.
  server.script = [](const sched::Request& request, uint32_t choice) {
    const char* texts[] = {"aaa", "b", "bbbbbbbb"};
    const size_t shift = request.prompt.back() == 'y' ? 1 : 0;
    return Script{byte_tokens(texts[(choice + shift) % 3]), {}, 0};
  };
  const JsonValue best = server.complete(R"("prompt":["x","y"],"best_of":3,"n":2)");
  CHECK(at(best, "choices").if_array()->size() == 4);
  for (const int first : {0, 2}) {
    CHECK(text_at(best, "choices." + std::to_string(first) + ".text") == "bbbbbbbb");
    CHECK(text_at(best, "choices." + std::to_string(first + 1) + ".text") == "b");
  }
  CHECK(int_at(best, "choices.3.index") == 3);
  CHECK(at(best, "choices.0.logprobs").is_null());
  CHECK(int_at(best, "usage.completion_tokens") == 2 * (4 + 2 + 9));  // all that was generated
  const JsonValue echoed = server.complete(R"("prompt":"xaaaaaaaa","best_of":3,"n":1,"echo":true,"logprobs":0)");
  CHECK(text_at(echoed, "choices.0.text") == "xaaaaaaaabbbbbbbb");
  CHECK(server.complete(R"("prompt":"x","best_of":2,"n":2,"stream":false)").find("choices")->if_array()->size() == 2);
}

TEST_CASE("a suffix goes around the answer with the model's tokens for it, or is refused where it has none") {
  ApiServer server("ok");
  CHECK(fault_param(server.post("/v1/completions", R"({"prompt":"a","suffix":"b"})")) == "suffix");
  server.model.infill = text::InfillTokens{text::kImEnd, text::kEnd, text::kToolCall};
  server.complete(R"("prompt":"a","suffix":"bc")");
  const std::vector<TokenId> expected = {text::kImStart, text::kImEnd, 'a', text::kEnd, 'b', 'c', text::kToolCall};
  CHECK(server.generator->seen().back().prompt == expected);
  server.complete(R"("prompt":[97],"suffix":"")");
  CHECK(server.generator->seen().back().prompt == std::vector<TokenId>{text::kImEnd, 'a', text::kEnd, text::kToolCall});
  CHECK(fault_param(server.post("/v1/completions", R"({"prompt":"a","suffix":"b","truncate_prompt_tokens":3})")) ==
        "suffix");
}

TEST_CASE("words that must not come and tokens that alone may come reach the generator") {
  ApiServer server("ok");
  server.chat(R"("bad_words":["hell"," x"],"allowed_token_ids":[7,3,7])");
  const sched::Request request = server.generator->seen().back();
  // "hell" is one token; after a space it is two, so its bare form alone is banned. The same holds for x.
  CHECK(request.sampling.bad_words == std::vector<std::vector<TokenId>>{{text::kHell}, {'x'}});
  CHECK(request.sampling.allowed == std::vector<TokenId>{3, 7});
}

// The fault: the prompt that ends after the template's <|im_end|>.
TEST_CASE("with continue_final_message the prompt ends where the last message does") {
  ApiServer server("ok");
  const auto prompt_after = [&server](const std::string& content) {
    server.ok("/v1/chat/completions", R"({"continue_final_message":true,"messages":[{"role":"user","content":"hi"},)"
                                      R"({"role":"assistant","content":")" +
                                          content + "\"}]}");
    return server.generator->seen().back().prompt;
  };
  const auto text_of = [&server](const std::vector<TokenId>& ids) { return server.model.tokenizer.decode(ids, false); };
  const std::string head = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  CHECK(text_of(prompt_after("Sure: ")) == head + "Sure: ");
  // What looks like the end of a message within one is text.
  const auto prompt = prompt_after("a<|im_end|>\\nb");
  CHECK(text_of(prompt) == head + "a<|im_end|>\nb");
  CHECK(std::count(prompt.begin(), prompt.end(), text::kImEnd) == 1);
  // The fault: the message's text is looked for from the end, where the template writes it as well.
  for (const char* text : {"im_end", "|", "<", "x>"}) CHECK(text_of(prompt_after(text)) == head + text);
  // What the template writes after a message may be what it says.
  CHECK(text_of(prompt_after("m_en")) == head + "m_en");
  CHECK(fault_param(server.post("/v1/chat/completions", R"({"continue_final_message":true,"messages":[)"
                                                        R"({"role":"user","content":" "}]})")) ==
        "continue_final_message");
}

TEST_CASE("a deadline may come in a header; of two the earlier counts; request ids may come in the body") {
  ApiServer server("ok");
  const auto seconds_left = [&](const std::string& fields, const std::string& header) {
    const int64_t now_ns = server.clock.now_ns();
    const RawAnswer answer = server.post("/v1/completions", R"({"prompt":"x")" + fields + "}", header);
    CHECK_MESSAGE(answer.status == 200, answer.body);
    const int64_t deadline_ns = server.generator->seen().back().deadline_ns;
    return deadline_ns == 0 ? 0 : static_cast<double>(deadline_ns - now_ns) * 1e-9;
  };
  CHECK(seconds_left("", "") == 0);
  CHECK(std::abs(seconds_left("", "X-Request-Deadline-Ms: 60000\r\n") - 60) < 5);
  CHECK(std::abs(seconds_left(R"(,"deadline_ms":30000)", "X-Request-Deadline-Ms: 60000\r\n") - 30) < 5);
  CHECK(std::abs(seconds_left(R"(,"deadline_ms":90000)", "x-request-deadline-ms: 60000\r\n") - 60) < 5);
  for (const char* bad : {"x", "-1", "0", "1e30", "5s"}) {
    const auto answer =
        server.post("/v1/completions", R"({"prompt":"x"})", "X-Request-Deadline-Ms: " + std::string(bad) + "\r\n");
    CHECK(fault_param(answer) == "X-Request-Deadline-Ms");
  }
  const std::string body = R"({"prompt":"x","request_id":"mine"})";
  CHECK(server.post("/v1/completions", body).header("X-Request-Id") == "mine");
  CHECK(server.post("/v1/completions", body, "X-Request-Id: its\r\n").header("X-Request-Id") == "its");
}

TEST_CASE("the prefix cache is reset where there is one, and refused where there is none") {
  ApiServer server("ok");
  CHECK(server.post("/reset_prefix_cache", "").status == 200);
  CHECK(server.generator->num_resets == 1);
  CHECK(server.get("/reset_prefix_cache").status == 405);
  server.generator->has_cache = false;
  const RawAnswer answer = server.post("/reset_prefix_cache", "");
  CHECK(answer.status == 501);
  CHECK(text_at(json_of(answer.body), "error.message").find("no prefix cache") != std::string::npos);
}

TEST_CASE("settings are shown as they were given, and not at all where there are none") {
  ApiConfig config = ApiServer::default_config();
  CHECK(ApiServer("ok", config).get("/server_info").status == 404);
  config.settings = R"({"limits":{"max_model_len":200}})";
  CHECK(ApiServer("ok", config).get("/server_info").body == config.settings);
}

TEST_CASE("embeddings: one per input in order, of length 1, as numbers or base64, by the pooling asked for") {
  ApiServer server;
  const JsonValue two = server.ok("/v1/embeddings", R"({"input":["a","bc"],"pooling":"mean","normalize":false})");
  CHECK(text_at(two, "object") == "list");
  CHECK(text_at(two, "model") == "tiny");
  CHECK(json_at(two, "data.0") == R"({"index":0,"object":"embedding","embedding":[0,3,2]})");  // with its BOS
  CHECK(json_at(two, "data.1.embedding") == "[0,3,3]");
  CHECK(json_at(two, "usage") == R"({"prompt_tokens":5,"total_tokens":5})");
  const JsonValue last = server.ok("/v1/embeddings", R"({"input":[97,98]})");
  CHECK(json_at(last, "data.0.embedding") == "[0.6,0.8,0]");
  CHECK(int_at(last, "usage.prompt_tokens") == 2);
  const JsonValue coded = server.ok("/v1/embeddings", R"({"input":[[97],[98]],"encoding_format":"base64"})");
  const auto bytes = from_base64(text_at(coded, "data.1.embedding"));
  REQUIRE(bytes);
  REQUIRE(bytes->size() == 3 * sizeof(float));
  float values[3];
  std::memcpy(values, bytes->data(), sizeof values);
  CHECK(values[0] == 0.6f);
  CHECK(values[1] == 0.8f);
  const sched::Request request = server.generator->seen().back();
  CHECK(request.max_tokens == 0);
  CHECK(request.pooling == sched::Pooling::kLast);

  // As long as the model takes, and no longer: no room is needed for an answer.
  const auto of_length = [&server](size_t length) {
    return server.post("/v1/embeddings", R"({"add_special_tokens":false,"input":")" + std::string(length, 'x') + "\"}");
  };
  CHECK(of_length(200).status == 200);
  CHECK(text_at(json_of(of_length(201).body), "error.code") == "context_length_exceeded");
}

TEST_CASE("embeddings: what is wrong is 400 with the field, what fails or is cancelled ends alone") {
  ApiServer server;
  const std::pair<const char*, const char*> faults[] = {
      {R"({})", "input"},
      {R"({"input":[]})", "input"},
      {R"({"input":[[]]})", "input"},
      {R"({"input":5})", "input"},
      {R"({"input":["a",1]})", "input"},
      {R"({"input":[263]})", "input"},
      {R"({"input":"","add_special_tokens":false})", "input"},
      {R"({"input":"a","dimensions":8})", "dimensions"},
      {R"({"input":"a","pooling":"cls"})", "pooling"},
      {R"({"input":"a","encoding_format":"int8"})", "encoding_format"}};
  for (const auto& [body, param] : faults) {
    CAPTURE(body);
    CHECK(fault_param(server.post("/v1/embeddings", body)) == param);
  }
  CHECK(server.post("/v1/embeddings", R"({"input":"a","model":"none"})").status == 404);
  server.generator->refuse_with(Error{ErrorCode::kUnavailable, "full"});
  CHECK(server.post("/v1/embeddings", R"({"input":["a","b"]})").status == 503);
  server.generator->refuse_with({});
  server.generator->hold(true);
  {
    testing::RawClient client(server.port());
    client.send("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n{\"input\":[\"a\",\"b\"]}");
    client.close();
  }
  server.generator->hold(false);
  CHECK(server.post("/v1/embeddings", R"({"input":["a","b"]})").status == 200);
}

}  // namespace
}  // namespace tandem::openai
