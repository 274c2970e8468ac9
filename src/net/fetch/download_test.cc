#include "net/fetch/download.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "net/fetch/http_get.h"
#include "net/fetch/scripted_server.h"
#include "net/fetch/sha256.h"

namespace tandem::fetch {
namespace {

using Connection = ScriptedServer::Connection;
using Request = ScriptedServer::Request;

// A folder for one test case.
class Scratch {
 public:
  Scratch() {
    char name[] = "/tmp/fetch_test.XXXXXX";
    TANDEM_CHECK(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }

 private:
  std::string path_;
};

std::string long_text(size_t size, char salt = 0) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 31 + (i >> 8) + static_cast<size_t>(salt)) & 0xff);
  return text;
}

struct Attempt {
  explicit Attempt(const Scratch& scratch, const std::string& url) {
    request.url = url;
    request.path = scratch.path("file");
    request.num_retries = 3;
    request.sleep = [this](int64_t wait_ms) { waits_ms.push_back(wait_ms); };
  }
  Result<Downloaded> run() { return download(request); }

  DownloadRequest request;
  std::vector<int64_t> waits_ms;
};

// A server of one entity that honours Range and If-Range, and breaks the line of the first `num_cuts` replies after
// `cut_bytes` bytes of body.
void serve_entity(Connection& connection, const Request& request, const std::string& body, const std::string& tag,
                  bool is_cut, size_t cut_bytes) {
  size_t first = 0;
  if (request.header("Range").starts_with("bytes=") && request.header("If-Range") == tag)
    first = std::stoul(request.header("Range").substr(6));
  std::string head = first > 0 ? "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " + std::to_string(first) + "-" +
                                     std::to_string(body.size() - 1) + "/" + std::to_string(body.size()) + "\r\n"
                               : "HTTP/1.1 200 OK\r\n";
  head +=
      "ETag: " + tag + "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size() - first) + "\r\n\r\n";
  connection.say(head + (is_cut ? body.substr(first, cut_bytes) : body.substr(first)));
}

TEST_CASE("a file comes whole, with its progress") {
  const std::string body = long_text(300'000);
  ScriptedServer server(
      [&](Connection& connection, const Request&, size_t) { connection.say(reply_text("200 OK", "", body)); });
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  uint64_t last = 0;
  attempt.request.progress = [&](uint64_t done, std::optional<uint64_t> total) {
    CHECK(done >= last);
    CHECK(total == body.size());
    last = done;
    return true;
  };
  attempt.request.sha256 = sha256_of(body);
  const auto result = attempt.run();
  REQUIRE(result);
  CHECK(result.value().size_bytes == body.size());
  CHECK(last == body.size());
  CHECK(scratch.read("file") == body);
  CHECK_FALSE(scratch.has("file.part"));
  CHECK_FALSE(scratch.has("file.part.tag"));
}

TEST_CASE("an empty file is a file") {
  ScriptedServer server(
      [&](Connection& connection, const Request&, size_t) { connection.say(reply_text("200 OK", "", "")); });
  Scratch scratch;
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.has("file"));
}

TEST_CASE("a line cut midway is taken up where it broke") {
  const std::string body = long_text(300'000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
    serve_entity(connection, request, body, "\"v1\"", num_before < 2, 100'000);
  });
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  attempt.request.sha256 = sha256_of(body);
  const auto result = attempt.run();
  REQUIRE(result);
  CHECK(result.value().num_tries == 3);
  CHECK(scratch.read("file") == body);
  REQUIRE(server.requests().size() == 3);
  CHECK(server.requests()[0].header("Range") == "");
  CHECK(server.requests()[1].header("Range") == "bytes=100000-");
  CHECK(server.requests()[1].header("If-Range") == "\"v1\"");
  CHECK(server.requests()[2].header("Range") == "bytes=200000-");
  CHECK(attempt.waits_ms == std::vector<int64_t>{500, 1000});
}

