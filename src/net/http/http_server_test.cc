#include "net/http/http_server.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "net/http/http_bench_for_test.h"
#include "net/http/router.h"

namespace tandem::http {
namespace {

using testing::fetch;
using testing::RawAnswer;
using testing::RawClient;
using testing::read_answer;

TEST_CASE("a request is answered on a connection that stays open, whole or byte by byte") {
  Bench bench;
  RawClient client(bench.server->port());
  const std::string request = "POST /echo?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
  client.send(request);
  RawAnswer answer = read_answer(client);
  CHECK(answer.status == 200);
  CHECK(answer.body == "POST a=b hello");
  CHECK(answer.header("content-type") == "text/plain");
  CHECK(answer.header("Connection").empty());
  for (char byte : request) client.send({&byte, 1});
  CHECK(read_answer(client).body == "POST a=b hello");
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
  CHECK(read_answer(client).body == "POST  abcde");
}

TEST_CASE("pipelined requests are answered in order, however long each takes") {
  Bench bench;
  RawClient client(bench.server->port());
  client.send(
      "GET /slow HTTP/1.1\r\nHost: x\r\n\r\nGET /echo?2 HTTP/1.1\r\nHost: x\r\n\r\nGET /echo?3 HTTP/1.1\r\nHost: "
      "x\r\n\r\n");
  Seen slow = bench.next();
  slow.writer->send(200, {}, "first");
  CHECK(read_answer(client).body == "first");
  CHECK(read_answer(client).body == "GET 2 ");
  CHECK(read_answer(client).body == "GET 3 ");
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "GET /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  std::thread sender([&] { client.send(many); });
  bool is_in_order = true;
  for (int i = 0; i < 3000; ++i) is_in_order &= read_answer(client).body == "GET " + std::to_string(i) + " ";
  sender.join();
  CHECK(is_in_order);
}

TEST_CASE("a stream's bytes are exactly the chunks written, each in its own chunk frame") {
  Bench bench;
  RawClient client(bench.server->port());
  client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  Seen seen = bench.next();
  seen.writer->begin_stream(200, {{"Content-Type", "text/event-stream"}}, {});
  CHECK(client.read_until("\r\n\r\n").find("Transfer-Encoding: chunked\r\n") != std::string::npos);
  seen.writer->write("data: {\"a\":1}\n\n");
  CHECK(client.read_until("\n\n\r\n") == "f\r\ndata: {\"a\":1}\n\n\r\n");
  seen.writer->write("data: [DONE]\n\n");
  seen.writer->end();
  seen.writer->write("too late");
  seen.writer->send(200, {}, "too late");
  CHECK(client.read_until("0\r\n\r\n") == "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  client.send("GET /echo?next HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(read_answer(client).body == "GET next ");
}

TEST_CASE("HTTP/1.0 streams end with the connection; keep-alive only when asked for") {
  Bench bench;
  RawClient client(bench.server->port());
  client.send("GET /s HTTP/1.0\r\n\r\n");
  Seen seen = bench.next();
  seen.writer->begin_stream(200, {}, {});
  seen.writer->write("ab");
  seen.writer->write("cd");
  seen.writer->end();
  const std::string head = client.read_until("\r\n\r\n");
  CHECK(head.find("chunked") == std::string::npos);
  CHECK(head.find("Connection: close\r\n") != std::string::npos);
  CHECK(client.read_all() == "abcd");
  RawClient kept(bench.server->port());
  kept.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  CHECK(read_answer(kept).header("Connection") == "keep-alive");
  kept.send("GET /echo HTTP/1.0\r\n\r\n");
  CHECK(read_answer(kept).status == 200);
  CHECK(kept.is_closed_by_peer());
}

TEST_CASE("requests over a limit or not HTTP get an answer that says so, then the connection ends") {
  HttpServerConfig config;
  config.header_limit_bytes = 1000;
  config.body_limit_bytes = 1000;
  config.error_body = [](int status, std::string_view, std::string_view) { return "E" + std::to_string(status); };
  Bench bench(config);
  const auto answer_to = [&](const std::string& bytes) {
    RawClient client(bench.server->port());
    client.send(bytes);
    const RawAnswer answer = read_answer(client);
    CHECK(client.is_closed_by_peer());
    CHECK(answer.body == "E" + std::to_string(answer.status));
    CHECK(answer.header("Connection") == "close");
    return answer.status;
  };
  CHECK(answer_to("GET / HTTP/1.1\r\nX: " + std::string(2000, 'a')) == 431);
  CHECK(answer_to("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'a')) == 413);
  CHECK(answer_to("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + std::string(500000, 'a')) == 413);
  CHECK(answer_to("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'a') + "\r\n") ==
        413);
  CHECK(answer_to("nonsense\r\n\r\n") == 400);
  CHECK(answer_to("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n") == 400);
  CHECK(answer_to("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd") == 400);
  CHECK(answer_to("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc") == 400);
  CHECK(answer_to("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n") == 400);
  CHECK(fetch(bench.server->port(), "GET", "/echo?ok").status == 200);
}

TEST_CASE("an error that the server finds knows the request's path, where that has come") {
  // The fault: an empty path from fail(), or from abandon().
  HttpServerConfig config;
  config.body_limit_bytes = 10;
  config.body_timeout_ms = 200;
  config.error_body = [](int status, std::string_view, std::string_view path) {
    return std::to_string(status) + " at " + std::string(path);
  };
  Bench bench(config);
  const auto answer_to = [&](const std::string& bytes) {
    RawClient client(bench.server->port());
    client.send(bytes);
    return read_answer(client).body;
  };
  CHECK(answer_to("POST /v1/%6dessages?x=/y HTTP/1.1\r\nContent-Length: 11\r\n\r\n") == "413 at /v1/messages");
  CHECK(answer_to("POST /slow HTTP/1.1\r\nContent-Length: 5\r\n\r\na") == "408 at /slow");
  CHECK(answer_to("nonsense\r\n\r\n") == "400 at ");
  RawClient client(bench.server->port());
  client.send("GET /dropped HTTP/1.1\r\n\r\n");
  bench.next().writer.reset();
  CHECK(read_answer(client).body == "500 at /dropped");
}

TEST_CASE("a request that trickles in too slowly gets 408, an idle connection is closed silently") {
  HttpServerConfig config;
  config.header_timeout_ms = 50;
  config.body_timeout_ms = 50;
  config.idle_timeout_ms = 100;
  Bench bench(config);
  RawClient slow_header(bench.server->port()), slow_body(bench.server->port()), idle(bench.server->port());
  slow_header.send("GET / HT");
  slow_body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  CHECK(read_answer(slow_header).status == 408);
  CHECK(read_answer(slow_body).status == 408);
  CHECK(slow_body.is_closed_by_peer());
  CHECK(idle.read_all().empty());
  CHECK(idle.is_closed_by_peer());
}

TEST_CASE("Expect: 100-continue is answered before the body is sent") {
  Bench bench;
  RawClient client(bench.server->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  CHECK(client.read_until("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  CHECK(read_answer(client).body == "POST  ok");
}

TEST_CASE("a client that goes away is noticed while nothing is written: close, reset, half-close") {
  Bench bench;
  for (const bool is_streaming : {false, true}) {
    for (int how = 0; how < 3; ++how) {
      RawClient client(bench.server->port());
      client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
      Seen seen = bench.next();
      Flag gone;
      seen.writer->on_disconnect([&] { gone.is_set = true; });
      if (is_streaming) {
        seen.writer->begin_stream(200, {}, {});
        client.read_until("\r\n\r\n");
      }
      if (how == 0) client.close();
      if (how == 1) client.reset();
      if (how == 2) client.finish_sending();
      CHECK(gone.wait());
      seen.writer->write("ignored");
      Flag late;  // asked for after the fact
      seen.writer->on_disconnect([&] { late.is_set = true; });
      CHECK(late.wait());
    }
  }
  for (int tries = 0; tries < 1000 && bench.server->num_connections() > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(bench.server->num_connections() == 0);
}

TEST_CASE("an answer that is already complete reaches a client that half-closed") {
  Bench bench;
  RawClient client(bench.server->port());
  client.send("GET /echo?x HTTP/1.1\r\nHost: x\r\n\r\n");
  client.finish_sending();
  CHECK(client.read_all().find("GET x ") != std::string::npos);
}

TEST_CASE("a reader slower than the bound is dropped and its memory with it") {
  // The fault: what a client does not read is kept without a bound.
  HttpServerConfig config;
  config.stream_buffer_limit_bytes = 100'000;
  Bench bench(config);
  RawClient client(bench.server->port());
  client.set_receive_buffer(4096);
  client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  Seen seen = bench.next();
  Flag gone;
  seen.writer->on_disconnect([&] { gone.is_set = true; });
  seen.writer->begin_stream(200, {}, {});
  for (int i = 0; i < 20'000 && !gone.is_set; ++i) seen.writer->write(std::string(1000, 'x'));
  CHECK(gone.wait());
}

TEST_CASE("a chunk larger than the bound reaches a client that reads") {
  HttpServerConfig config;
  config.stream_buffer_limit_bytes = 1000;
  Bench bench(config);
  RawClient client(bench.server->port());
  client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  Seen seen = bench.next();
  const std::string large(3'000'000, 'x');
  seen.writer->begin_stream(200, {}, {});
  seen.writer->write(large);
  seen.writer->write("end");
  seen.writer->end();
  client.read_until("\r\n\r\n");
  CHECK(client.read_until("xx\r\n").size() > large.size());
  CHECK(client.read_until("0\r\n\r\n") == "3\r\nend\r\n0\r\n\r\n");
}

TEST_CASE("a silent stream sends its idle text, a busy one need not") {
  Bench bench;
  RawClient client(bench.server->port());
  client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  Seen seen = bench.next();
  seen.writer->begin_stream(200, {}, {20, ": ping\n\n"});
  client.read_until("\r\n\r\n");
  CHECK(client.read_bytes(26) == "8\r\n: ping\n\n\r\n8\r\n: ping\n\n\r\n");
  seen.writer->end();
}

TEST_CASE("an answer that is never given ends as 500, or as a broken stream") {
  Bench bench;
  RawClient client(bench.server->port());
  client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  bench.next();
  CHECK(read_answer(client).status == 500);
  client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  bench.next().writer->begin_stream(200, {}, {});
  client.read_until("\r\n\r\n");
  CHECK(client.read_all() == "");
  CHECK(client.is_closed_by_peer());
}

TEST_CASE("connections over the limit are refused with 503") {
  HttpServerConfig config;
  config.max_connections = 1;
  Bench bench(config);
  RawClient first(bench.server->port());
  first.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(read_answer(first).status == 200);
  RawClient second(bench.server->port());
  const RawAnswer refused = read_answer(second);
  CHECK(refused.status == 503);
  CHECK(refused.header("Retry-After") == "1");
  first.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(read_answer(first).status == 200);
}

TEST_CASE("the router answers 404, 405 with Allow, OPTIONS, and HEAD as GET without a body") {
  Router router([](int status, std::string_view message, std::string_view path) {
    return std::to_string(status) + " " + std::string(message) + (path == "/at/path" ? " at its path" : "");
  });
  const Handler hello = [](HttpRequest request, auto writer) { writer->send(200, {}, "hello " + request.path); };
  router.add("GET", "/hello", hello);
  router.add("GET", "/any/*", hello);
  router.add("POST", "/both", hello);
  router.add("GET", "/both", hello);
  auto server = HttpServer::start({}, router);
  REQUIRE(server);
  const uint16_t port = (*server)->port();
  CHECK(fetch(port, "GET", "/hello?x=y").body == "hello /hello");
  CHECK(fetch(port, "GET", "/any/org%2Fname").body == "hello /any/org/name");
  CHECK(fetch(port, "GET", "/nothing").body == "404 unknown path /nothing");
  CHECK(fetch(port, "GET", "/at/pat%68?x").body == "404 unknown path /at/path at its path");
  const RawAnswer wrong = fetch(port, "POST", "/hello", "{}");
  CHECK(wrong.status == 405);
  CHECK(wrong.header("Allow") == "OPTIONS, GET, HEAD");
  CHECK(fetch(port, "OPTIONS", "/both").header("Allow") == "OPTIONS, GET, HEAD, POST");
  const RawAnswer head = fetch(port, "HEAD", "/hello");
  CHECK(head.status == 200);
  CHECK(head.header("Content-Length") == "12");
  CHECK(head.body.empty());
}

TEST_CASE("stop lets the answer in flight end, refuses new connections, and breaks off what takes too long") {
  Bench bench;
  RawClient idle(bench.server->port()), busy(bench.server->port());
  busy.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  Seen seen = bench.next();
  const uint16_t port = bench.server->port();
  std::thread stopper([&] { bench.server->stop(60'000); });
  CHECK(idle.is_closed_by_peer());
  seen.writer->send(200, {}, "done");
  const RawAnswer answer = read_answer(busy);
  CHECK(answer.body == "done");
  CHECK(answer.header("Connection") == "close");
  stopper.join();
  CHECK(RawClient(port).is_closed_by_peer());

  Bench second;
  RawClient stuck(second.server->port());
  stuck.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
  Seen never = second.next();
  Flag gone;
  never.writer->on_disconnect([&] { gone.is_set = true; });
  second.server->stop(1);
  CHECK(gone.wait());
  never.writer->send(200, {}, "nobody listens");
}

TEST_CASE("many clients on several threads, writers on others") {
  HttpServerConfig config;
  config.num_threads = 3;
  auto server = HttpServer::start(config, [](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    std::thread([path = request.path, writer] {
      writer->begin_stream(200, {}, {});
      for (int i = 0; i < 20; ++i) writer->write(path + std::to_string(i) + ";");
      writer->end();
    }).detach();
  });
  REQUIRE(server);
  std::atomic<int> num_right{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      const std::string path = "/" + std::to_string(c) + "-";
      std::string expected;
      for (int i = 0; i < 20; ++i) expected += path + std::to_string(i) + ";";
      RawClient client((*server)->port());
      for (int i = 0; i < 10; ++i) {
        client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
        if (read_answer(client).body == expected) ++num_right;
      }
    });
  }
  for (auto& client : clients) client.join();
  CHECK(num_right == 80);
  (*server)->stop(10'000);
}

TEST_CASE("an address in use is an error, not an abort") {
  Bench bench;
  HttpServerConfig config;
  config.port = bench.server->port();
  auto second = HttpServer::start(config, [](HttpRequest, auto) {});
  REQUIRE(!second);
  CHECK(second.error().code == ErrorCode::kUnavailable);
  config.host = "192.0.2.1";  // set apart for documentation: no machine has it
  CHECK(!HttpServer::start(config, [](HttpRequest, auto) {}));
}

}  // namespace
}  // namespace tandem::http
