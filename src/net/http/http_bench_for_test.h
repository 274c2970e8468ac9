#pragma once
// Bench: a server whose requests a test answers itself.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "net/http/http_server.h"
#include "testing/raw_client.h"

namespace tandem::http {

// What the tests' handler saw, in order.
struct Seen {
  HttpRequest request;
  std::shared_ptr<ResponseWriter> writer;
};

// A server whose requests the test answers itself, one after the other.
struct Bench {
  BoundedQueue<Seen> seen{100};
  std::unique_ptr<HttpServer> server;

  explicit Bench(HttpServerConfig config = {}) {
    auto started = HttpServer::start(std::move(config), [this](HttpRequest request, auto writer) {
      if (request.path == "/echo") {
        writer->send(200, {{"Content-Type", "text/plain"}}, request.method + " " + request.query + " " + request.body);
      } else {
        seen.try_push(Seen{std::move(request), std::move(writer)});
      }
    });
    REQUIRE(started);
    server = std::move(started).value();
  }
  ~Bench() { server->stop(0); }

  Seen next() {
    for (int tries = 0; tries < 100; ++tries) {
      auto items = seen.wait_drain(0.1);
      for (auto& item : items) waiting.push_back(std::move(item));
      if (waiting.empty()) continue;
      Seen first = std::move(waiting.front());
      waiting.erase(waiting.begin());
      return first;
    }
    REQUIRE_MESSAGE(false, "no request came");
    return {};
  }
  std::vector<Seen> waiting;
};

// Set from a callback on another thread, waited for here.
struct Flag {
  std::atomic<bool> is_set{false};
  bool wait() {
    for (int tries = 0; tries < 1000 && !is_set; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return is_set;
  }
};

}  // namespace tandem::http