TEST_CASE("a later call takes up what an earlier one left") {
  const std::string body = long_text(300'000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
    serve_entity(connection, request, body, "\"v1\"", num_before == 0, 100'000);
  });
  Scratch scratch;
  Attempt first(scratch, server.url("/a"));
  first.request.num_retries = 0;
  const auto broken = first.run();
  REQUIRE_FALSE(broken);
  CHECK(broken.error().code == ErrorCode::kUnavailable);
  CHECK(scratch.read("file.part") == body.substr(0, 100'000));
  CHECK_FALSE(scratch.has("file"));
  const auto result = Attempt(scratch, server.url("/a")).run();
  REQUIRE(result);
  CHECK(result.value().resumed_at_byte == 100'000);
  CHECK(scratch.read("file") == body);
}

TEST_CASE("what another URL left is not continued") {
  const std::string body = long_text(1000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t) {
    serve_entity(connection, request, body, "\"v1\"", false, 0);
  });
  Scratch scratch;
  scratch.write("file.part", "other bytes");
  scratch.write("file.part.tag", server.url("/b") + "\n\"v1\"\n");
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == body);
}

TEST_CASE("an entity that changed between tries is fetched anew") {
  const std::string old_body = long_text(300'000);
  const std::string new_body = long_text(200'000, 7);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
    if (num_before == 0)
      serve_entity(connection, request, old_body, "\"v1\"", true, 100'000);
    else
      serve_entity(connection, request, new_body, "\"v2\"", false, 0);
  });
  Scratch scratch;
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == new_body);
}

TEST_CASE("without a strong entity tag nothing is continued") {
  const std::string body = long_text(300'000);
  for (const std::string tag : {"W/\"v1\"", ""}) {
    ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
      serve_entity(connection, request, body, tag, num_before == 0, 100'000);
    });
    Scratch scratch;
    REQUIRE(Attempt(scratch, server.url("/a")).run());
    CHECK(scratch.read("file") == body);
    CHECK(server.requests()[1].header("Range") == "");
  }
}

TEST_CASE("a server that sends another range than asked is not believed") {
  const std::string body = long_text(300'000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
    if (num_before == 1) {
      connection.say(reply_text("206 Partial Content", "ETag: \"v1\"\r\nContent-Range: bytes 5-299999/300000\r\n",
                                body.substr(5)));
      return;
    }
    serve_entity(connection, request, body, "\"v1\"", num_before == 0, 100'000);
  });
  Scratch scratch;
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == body);
  CHECK(server.requests().back().header("Range") == "");
}

TEST_CASE("a range of an entity that changed is not put behind the old one's bytes") {
  const std::string old_body = long_text(300'000);
  const std::string new_body = long_text(300'000, 7);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
    if (num_before == 0) return serve_entity(connection, request, old_body, "\"v1\"", true, 100'000);
    if (num_before > 1) return serve_entity(connection, request, new_body, "\"v2\"", false, 0);
    // If-Range is ignored.
    const std::string headers = "ETag: \"v2\"\r\nContent-Range: bytes 100000-299999/300000\r\n";
    connection.say(reply_text("206 Partial Content", headers, new_body.substr(100'000)));
  });
  Scratch scratch;
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == new_body);
}

TEST_CASE("less than the rest is not the end") {
  const std::string body = long_text(300'000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
    if (num_before != 1) return serve_entity(connection, request, body, "\"v1\"", num_before == 0, 100'000);
    const std::string headers = "ETag: \"v1\"\r\nContent-Range: bytes 100000-199999/300000\r\n";
    connection.say(reply_text("206 Partial Content", headers, body.substr(100'000, 100'000)));
  });
  Scratch scratch;
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == body);
  CHECK(server.requests()[2].header("Range") == "bytes=200000-");
}

TEST_CASE("416 to a resumed download starts again") {
  const std::string body = long_text(1000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t num_before) {
    if (num_before == 0)
      connection.say(reply_text("416 Range Not Satisfiable", "Content-Range: bytes */1000\r\n", ""));
    else
      serve_entity(connection, request, body, "\"v1\"", false, 0);
  });
  Scratch scratch;
  scratch.write("file.part", body + "more");
  scratch.write("file.part.tag", server.url("/a") + "\n\"v1\"\n");
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == body);
}

TEST_CASE("a body shorter than promised is never taken for the file") {
  ScriptedServer server([&](Connection& connection, const Request&, size_t) {
    connection.say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000\r\n\r\nonly this");
  });
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  const auto result = attempt.run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::kUnavailable);
  CHECK(result.error().message.find("the line broke") != std::string::npos);
  CHECK(server.requests().size() == 4);
  CHECK_FALSE(scratch.has("file"));
}

TEST_CASE("a checksum that differs names both values and leaves nothing") {
  ScriptedServer server(
      [&](Connection& connection, const Request&, size_t) { connection.say(reply_text("200 OK", "", "abc")); });
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  attempt.request.sha256 = std::string(64, '0');
  const auto result = attempt.run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::kCorrupt);
  // The digest of "abc" in FIPS 180-4's own example.
  CHECK(result.error().message.find("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") !=
        std::string::npos);
  CHECK(result.error().message.find(std::string(64, '0')) != std::string::npos);
  CHECK(server.requests().size() == 1);
  CHECK_FALSE(scratch.has("file"));
  CHECK_FALSE(scratch.has("file.part"));
}

