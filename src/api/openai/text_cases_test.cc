// Known faults of servers around text, tokens and sizes, each tried on ours; the names are those of the list they come
// from.

#include <doctest/doctest.h>

#include <chrono>

#include "api/openai/api_server_for_test.h"
#include "api/openai/prompt_text.h"

namespace tandem::openai {
namespace {

using testing::RawAnswer;

std::vector<TokenId> completion_ids(const text::TextModel& model, const std::string& text) {
  const PromptText prompt_text(model, 100, true);
  CompletionRequest request;
  request.prompts = {text};
  auto prompt = prompt_text.completion_prompt(request, 0);
  REQUIRE(std::holds_alternative<ReplyPrompt>(prompt));
  return std::get<ReplyPrompt>(prompt).ids;
}

// Fails when the end token that a model's file adds to every text stays on a prompt.
TEST_CASE("TOK-02: a raw prompt has one BOS and no end token, whatever the model's file adds to texts") {
  for (const char* kind : {"llama", "t5"}) {
    text::TokenizerParts parts = text::sentencepiece_parts(kind);
    parts.add_bos = parts.add_eos = true;
    const text::TextModel model = text::must(text::text_model_from_parts(parts, ""));
    const TokenId ab = *model.tokenizer.token_id("▁ab");
    CHECK(completion_ids(model, "ab") == std::vector<TokenId>{1, ab});
    CHECK(completion_ids(model, "<s>ab") == std::vector<TokenId>{1, ab});
    CHECK(completion_ids(model, "ab</s>") == std::vector<TokenId>{1, ab, 2});  // the client's own
    CHECK(completion_ids(model, "") == std::vector<TokenId>{1});
  }
}

TEST_CASE("TOK-02: prompt_tokens of a chat are the template's, with no BOS before its own") {
  ApiServer server("ok");
  REQUIRE(server.model.tokenizer.bos() == text::kImStart);
  const JsonValue answer = server.chat();
  const auto prompt = server.generator->seen()[0].prompt;
  CHECK(prompt[0] == text::kImStart);
  CHECK(prompt[1] != text::kImStart);
  CHECK(int_at(answer, "usage.prompt_tokens") == static_cast<int64_t>(prompt.size()));
}

TEST_CASE("TOK-08: half a character in a body is 400, as token ids it is what it is; the next request works") {
  ApiServer server("ok");
  for (const char* bytes : {"\xE6\xAD", "\xFF", "\xED\xA0\x80", "a\xC3"}) {
    for (const char* path : {"/v1/completions", "/tokenize"}) {
      CHECK(server.post(path, std::string(R"({"prompt":")") + bytes + "\"}").status == 400);
    }
    CHECK(
        server.post("/v1/chat/completions", std::string(R"({"messages":[{"role":"user","content":")") + bytes + "\"}]}")
            .status == 400);
  }
  const JsonValue echoed = server.complete(R"("prompt":[230,173],"echo":true)");
  CHECK(text_at(echoed, "choices.0.text").ends_with("ok"));
  CHECK(text_at(server.ok("/detokenize", R"({"tokens":[230,173]})"), "prompt") == "\uFFFD");
}

// The faults: no limit of the number of stop strings, of the length of one, of stop ids, or of the cache's salt.
TEST_CASE("OVL-06: no single request takes much memory or time, whatever it asks for; the next one works") {
  ApiServer server("ok");
  const auto many = [](const std::string& one, int count) {
    std::string all = one;
    for (int i = 1; i < count; ++i) all += "," + one;
    return all;
  };
  const std::string prompt = R"("prompt":"x",)";
  const std::pair<std::string, int> cases[] = {
      {prompt + R"("n":1000000)", 400},
      {prompt + R"("best_of":1000000,"n":1000000)", 400},
      {prompt + R"("logprobs":262)", 400},
      {prompt + R"("stop":[)" + many("\"s\"", 100'000) + "]", 400},
      {prompt + R"("stop":")" + std::string(1 << 20, 's') + "\"", 400},
      {prompt + R"("stop_token_ids":[)" + many("1", 100'000) + "]", 400},
      {prompt + R"("cache_salt":")" + std::string(1 << 20, 's') + "\"", 400},
      {R"("prompt":")" + std::string(1 << 20, 'p') + "\"", 400},
      {R"("prompt":[)" + many("\"p\"", 100'000) + "]", 400},
      {R"("prompt":[)" + many("1", 1'000'000) + "]", 400},
      {R"("prompt":")" + std::string(64 << 20, 'p') + "\"", 413},
      {prompt + R"("max_tokens":1000000000000)", 200},  // as much as there is room for
  };
  for (const auto& [fields, status] : cases) {
    CAPTURE(fields.substr(0, 60));
    const auto begin = std::chrono::steady_clock::now();
    const RawAnswer answer = server.post("/v1/completions", "{" + fields + "}");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    CHECK_MESSAGE(answer.status == status, answer.body.substr(0, 300));
    CHECK(answer.body.size() < 2000);
    CHECK(took.count() < 5);  // it is a fraction of a second on an idle machine
    CHECK(text_at(server.complete(R"("prompt":"x")"), "choices.0.text") == "ok");
  }
  const std::string messages = many(R"({"role":"user","content":"hi"})", 100'000);
  CHECK(server.post("/v1/chat/completions", R"({"messages":[)" + messages + "]}").status == 400);
}

}  // namespace
}  // namespace tandem::openai
