// The front over the real engine and scheduler, without a model: hashed tokens, whatever the batch.

#include <doctest/doctest.h>

#include <thread>

#include "api/openai/engine_server_for_test.h"

namespace tandem::openai {
namespace {

using testing::RawAnswer;
using testing::RawClient;

TEST_CASE("over the engine a stream is the whole answer, alone and among others") {
  EngineServer server;
  std::vector<std::string> fields, alone;
  for (int i = 0; i < 12; ++i) {
    std::string of_this =
        "\"prompt\":\"" + std::string(static_cast<size_t>(1 + i * 7), static_cast<char>('a' + i)) + "\"";
    of_this += ",\"seed\":1,\"max_tokens\":" + std::to_string(5 + i) + ",\"n\":" + std::to_string(1 + i % 3);
    if (i % 2) of_this += R"(,"logprobs":2,"echo":true)";
    if (i % 4 == 2) of_this += R"(,"stop":["z","mn"])";
    fields.push_back(of_this);
    const RawAnswer answer = server.complete(of_this);
    REQUIRE_MESSAGE(answer.status == 200, answer.body);
    alone.push_back(json_at(json_of(answer.body), "choices"));
  }
  std::vector<std::thread> clients;
  std::atomic<int> num_equal{0};
  for (size_t i = 0; i < fields.size(); ++i) {
    clients.emplace_back([&, i] {
      const RawAnswer answer = server.complete(fields[i]);
      auto parsed = JsonValue::parse(answer.body);
      if (parsed && json_at(*parsed, "choices") == alone[i]) ++num_equal;
    });
  }
  for (auto& client : clients) client.join();
  CHECK(num_equal == 12);
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto events = events_of(server.complete(fields[i] + ",\"stream\":true").body);
    const JsonValue whole = json_of("{\"choices\":" + alone[i] + "}");
    for (size_t c = 0; c < at(whole, "choices").if_array()->size(); ++c) {
      const Streamed streamed = streamed_choice(events, static_cast<int64_t>(c));
      CHECK(streamed.text == text_at(whole, "choices." + std::to_string(c) + ".text"));
      CHECK(streamed.finish_reason == text_at(whole, "choices." + std::to_string(c) + ".finish_reason"));
      CHECK(streamed.num_finishes == 1);
    }
  }
  CHECK(server.wait_idle());
}

// Fails when an answer may go past the context, or when a prompt is cut to fit without being asked to.
TEST_CASE("KVC-07 over the engine: a prompt longer than the context is 400, an answer that fills it ends by length") {
  engine::EngineConfig config = small_config();
  config.sched.max_model_len = 64;
  EngineServer server(config);
  for (const size_t length : {64, 65, 5000}) {
    const RawAnswer refused = server.complete("\"prompt\":\"" + std::string(length, 'p') + "\"");
    CHECK(refused.status == 400);
    CHECK(text_at(json_of(refused.body), "error.param") == "prompt");
    CHECK(text_at(json_of(refused.body), "error.code") == "context_length_exceeded");
  }
  for (const int length : {1, 40, 63}) {
    for (const char* limit : {"", R"(,"max_tokens":1000000000000)"}) {
      const std::string text(static_cast<size_t>(length), 'p');
      const RawAnswer answer = server.complete("\"ignore_eos\":true,\"prompt\":\"" + text + "\"" + limit);
      REQUIRE_MESSAGE(answer.status == 200, answer.body);
      const JsonValue body = json_of(answer.body);
      CHECK(text_at(body, "choices.0.finish_reason") == "length");
      CHECK(int_at(body, "usage.prompt_tokens") == length);
      CHECK(int_at(body, "usage.completion_tokens") == 64 - length);
    }
  }
  const RawAnswer cut = server.complete(R"("truncate_prompt_tokens":10,"max_tokens":2,"prompt":")" +
                                        std::string(500, 'p') + "\"");  // asked for, and told
  CHECK(int_at(json_of(cut.body), "usage.prompt_tokens") == 10);
  CHECK(server.wait_idle());
}