TEST_CASE("a wrong sum of pieces is fetched once more in one") {
  const std::string body = long_text(300'000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t) {
    serve_entity(connection, request, body, "\"v1\"", false, 0);
  });
  Scratch scratch;
  scratch.write("file.part", std::string(1000, 'x'));
  scratch.write("file.part.tag", server.url("/a") + "\n\"v1\"\n");
  Attempt attempt(scratch, server.url("/a"));
  attempt.request.sha256 = sha256_of(body);
  REQUIRE(attempt.run());
  CHECK(server.requests().size() == 2);
  CHECK(scratch.read("file") == body);
}

TEST_CASE("404, 403 and 500 say so; only the last is tried again") {
  const struct {
    const char* status;
    ErrorCode code;
    size_t num_requests;
  } cases[] = {
      {"404 Not Found", ErrorCode::kNotFound, 1},
      {"403 Forbidden", ErrorCode::kInvalidArgument, 1},
      {"500 Internal Server Error", ErrorCode::kUnavailable, 4},
  };
  for (const auto& expected : cases) {
    ScriptedServer server([&](Connection& connection, const Request&, size_t) {
      connection.say(reply_text(expected.status, "", "no such thing here"));
    });
    Scratch scratch;
    const auto result = Attempt(scratch, server.url("/a?secret=1")).run();
    REQUIRE_FALSE(result);
    CHECK(result.error().code == expected.code);
    CHECK(result.error().message.find(std::string(expected.status).substr(0, 3)) != std::string::npos);
    CHECK(result.error().message.find("no such thing here") != std::string::npos);
    CHECK(result.error().message.find("secret") == std::string::npos);
    CHECK(server.requests().size() == expected.num_requests);
    CHECK_FALSE(scratch.has("file.part"));
  }
}

TEST_CASE("429 waits as long as it is told, within reason") {
  const std::string body = long_text(1000);
  ScriptedServer server([&](Connection& connection, const Request&, size_t num_before) {
    if (num_before == 0)
      connection.say(reply_text("429 Too Many Requests", "Retry-After: 7\r\n", ""));
    else if (num_before == 1)
      connection.say(reply_text("503 Service Unavailable", "Retry-After: 86400\r\n", ""));
    else
      connection.say(reply_text("200 OK", "", body));
  });
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  REQUIRE(attempt.run());
  CHECK(attempt.waits_ms == std::vector<int64_t>{7000, 60'000});
}

TEST_CASE("a stall ends in a deadline") {
  ScriptedServer server([&](Connection& connection, const Request&, size_t) {
    connection.say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegun");
    connection.say_nothing();
  });
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  attempt.request.num_retries = 0;
  attempt.request.stall_timeout_s = 1;
  const auto result = attempt.run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::kDeadline);
}

TEST_CASE("redirects are followed, and not for ever") {
  const std::string body = long_text(1000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t) {
    if (request.path == "/a")
      connection.say(reply_text("302 Found", "Location: /b\r\n", "go there"));
    else if (request.path == "/b")
      connection.say(reply_text("200 OK", "", body));
    else
      connection.say(reply_text("302 Found", "Location: /loop\r\n", ""));
  });
  Scratch scratch;
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == body);
  const auto result = Attempt(scratch, server.url("/loop")).run();
  REQUIRE_FALSE(result);
  CHECK(result.error().message.find("redirects") != std::string::npos);
}

TEST_CASE("the token goes to its own host only, also after a way back") {
  std::string origin_url;
  ScriptedServer other([&](Connection& connection, const Request&, size_t) {
    connection.say(reply_text("302 Found", "Location: " + origin_url + "\r\n", ""));
  });
  ScriptedServer server([&](Connection& connection, const Request& request, size_t) {
    if (request.path == "/a")
      connection.say(reply_text("307 Temporary Redirect", "Location: /b\r\n", ""));
    else if (request.path == "/b")
      connection.say(reply_text("302 Found", "Location: " + other.url("/c") + "\r\n", ""));
    else
      connection.say(reply_text("200 OK", "", "done"));
  });
  origin_url = server.url("/d");
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  attempt.request.bearer_token = "hf_secret";
  REQUIRE(attempt.run());
  REQUIRE(server.requests().size() == 3);
  CHECK(server.requests()[0].header("Authorization") == "Bearer hf_secret");
  CHECK(server.requests()[1].header("Authorization") == "Bearer hf_secret");
  CHECK(server.requests()[2].path == "/d");
  CHECK(server.requests()[2].head.find("hf_secret") == std::string::npos);
  REQUIRE(other.requests().size() == 1);
  CHECK(other.requests()[0].head.find("hf_secret") == std::string::npos);
}

