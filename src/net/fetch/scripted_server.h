#pragma once
// ScriptedServer: an HTTP server for tests, on loopback, that says exactly the bytes it is told to, and ends a
// connection wherever it is told to. One thread, one request per connection.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"

namespace tandem::fetch {

class ScriptedServer {
 public:
  struct Request {
    std::string path;
    std::string head;  // the whole head as it came

    // A header's value; "" when it is absent.
    std::string header(const std::string& name) const {
      const size_t at = head.find("\r\n" + name + ": ");
      if (at == std::string::npos) return "";
      const size_t start = at + 2 + name.size() + 2;
      return head.substr(start, head.find("\r\n", start) - start);
    }
  };

  class Connection {
   public:
    explicit Connection(int fd) : fd_(fd) {}
    void say(std::string_view bytes) { (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
    // Until the client gives up.
    void say_nothing() {
      char byte;
      while (recv(fd_, &byte, 1, 0) > 0) {
      }
    }

   private:
    int fd_;
  };

  // `num_before` is how many requests came before this one. Called on the server's thread.
  using Script = std::function<void(Connection&, const Request&, size_t num_before)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    TANDEM_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    TANDEM_CHECK(listen(listener_, 16) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }

  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  std::string url(const std::string& path) const { return "http://127.0.0.1:" + std::to_string(port_) + path; }

  std::vector<Request> requests() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    int fd = -1;
    while ((fd = accept(listener_, nullptr, nullptr)) >= 0) {
      Request request;
      char buffer[4096];
      ssize_t got = 0;
      while (request.head.find("\r\n\r\n") == std::string::npos && (got = recv(fd, buffer, sizeof buffer, 0)) > 0)
        request.head.append(buffer, static_cast<size_t>(got));
      const size_t start = request.head.find(' ') + 1;
      request.path = request.head.substr(start, request.head.find(' ', start) - start);
      size_t num_before = 0;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        num_before = requests_.size();
        requests_.push_back(request);
      }
      Connection connection(fd);
      script_(connection, request, num_before);
      shutdown(fd, SHUT_WR);
      // Wait for the client's end: closing with unread bytes would reset the line before it has read ours.
      while (recv(fd, buffer, sizeof buffer, 0) > 0) {
      }
      close(fd);
    }
  }

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

// A reply with its Content-Length; `headers` are whole lines, each with its "\r\n".
inline std::string reply_text(const std::string& status, const std::string& headers, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

}  // namespace tandem::fetch
