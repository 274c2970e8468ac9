// The front over the real engine and scheduler, without a model: hashed tokens, whatever the batch.

#include <doctest/doctest.h>

#include <mutex>
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

// The faults: a prompt is cut to fit without being asked to; only the engine, which knows no fields, refuses it.
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

// The fault: max_tokens 0 gives a token.
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

// A front that takes a prompt in one step, and one that takes it in many beside others.
struct WholeAndChunked {
  static engine::EngineConfig with_budget(uint32_t tokens) {
    engine::EngineConfig config = small_config();
    config.sched.max_num_batched_tokens = tokens;
    return config;
  }
  EngineServer whole{with_budget(1024)}, chunked{with_budget(16)};
};

// The faults: the chunks' logprobs replaced each other; a prompt that is scored was taken from the prefix cache.
TEST_CASE("API-10, SCH-04 over the engine: a prompt's logprobs are the same whole, streamed, in chunks and cached") {
  WholeAndChunked servers;
  std::vector<RawClient> others;  // take a part of each step's budget
  const std::string body = R"({"ignore_eos":true,"stream":true,"max_tokens":900,"n":4,"prompt":"zz"})";
  others.emplace_back(servers.chunked.server->port());
  others.back().send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\n\r\n" + body);
  others.back().read_until("data: ");
  for (const char* more : {R"("max_tokens":0)", R"("max_tokens":3,"seed":5)"}) {
    const std::string fields =
        "\"prompt\":\"" + std::string(100, 'q') + "rst" + R"(","echo":true,"logprobs":2,)" + more;
    const JsonValue expected = json_of(servers.whole.complete(fields).body);
    CHECK(at(expected, "choices.0.logprobs.token_logprobs").if_array()->size() ==
          103 + static_cast<size_t>(int_at(expected, "usage.completion_tokens")));
    for (int round = 0; round < 2; ++round) {  // the second finds the prompt in the cache
      for (EngineServer* server : {&servers.whole, &servers.chunked}) {
        const JsonValue got = json_of(server->complete(fields).body);
        CHECK(json_at(got, "choices") == json_at(expected, "choices"));
        CHECK(int_at(got, "usage.prompt_tokens_details.cached_tokens") == 0);
        const auto events = events_of(server->complete(fields + ",\"stream\":true").body);
        const Streamed streamed = streamed_choice(events, 0);
        CHECK(streamed.text == text_at(expected, "choices.0.text"));
        // The prompt's scores come at once, in the first event: none of them before it is whole.
        CHECK(at(events[0], "choices.0.logprobs.tokens").if_array()->size() == 103);
        std::string scores;
        for (const JsonValue& piece : streamed.logprobs) {
          const std::string list = json_at(piece, "token_logprobs");
          scores += (scores.empty() ? "" : ",") + list.substr(1, list.size() - 2);
        }
        CHECK("[" + scores + "]" == json_at(expected, "choices.0.logprobs.token_logprobs"));
      }
    }
  }
}

TEST_CASE("over the engine embeddings are the same alone, together, in chunks and when the prompt is cached") {
  WholeAndChunked servers;
  const auto embed = [](const EngineServer& server, const std::string& input, const char* pooling) {
    const RawAnswer answer = testing::fetch(server.server->port(), "POST", "/v1/embeddings",
                                            R"({"pooling":")" + std::string(pooling) + R"(","input":)" + input + "}");
    CHECK_MESSAGE(answer.status == 200, answer.body);
    return json_of(answer.body);
  };
  for (const char* pooling : {"last", "mean"}) {
    std::string list;
    std::vector<std::string> alone;
    for (size_t length : {1, 40, 130, 131}) {
      const std::string input = "\"" + std::string(length, 'e') + "\"";
      alone.push_back(json_at(embed(servers.whole, input, pooling), "data.0.embedding"));
      list += (list.empty() ? "" : ",") + input;
    }
    CHECK(alone[2] != alone[3]);
    for (int round = 0; round < 2; ++round) {
      for (const EngineServer* server : {&servers.whole, &servers.chunked}) {
        const JsonValue together = embed(*server, "[" + list + "]", pooling);
        for (size_t i = 0; i < alone.size(); ++i) {
          CHECK(json_at(together, "data." + std::to_string(i) + ".embedding") == alone[i]);
        }
      }
    }
  }
  CHECK(servers.whole.wait_idle());
}

TEST_CASE("over the engine a reset empties the prefix cache") {
  EngineServer server;
  const auto num_cached = [&server] {
    const RawAnswer answer = server.complete("\"max_tokens\":1,\"prompt\":\"" + std::string(48, 'k') + "\"");
    return int_at(json_of(answer.body), "usage.prompt_tokens_details.cached_tokens");
  };
  CHECK(num_cached() == 0);
  CHECK(num_cached() == 32);
  CHECK(testing::fetch(server.server->port(), "POST", "/reset_prefix_cache").status == 200);
  CHECK(num_cached() == 0);
  CHECK(num_cached() == 32);
}

