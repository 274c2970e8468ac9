// Clients that mean no good, over raw sockets: whatever they send or do not read, the server's memory stays bounded, it
// says what was wrong, and the next client is served.

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "net/http/http_bench_for_test.h"

namespace tandem::http {
namespace {

using testing::fetch;
using testing::RawAnswer;
using testing::RawClient;
using testing::read_answer;

// Sanitizers keep what is freed for a while, so that a process's size says nothing there.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TANDEM_TEST_KEEPS_FREED 1
#endif
#endif
#ifdef TANDEM_TEST_KEEPS_FREED
constexpr bool kKeepsFreed = true;
#else
constexpr bool kKeepsFreed = false;
#endif

// Of this process, resident now.
double memory_mb() {
  if (kKeepsFreed) return 0;
  std::ifstream file("/proc/self/statm");
  long pages = 0, resident = 0;
  file >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

bool serves_others(const Bench& bench) {
  const RawAnswer answer = fetch(bench.server->port(), "GET", "/echo?next");
  return answer.status == 200 && answer.body == "GET next ";
}

template <class Condition>
bool comes(const Condition& is_so) {
  for (int tries = 0; tries < 3000; ++tries) {
    if (is_so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST_CASE("a head that arrives a byte at a time ends at its own time, however steadily it comes") {
  // The fault: a deadline that each byte puts off.
  HttpServerConfig config;
  config.header_timeout_ms = 300;
  Bench bench(config);
  RawClient slow(bench.server->port());
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<bool> is_over{false};
  std::thread dripper([&] {
    slow.send("GET /echo HTTP/1.1\r\nX-Slow: ");
    while (!is_over) {
      slow.send("a");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  RawClient other(bench.server->port());
  CHECK(comes([&] { return bench.server->num_connections() <= 1; }));
  is_over = true;
  dripper.join();
  const RawAnswer answer = read_answer(slow);
  CHECK((answer.status == 408 || slow.is_closed_by_peer()));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  CHECK(serves_others(bench));
}

TEST_CASE("all bodies being read have a limit together: the one over it is 503, and what has ended counts no more") {
  // The faults: nothing is counted; a body that is done, broken off or refused stays counted.
  HttpServerConfig config;
  config.body_limit_bytes = 1000;
  config.bodies_limit_bytes = 1500;
  Bench bench(config);
  const auto part = [](RawClient& client, size_t size_bytes) {
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + std::string(size_bytes, 'a'));
  };
  for (int round = 0; round < 3; ++round) {
    // Nobody of the last round is left.
    CHECK(comes([&] { return bench.server->num_connections() == 0; }));
    RawClient first(bench.server->port());
    part(first, 900);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it is there before the second
    RawClient second(bench.server->port());
    part(second, 900);
    CHECK(read_answer(second).status == 503);
    first.send(std::string(100, 'b'));
    CHECK(read_answer(first).status == 200);
    RawClient third(bench.server->port());  // the first is still there, its body is not
    part(third, 1000);
    CHECK(read_answer(third).status == 200);
    RawClient leaves(bench.server->port());
    part(leaves, 900);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK(comes([&] { return bench.server->num_connections() == 0; }));
  CHECK(serves_others(bench));
  RawClient last(bench.server->port());
  part(last, 1000);
  CHECK(read_answer(last).status == 200);
}

TEST_CASE("a body that arrives a byte at a time is 408 at its own time, while bytes go on coming") {
  // The fault: a deadline that each byte puts off.
  HttpServerConfig config;
  config.body_timeout_ms = 200;
  Bench bench(config);
  RawClient slow(bench.server->port());
  slow.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
  std::atomic<bool> is_over{false};
  std::thread dripper([&] {
    while (!is_over) {
      slow.send("a");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  CHECK(read_answer(slow).status == 408);  // waits for ten seconds
  is_over = true;
  dripper.join();
  CHECK(serves_others(bench));
}

TEST_CASE(
    "too many header fields, or a head or a field too large, are 431 that says so; as many as allowed are taken") {
  // The faults: no limit of a head's size; none of the number of its fields.
  HttpServerConfig config;
  config.header_limit_fields = 50;
  Bench bench(config);
  const auto answer_to = [&](const std::string& bytes) {
    RawClient client(bench.server->port());
    client.send(bytes);
    return read_answer(client);
  };
  const auto with_fields = [](int count) {
    std::string request = "GET /echo HTTP/1.1\r\n";
    for (int i = 0; i < count; ++i) request += "X-" + std::to_string(i) + ": 1\r\n";
    return request + "\r\n";
  };
  CHECK(answer_to(with_fields(50)).status == 200);
  const RawAnswer many = answer_to(with_fields(51));
  CHECK(many.status == 431);
  CHECK(many.body.find("too many header fields") != std::string::npos);
  CHECK(many.header("Connection") == "close");
  CHECK(answer_to("GET /echo HTTP/1.1\r\nX: " + std::string(20'000, 'a') + "\r\n\r\n").status == 431);
  CHECK(answer_to("GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n").status == 431);
  // Without an end in sight: the answer comes before the head does.
  CHECK(answer_to("GET /echo HTTP/1.1\r\n" + std::string(20'000, 'a')).status == 431);
  std::string trailer = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
  for (int i = 0; i < 60; ++i) trailer += "T-" + std::to_string(i) + ": 1\r\n";
  CHECK(answer_to(trailer + "\r\n").status == 431);
  CHECK(serves_others(bench));
}

TEST_CASE("a giant body is refused by its announced size before it comes, and by its real one while it comes") {
  // The fault: no limit of a body's size.
  HttpServerConfig config;
  config.body_limit_bytes = 1 << 20;
  Bench bench(config);
  RawClient announced(bench.server->port());
  announced.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n");
  const RawAnswer refused = read_answer(announced);
  CHECK(refused.status == 413);
  CHECK(refused.body.find("body is too large") != std::string::npos);
  CHECK(bench.server->num_connections() >= 0);
  const double before_mb = memory_mb();
  RawClient chunked(bench.server->port());
  chunked.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string piece = "10000\r\n" + std::string(65536, 'a') + "\r\n";
  std::thread sender([&] {
    for (int i = 0; i < 1000; ++i) chunked.send(piece);  // 64 MiB, as far as it is let
  });
  CHECK(read_answer(chunked).status == 413);
  chunked.finish_sending();
  sender.join();
  CHECK(memory_mb() - before_mb < 20);
  CHECK(serves_others(bench));
}

TEST_CASE("a chunk of an absurd size, and one whose size overflows, are 4xx") {
  Bench bench;
  for (const char* size : {"ffffffffffffffff", "7fffffffffffffff", "10000000000000000", "-1", ""}) {
    CAPTURE(size);
    RawClient client(bench.server->port());
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(size) + "\r\nabc");
    const int status = read_answer(client).status;
    CHECK((status == 400 || status == 413));
  }
  CHECK(serves_others(bench));
}

TEST_CASE("a flood of pipelined requests whose answers nobody reads is held back, and costs no more than its buffers") {
  // The faults: reading on while requests wait; answering on while answers wait.
  HttpServerConfig config;
  config.stream_buffer_limit_bytes = 200'000;
  Bench bench(config);
  const double before_mb = memory_mb();
  std::vector<RawClient> clients;
  std::vector<std::thread> senders;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(bench.server->port());
    clients.back().set_receive_buffer(4096);
  }
  std::string many;
  for (int i = 0; i < 500; ++i) many += "GET /echo?" + std::string(200, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n";
  std::atomic<int> num_parts{0}, num_sent{0};
  for (RawClient& client : clients) {
    senders.emplace_back([&] {
      for (int i = 0; i < 500; ++i, ++num_parts) client.send(many);  // 59 MB each; blocks
      ++num_sent;
    });
  }
  // Until all of them have been blocked for a second: what the sockets hold is not the server's.
  const auto has_come_to_rest = [&] {
    const int before = num_parts;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return num_parts == before;
  };
  while (num_sent == 0 && !has_come_to_rest()) CHECK(memory_mb() - before_mb < 60);
  CHECK(memory_mb() - before_mb < 60);
  CHECK(num_sent == 0);
  CHECK(serves_others(bench));
  bench.server->stop(0);
  for (std::thread& sender : senders) sender.join();
}

TEST_CASE("many slow readers of endless streams cost their bound each, and are dropped") {
  // The fault: what a client does not read is kept without a bound.
  HttpServerConfig config;
  config.stream_buffer_limit_bytes = 64 << 10;
  Bench bench(config);
  constexpr int kNumClients = 40;
  std::vector<RawClient> clients;
  std::vector<Seen> streams;
  const double before_mb = memory_mb();
  for (int i = 0; i < kNumClients; ++i) {
    clients.emplace_back(bench.server->port());
    clients.back().set_receive_buffer(4096);
    clients.back().send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
    streams.push_back(bench.next());
    streams.back().writer->begin_stream(200, {}, {});
  }
  for (int round = 0; round < 8000; ++round) {
    for (Seen& stream : streams) stream.writer->write(std::string(1000, 'x'));
    if (round % 100 != 0) continue;
    Flag is_caught_up;  // what is on its way to the I/O thread is this test's, not the server's
    streams[0].writer->post([&] { is_caught_up.is_set = true; });
    REQUIRE(is_caught_up.wait());
    CHECK(memory_mb() - before_mb < 60);
  }
  CHECK(comes([&] { return bench.server->num_connections() == 0; }));
  CHECK(serves_others(bench));
}

TEST_CASE("idle connections are bounded in number and in what each costs, and go by themselves") {
  HttpServerConfig config;
  config.max_connections = 300;
  config.idle_timeout_ms = 3000;
  Bench bench(config);
  const double before_mb = memory_mb();
  std::vector<RawClient> idle;
  for (int i = 0; i < 300; ++i) idle.emplace_back(bench.server->port());
  REQUIRE(comes([&] { return bench.server->num_connections() == 300; }));
  CHECK(memory_mb() - before_mb < 20);
  RawClient refused(bench.server->port());
  const RawAnswer answer = read_answer(refused);
  CHECK(answer.status == 503);
  CHECK(answer.body.find("too many connections") != std::string::npos);
  CHECK(answer.header("Retry-After") == "1");
  CHECK(comes([&] { return bench.server->num_connections() == 0; }));
  CHECK(serves_others(bench));
}

}  // namespace
}  // namespace tandem::http