TEST_CASE("API-10 over the engine: a prompt is scored without an answer, in chunks as well") {
  EngineServer server;
  for (const size_t length : {1, 2, 150}) {
    const RawAnswer answer =
        server.complete("\"prompt\":\"" + std::string(length, 'q') + R"(","echo":true,"logprobs":1,"max_tokens":0)");
    REQUIRE_MESSAGE(answer.status == 200, answer.body);
    const JsonValue scored = json_of(answer.body);
    CHECK(text_at(scored, "choices.0.text") == std::string(length, 'q'));
    CHECK(at(scored, "choices.0.logprobs.token_logprobs").if_array()->size() == length);
    CHECK(int_at(scored, "usage.completion_tokens") == 0);
    CHECK(text_at(scored, "choices.0.finish_reason") == "length");
  }
}

TEST_CASE("over the engine usage tells how much of the prompts was cached, once however many tokens follow") {
  EngineServer server;
  const std::string two = "[\"" + std::string(40, 'k') + "\",\"" + std::string(20, 'k') + "\"]";
  server.complete("\"prompt\":\"" + std::string(48, 'k') + "\",\"max_tokens\":1");
  for (const char* stream : {"", R"(,"stream":true,"stream_options":{"include_usage":true})"}) {
    const RawAnswer answer = server.complete("\"max_tokens\":9,\"prompt\":" + two + stream);
    const JsonValue last = *stream ? events_of(answer.body).back() : json_of(answer.body);
    CHECK(int_at(last, "usage.prompt_tokens_details.cached_tokens") == 32 + 16);  // whole blocks of 16
  }
}

TEST_CASE(
    "API-06, API-08 over the engine: who leaves while prompts are computed or tokens come frees blocks and slot") {
  EngineServer server;
  server.step_ms = 2;
  for (int i = 0; i < 12; ++i) {
    RawClient client(server.server->port());
    const std::string prompt(i % 2 ? 800 : 20, static_cast<char>('a' + i));
    const std::string body = R"({"ignore_eos":true,"stream":true,"prompt":")" + prompt + "\"}";
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    client.read_until(i % 2 ? "\r\n\r\n" : "\n\n");
    if (i % 4 < 2)
      client.reset();
    else
      client.close();
    CHECK(server.wait_idle());
    // The level is set a moment after the last request has left.
    while (server.engine.load().num_running > 0) std::this_thread::yield();
  }
  CHECK(server.complete("\"prompt\":\"x\",\"max_tokens\":3").status == 200);
}

TEST_CASE("over the engine a full queue is 503 at once, with Retry-After") {
  engine::EngineConfig config = small_config();
  config.sched.max_num_seqs = 1;
  config.sched.max_queue_length = 1;
  EngineServer server(config);
  server.step_ms = 5;
  std::vector<RawClient> clients;
  const std::string body = R"({"ignore_eos":true,"stream":true,"max_tokens":900,"prompt":"x"})";
  int num_refused = 0;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back(server.server->port());
    clients.back().send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                        "\r\n\r\n" + body);
    const std::string head = clients.back().read_until("\r\n\r\n");
    CHECK_MESSAGE(head.starts_with("HTTP/1.1 "), head);
    if (head.starts_with("HTTP/1.1 503")) {
      ++num_refused;
      CHECK(head.find("Retry-After: ") != std::string::npos);
    }
  }
  CHECK(num_refused >= 3);
  clients.clear();
  CHECK(server.wait_idle());
}

TEST_CASE("over the engine a list of more prompts than may ever wait is 400, and one of as many is taken") {
  engine::EngineConfig config = small_config();
  config.sched.max_queue_length = 3;
  EngineServer server(config);
  const RawAnswer refused = server.complete(R"("max_tokens":1,"prompt":["a","b","c","d"])");
  CHECK(refused.status == 400);
  CHECK(text_at(json_of(refused.body), "error.message") == "prompt: 4 prompts, at most 3 are allowed");
  CHECK(server.complete(R"("max_tokens":1,"n":2,"prompt":["a","b","c"])").status == 200);
}

TEST_CASE("over the engine a request whose step fails ends alone, with an error in its stream") {
  EngineServer server;
  server.executor.fail_items_with('Q');
  const auto bad = server.complete(R"("prompt":"abQ","stream":true)");
  CHECK(text_at(events_of(bad.body).back(), "error.type") == "internal_error");
  CHECK(server.complete(R"("prompt":"abQ")").status == 500);
  CHECK(server.complete(R"("prompt":"abc","max_tokens":3)").status == 200);
}

}  // namespace
}  // namespace tandem::openai