// The faults: an end token that stops with ignore_eos too; min_tokens not given to the generator.
TEST_CASE("BEN-06: lengths that ignore_eos and min_tokens force are exact, of every request") {
  EngineServer server;
  server.executor.set_next_token([](const sched::BatchItem& item) {
    const auto& banned = item.sampling->banned;
    return std::ranges::find(banned, text::kEnd) == banned.end() ? text::kEnd : 'x';
  });
  const auto num_tokens = [&server](const std::string& fields, bool is_stream) {
    const RawAnswer answer = server.complete(
        fields + (is_stream ? R"(,"stream":true,"stream_options":{"include_usage":true})" : R"(,"stream":false)"));
    const JsonValue last = is_stream ? events_of(answer.body).back() : json_of(answer.body);
    return int_at(last, "usage.completion_tokens");
  };
  for (const bool is_stream : {false, true}) {
    for (int length : {1, 2, 17, 128, 300}) {
      const std::string limit = R"("prompt":"p","max_tokens":)" + std::to_string(length);
      CHECK(num_tokens(limit, is_stream) == 1);
      CHECK(num_tokens(limit + R"(,"ignore_eos":true)", is_stream) == length);
      CHECK(num_tokens(limit + R"(,"ignore_eos":true,"min_tokens":)" + std::to_string(length), is_stream) == length);
      CHECK(num_tokens(limit + R"(,"min_tokens":)" + std::to_string(length), is_stream) == length);
      CHECK(num_tokens(R"("prompt":"p","max_tokens":900,"min_tokens":)" + std::to_string(length), is_stream) ==
            length + 1);
    }
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

TEST_CASE("over the engine a full queue refuses before a body is looked at, and takes requests again when it is not") {
  engine::EngineConfig config = small_config();
  config.sched.max_num_seqs = 1;
  config.sched.max_queue_length = 1;
  EngineServer server(config);
  CHECK(server.complete("nonsense").status == 400);
  server.step_ms = 5;
  std::vector<RawClient> clients;
  const std::string body = R"({"ignore_eos":true,"stream":true,"max_tokens":900,"prompt":"x"})";
  while (server.engine.load().num_waiting == 0) {
    clients.emplace_back(server.server->port());
    clients.back().send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                        "\r\n\r\n" + body);
    CHECK(clients.back().read_until("\r\n\r\n").starts_with("HTTP/1.1 "));
  }
  const RawAnswer refused = server.complete("nonsense");
  CHECK(refused.status == 503);
  CHECK(text_at(json_of(refused.body), "error.type") == "overloaded_error");
  const int wait_s = std::stoi(refused.header("Retry-After"));
  CHECK(wait_s >= 1);
  CHECK(wait_s <= 90);
  clients.clear();
  CHECK(server.wait_idle());
  CHECK(server.complete("nonsense").status == 400);
}

// The faults: the request's priority is not handed on; the order does not look at it.
TEST_CASE("SCH-06 over the engine: the urgent one of many that wait is next; what is no priority is 400") {
  engine::EngineConfig config = small_config();
  config.sched.max_num_seqs = 1;
  EngineServer server(config);
  server.step_ms = 2;
  for (const char* wrong : {"\"high\"", "1.5", "99999999999", "[1]"}) {
    const RawAnswer answer = server.complete(std::string(R"("prompt":"x","priority":)") + wrong);
    CHECK_MESSAGE(answer.status == 400, wrong);
    CHECK(text_at(json_of(answer.body), "error.param") == "priority");
  }
  const auto open = [&](const char* priority) {
    RawClient client(server.server->port());
    const std::string fields = R"({"ignore_eos":true,"stream":true,"max_tokens":8,"prompt":"x","priority":)";
    const std::string body = fields + priority + "}";
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    client.read_until("\r\n\r\n");
    return client;
  };
  std::mutex mutex;
  std::vector<std::string> order;  // of first tokens
  std::vector<std::thread> readers;
  const auto start = [&](const char* priority, std::string name) {
    readers.emplace_back([&, name, client = std::make_shared<RawClient>(open(priority))] {
      client->read_until("data: ");
      {
        const std::lock_guard lock(mutex);
        order.push_back(name);
      }
      client->read_until("[DONE]");
    });
  };
  server.step_ms = 20;
  start("0", "running");
  for (int i = 0; i < 10; ++i) start("5", "low");
  start("1", "high");
  for (std::thread& reader : readers) reader.join();
  REQUIRE(order.size() == 12);
  CHECK(order[0] == "running");
  // One more may have begun before it came.
  const auto high = std::ranges::find(order, "high") - order.begin();
  CHECK(high <= 3);
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

TEST_CASE("over the engine a list of more tokens than may ever wait is 400, a single prompt of as many is taken") {
  // The fault: 503 for a full queue, whose Retry-After brought the same answer each time.
  engine::EngineConfig config = small_config();
  config.sched.max_queued_tokens = 8;
  EngineServer server(config);
  const std::string list = R"("prompt":[[1,2,3],[1,2,3],[1,2,3]])";
  const RawAnswer refused = server.complete(R"("max_tokens":1,)" + list);
  CHECK(refused.status == 400);
  const std::string why = "9 tokens in 3 prompts, at most 8 may wait: send fewer at once";
  CHECK(text_at(json_of(refused.body), "error.message") == why);
  CHECK(server.complete(R"("max_tokens":1,"prompt":[1,2,3,1,2,3,1,2,3])").status == 200);
  CHECK(server.complete(R"("max_tokens":1,"prompt":[[1,2,3],[1,2,3]])").status == 200);
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