TEST_CASE("only http and https, also by redirect") {
  ScriptedServer server([&](Connection& connection, const Request&, size_t) {
    connection.say(reply_text("302 Found", "Location: file:///etc/hostname\r\n", ""));
  });
  Scratch scratch;
  for (const std::string& url : {server.url("/a"), std::string("file:///etc/hostname"),
                                 std::string("ftp://127.0.0.1/x"), std::string("no url at all"), std::string()}) {
    const auto result = Attempt(scratch, url).run();
    REQUIRE_FALSE(result);
    CHECK(result.error().code == ErrorCode::kInvalidArgument);
    CHECK_FALSE(scratch.has("file"));
  }
}

TEST_CASE("nobody there, and no such name") {
  std::string url;
  {
    ScriptedServer server([](Connection&, const Request&, size_t) {});
    url = server.url("/a");
  }
  Scratch scratch;
  const auto refused = Attempt(scratch, url).run();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kUnavailable);
  CHECK(refused.error().message.find("no connection") != std::string::npos);
  const auto unknown = Attempt(scratch, "http://no-such-host.invalid/a").run();
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().message.find("host name is not known") != std::string::npos);
}

TEST_CASE("progress can stop a download; what came is kept") {
  const std::string body = long_text(300'000);
  ScriptedServer server([&](Connection& connection, const Request& request, size_t) {
    serve_entity(connection, request, body, "\"v1\"", false, 0);
  });
  Scratch scratch;
  Attempt attempt(scratch, server.url("/a"));
  attempt.request.progress = [](uint64_t, std::optional<uint64_t>) { return false; };
  const auto result = attempt.run();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::kCancelled);
  CHECK(server.requests().size() == 1);
  CHECK(scratch.has("file.part"));
  REQUIRE(Attempt(scratch, server.url("/a")).run());
  CHECK(scratch.read("file") == body);
}

TEST_CASE("two downloads of one path do not mix") {
  Scratch scratch;
  const int fd = ::open(scratch.path("file.part").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  REQUIRE(flock(fd, LOCK_EX) == 0);
  const auto result = Attempt(scratch, "http://127.0.0.1:9/a").run();
  ::close(fd);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::kUnavailable);
  CHECK(result.error().message.find("another process") != std::string::npos);
}

TEST_CASE("a folder that is not there is an error") {
  Scratch scratch;
  Attempt attempt(scratch, "http://127.0.0.1:9/a");
  attempt.request.path = scratch.path("no/such/folder/file");
  CHECK_FALSE(attempt.run());
}

TEST_CASE("a call gets the body of any status, sends its token and its JSON, and follows no redirect") {
  ScriptedServer server([](ScriptedServer::Connection& out, const ScriptedServer::Request& request, size_t) {
    CHECK(request.header("Authorization") == "Bearer k");
    if (request.path == "/moved")
      out.say("HTTP/1.1 302 Found\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n");
    else if (request.head.starts_with("POST"))
      out.say("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
    else
      out.say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes");
  });
  const auto call = [&](const std::string& path, std::optional<std::string> json) {
    auto answer = http_call({server.url(path), std::move(json), "k"});
    REQUIRE(answer);
    return std::move(answer).value();
  };
  CHECK(call("/", std::nullopt).body == "yes");
  CHECK(call("/", "{}").status == 404);
  CHECK(call("/", "").body == "no");
  CHECK(call("/moved", std::nullopt).status == 302);
  const auto nobody = http_call({"http://127.0.0.1:1/x", "{}", "k"});
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error().code == ErrorCode::kUnavailable);
  CHECK(nobody.error().message.find("POST http://127.0.0.1:1/x: no connection") == 0);
}

TEST_CASE("texts have a limit") {
  ScriptedServer server(
      [&](Connection& connection, const Request&, size_t) { connection.say(reply_text("200 OK", "", "12345")); });
  const auto text = fetch_text(server.url("/a"), "", 5);
  REQUIRE(text);
  CHECK(text.value() == "12345");
  const auto refused = fetch_text(server.url("/a"), "", 4);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kExhausted);
}

TEST_CASE("URLs are shown without what can be secret") {
  CHECK(printable_url("https://me:pass@host/a/b?key=1#x") == "https://host/a/b");
  CHECK(printable_url("https://host/a@b") == "https://host/a@b");
}

}  // namespace
}  // namespace tandem::fetch
