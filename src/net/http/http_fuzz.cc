// libFuzzer: any bytes as what a client sends, over a connection of 127.0.0.1, first in one piece and then in pieces.
// Whatever comes, the server answers with whole answers or closes, and the pieces make no difference. The first byte
// of the input says how large the pieces are.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_safety.h"
#include "net/http/http_server.h"

using namespace tandem;
using namespace tandem::http;

namespace {

// What the handler was asked, in order.
struct Seen {
  bool is_head = false;
  std::string text;
  bool operator==(const Seen&) const = default;
};

Mutex seen_mutex;
std::vector<Seen> seen GUARDED_BY(seen_mutex);

void handle(HttpRequest request, const std::shared_ptr<ResponseWriter>& writer) {
  std::string text = request.method + " " + request.path + "?" + request.query + "\n";
  for (const auto& [name, value] : request.headers) text += name + ": " + value + "\n";
  text += "\n" + request.body;
  const bool streams = request.path.starts_with("/s");
  {
    Lock lock(seen_mutex);
    seen.push_back({request.method == "HEAD", text});
  }
  TANDEM_CHECK(request.body.size() <= 4000);
  if (!streams) {
    writer->send(request.path == "/204" ? 204 : 200, {{"X-Size", std::to_string(text.size())}}, "ok " + request.query);
    return;
  }
  writer->begin_stream(200, {}, {});
  for (const char* chunk : {"one", "", "two"}) writer->write(chunk);
  writer->end();
}

const HttpServer& server() {
  static const std::unique_ptr<HttpServer> running = [] {
    set_log(LogLevel::kError, LogFormat::kText);
    HttpServerConfig config;
    config.header_limit_bytes = 1000;
    config.body_limit_bytes = 4000;
    auto started = HttpServer::start(config, handle);
    TANDEM_CHECK(static_cast<bool>(started));
    return std::move(started).value();
  }();
  return *running;
}

class Client {
 public:
  Client() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server().port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    TANDEM_CHECK(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    // Closed by reset: else thousands of runs a second use up the ports.
    const linger off = {1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
  }
  ~Client() { close(socket_); }

  void send_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the server has refused what came and closed
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void finish_sending() { shutdown(socket_, SHUT_WR); }

  // All until the server closes, which it has to.
  std::string read_all() {
    std::string all;
    char buffer[4096];
    while (true) {
      pollfd wait = {socket_, POLLIN, 0};
      TANDEM_CHECK(poll(&wait, 1, 20'000) == 1);
      const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
      if (got <= 0) return all;
      all.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  int socket_;
};

std::string_view take_line(std::string_view& text) {
  const size_t end = text.find("\r\n");
  TANDEM_CHECK(end != std::string_view::npos);
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 2);
  return line;
}

size_t number(std::string_view digits, int base) {
  size_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  TANDEM_CHECK(read.ec == std::errc() && read.ptr == digits.data() + digits.size());
  return value;
}

struct Answer {
  size_t status = 0;
  std::string body;
};

std::string take_chunks(std::string_view& text) {
  std::string body;
  while (true) {
    const size_t size = number(take_line(text), 16);
    TANDEM_CHECK(text.size() >= size + 2);
    body += text.substr(0, size);
    text.remove_prefix(size);
    TANDEM_CHECK(take_line(text).empty());
    if (size == 0) return body;
  }
}

// One answer from the front of `text`, which must hold all of it.
Answer take_answer(std::string_view& text, bool is_head) {
  Answer answer;
  const std::string_view first = take_line(text);
  TANDEM_CHECK(first.starts_with("HTTP/1.1 ") || first.starts_with("HTTP/1.0 "));
  answer.status = number(first.substr(9, 3), 10);
  size_t length = SIZE_MAX;
  bool is_chunked = false;
  for (std::string_view line = take_line(text); !line.empty(); line = take_line(text)) {
    if (line.starts_with("Content-Length: ")) length = number(line.substr(16), 10);
    is_chunked |= line == "Transfer-Encoding: chunked";
  }
  if (is_head || answer.status == 204 || answer.status == 100) return answer;
  if (is_chunked) {
    answer.body = take_chunks(text);
    return answer;
  }
  if (length == SIZE_MAX) length = text.size();  // a stream of HTTP/1.0: to the end
  TANDEM_CHECK(text.size() >= length);
  answer.body = text.substr(0, length);
  text.remove_prefix(length);
  return answer;
}

struct Talk {
  std::vector<Seen> requests;
  std::vector<std::string> bodies;  // of the requests' answers
  bool is_refused = false;          // the last answer is the server's own refusal
};

Talk talk(std::string_view input, size_t piece) {
  {
    Lock lock(seen_mutex);
    seen.clear();
  }
  std::string all;
  {
    Client client;
    for (size_t at = 0; at < input.size(); at += piece) client.send_all(input.substr(at, piece));
    client.finish_sending();
    all = client.read_all();
  }
  Talk talked;
  {
    Lock lock(seen_mutex);
    talked.requests = seen;
  }
  std::string_view rest = all;
  while (!rest.empty()) {
    TANDEM_CHECK(!talked.is_refused);
    const size_t index = talked.bodies.size();
    const bool is_own = index < talked.requests.size();
    Answer answer = take_answer(rest, is_own && talked.requests[index].is_head);
    if (answer.status == 100) continue;
    talked.is_refused = answer.status >= 400;
    TANDEM_CHECK(talked.is_refused || is_own);
    if (!talked.is_refused) talked.bodies.push_back(std::move(answer.body));
  }
  return talked;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 20'000) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Talk whole = talk(input, input.size() + 1);
  // Not so many that one input takes seconds.
  const Talk pieces = talk(input, std::max<size_t>(1 + data[0] % 64, input.size() / 100));
  TANDEM_CHECK(whole.requests == pieces.requests);
  // A refused client may lose what was under way to it; one that is not loses nothing.
  if (whole.is_refused || pieces.is_refused) return 0;
  TANDEM_CHECK(whole.bodies.size() == whole.requests.size());
  TANDEM_CHECK(whole.bodies == pieces.bodies);
  return 0;
}
