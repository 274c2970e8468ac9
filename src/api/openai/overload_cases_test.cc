// Known faults of servers under more than they can do, each tried on ours over real connections; the names are those of
// the list they come from.

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "api/openai/engine_server_for_test.h"
#include "testing/comes_true.h"

namespace tandem::openai {
namespace {

using testing::comes_true;
using testing::RawAnswer;
using testing::RawClient;

// Memory of the process that no file backs, whether or not it is swapped out.
int64_t own_kib() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("VmSwap:")) kib += std::stoll(line.substr(line.find(':') + 1));
  }
  return kib;
}

void send_completion(RawClient& client, const std::string& fields) {
  const std::string body = "{\"add_special_tokens\":false," + fields + "}";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
}

// The fault: how many wait already is not looked at.
TEST_CASE(
    "OVL-01: of 5000 requests at once those beyond the queue are refused at once, and those inside are answered") {
  engine::EngineConfig config = small_config();
  config.sched.max_num_seqs = 4;
  config.sched.max_queue_length = 16;
  EngineServer server(config);
  server.executor.hang_at_step(0);
  std::vector<RawClient> accepted;
  int num_refused = 0;
  const auto begin = std::chrono::steady_clock::now();
  const int64_t kib_before = own_kib();
  for (int i = 0; i < 5000; ++i) {
    RawClient client(server.server->port());
    send_completion(client, R"("prompt":"x","max_tokens":3,"ignore_eos":true,"stream":true)");
    const std::string head = client.read_until("\r\n\r\n");
    if (head.starts_with("HTTP/1.1 200")) {
      accepted.push_back(std::move(client));
      continue;
    }
    ++num_refused;
    const bool is_refusal = head.starts_with("HTTP/1.1 503") || head.starts_with("HTTP/1.1 429");
    CHECK_MESSAGE(is_refusal, head);
    CHECK(head.find("Retry-After: ") != std::string::npos);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(accepted.size() >= 16);
  CHECK(accepted.size() <= 16 + 4 + 1);  // one more: the step that hangs has begun with it
  CHECK(num_refused + accepted.size() == 5000);
  CHECK(took.count() / 5000 < 0.05);
  CHECK(own_kib() - kib_before < 20 << 10);
  REQUIRE(comes_true([&] { return server.executor.is_hanging(); }));
  server.executor.release_hang();
  for (RawClient& client : accepted) CHECK(client.read_until("[DONE]").find("[DONE]") != std::string::npos);
  CHECK(server.wait_idle());
}

// The faults: some of the refused requests get no answer at all; of some refusals nothing is sent.
TEST_CASE("OVL-02: with several I/O threads each of 4096 requests beyond the queue is answered, run or refused") {
  for (const uint32_t num_threads : {2u, 4u}) {
    engine::EngineConfig config = small_config();
    config.sched.max_num_seqs = 3;
    config.sched.max_queue_length = 4;
    EngineServer server(config);
    http::HttpServerConfig front_config;
    front_config.num_threads = num_threads;
    const auto front = http::HttpServer::start(front_config, [&server](http::HttpRequest request, auto writer) {
      server.gate(std::move(request), std::move(writer));
    });
    REQUIRE(front);
    std::atomic<int> num_done{0}, num_refused{0}, num_other{0};
    std::vector<std::thread> clients;
    for (int c = 0; c < 16; ++c) {
      clients.emplace_back([&, c] {
        for (int i = 0; i < 256; ++i) {
          const std::string prompt(static_cast<size_t>(1 + (c + i) % 40), static_cast<char>('a' + c));
          const RawAnswer answer = testing::fetch((*front)->port(), "POST", "/v1/completions",
                                                  R"({"max_tokens":2,"prompt":")" + prompt + "\"}");
          const bool is_refused = answer.status == 503 || answer.status == 429;
          ++(answer.status == 200 ? num_done : is_refused ? num_refused : num_other);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    CHECK(num_done + num_refused == 4096);
    CHECK(num_other == 0);
    CHECK(num_done > 0);
    CHECK(num_refused > 0);
    CHECK(server.wait_idle());
    CHECK(comes_true([&] { return (*front)->num_connections() == 0; }));
  }
}

// The faults: a request's updates are kept; its reply is. Smaller things are the engine's test's to see.
TEST_CASE("OVL-07: thousands of requests, each tenth cancelled, leave no memory behind") {
  EngineServer server;
  const auto run = [&server](int count, int first) {
    for (int i = first; i < first + count; ++i) {
      const std::string prompt = "unique " + std::to_string(i);
      if (i % 10 != 0) {
        CHECK(server.complete("\"max_tokens\":2,\"prompt\":\"" + prompt + "\"").status == 200);
        continue;
      }
      RawClient client(server.server->port());
      send_completion(client, "\"stream\":true,\"max_tokens\":900,\"ignore_eos\":true,\"prompt\":\"" + prompt + "\"");
      client.read_until("\n\n");
      client.reset();
    }
    CHECK(server.wait_idle());
  };
  run(1000, 0);
  const int64_t before = own_kib();
  run(4000, 1000);
  const int64_t grown = own_kib() - before;
  MESSAGE("grown by ", grown, " KiB");
  CHECK(grown < 4000);  // a kilobyte a request
}

}  // namespace
}  // namespace tandem::openai
