// The server through TLS, with the openssl program's certificates and OpenSSL as the client.

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>

#include "net/http/http_bench_for_test.h"

namespace tandem::http {
namespace {

using testing::RawClient;

void run(const std::string& command) { REQUIRE_MESSAGE(system((command + " >/dev/null 2>&1").c_str()) == 0, command); }

// A certificate for 127.0.0.1 that signs itself, in a folder that goes away.
struct Certificate {
  std::string folder;

  Certificate() {
    char name[] = "/tmp/tandem_http_XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    folder = name;
    for (const char* which : {"ours", "other"}) {
      run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + path(which, "key") +
          " -out " + path(which, "crt") + " -days 2 -subj /CN=x -addext subjectAltName=IP:127.0.0.1");
    }
    run("openssl genrsa -out " + path("rsa", "key") + " 2048");
    run("openssl ec -in " + path("ours", "key") + " -aes256 -passout pass:secret -out " + path("locked", "key"));
  }
  ~Certificate() { (void)!system(("rm -r " + folder).c_str()); }

  std::string path(const std::string& name, const std::string& suffix) const {
    return folder + "/" + name + "." + suffix;
  }
  TlsFiles files() const { return {path("ours", "crt"), path("ours", "key")}; }
};

const Certificate& certificate() {
  static const Certificate made;
  return made;
}

// A client that trusts the server's certificate, and reads until the server ends.
class TlsClient {
 public:
  TlsClient(uint16_t port, int newest_version) : context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_max_proto_version(context_, newest_version);
    SSL_CTX_set_security_level(context_, 0);  // old versions are to fail at the server, not here
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_load_verify_locations(context_, certificate().path("ours", "crt").c_str(), nullptr);
    BIO* bio = BIO_new_connect(("127.0.0.1:" + std::to_string(port)).c_str());
    ssl_ = SSL_new(context_);
    is_connected_ = BIO_do_connect(bio) == 1;
    SSL_set_bio(ssl_, bio, bio);
    is_connected_ = is_connected_ && SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    ERR_clear_error();
  }

  bool is_connected() const { return is_connected_; }
  std::string version() const { return SSL_get_version(ssl_); }
  void send(std::string_view bytes) { REQUIRE(SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) > 0); }
  std::string read_until(std::string_view text) {
    while (text.empty() || unread_.find(text) == std::string::npos) {
      char buffer[4096];
      const int size = SSL_read(ssl_, buffer, sizeof(buffer));
      if (size <= 0) {
        is_ended_well_ = SSL_get_error(ssl_, size) == SSL_ERROR_ZERO_RETURN;
        return std::exchange(unread_, {});
      }
      unread_.append(buffer, static_cast<size_t>(size));
    }
    const size_t end = unread_.find(text) + text.size();
    std::string out = unread_.substr(0, end);
    unread_.erase(0, end);
    return out;
  }
  bool is_ended_well() const { return is_ended_well_; }  // with the protocol's own end, not just a closed socket

 private:
  SSL_CTX* context_;
  SSL* ssl_;
  std::string unread_;
  bool is_connected_ = false, is_ended_well_ = false;
};

HttpServerConfig tls_config() {
  HttpServerConfig config;
  config.tls = certificate().files();
  return config;
}

TEST_CASE("through TLS requests, streams and pipelining are as without") {
  Bench bench(tls_config());
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(bench.server->port(), version);
    REQUIRE(client.is_connected());
    CHECK(client.version() == (version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3"));
    client.send(
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        "GET /echo?2 HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(client.read_until("hello").find("HTTP/1.1 200") == 0);
    client.read_until("GET 2 ");
    client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
    Seen seen = bench.next();
    seen.writer->begin_stream(200, {}, {});
    client.read_until("\r\n\r\n");
    const std::string large(500'000, 'x');  // many records
    seen.writer->write("data: 1\n\n");
    CHECK(client.read_until("\n\n\r\n") == "9\r\ndata: 1\n\n\r\n");
    seen.writer->write(large);
    seen.writer->end();
    CHECK(client.read_until("0\r\n\r\n").size() > large.size());
    client.send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    CHECK(client.read_until({}).find("Connection: close") != std::string::npos);
    CHECK(client.is_ended_well());
  }
}

TEST_CASE("a client that leaves is noticed through TLS too") {
  Bench bench(tls_config());
  Flag gone;
  {
    TlsClient client(bench.server->port(), TLS1_3_VERSION);
    REQUIRE(client.is_connected());
    client.send("GET /s HTTP/1.1\r\nHost: x\r\n\r\n");
    Seen seen = bench.next();
    seen.writer->on_disconnect([&] { gone.is_set = true; });
    seen.writer->begin_stream(200, {}, {});
    client.read_until("\r\n\r\n");
  }
  CHECK(gone.wait());
}

TEST_CASE("old versions, plain HTTP, noise and silence get no connection, and harm nobody") {
  HttpServerConfig config = tls_config();
  config.header_timeout_ms = 300;
  config.max_connections = 2;
  Bench bench(config);
  CHECK(!TlsClient(bench.server->port(), TLS1_1_VERSION).is_connected());
  RawClient plain(bench.server->port());
  plain.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(plain.read_all().find("200") == std::string::npos);
  CHECK(plain.is_closed_by_peer());
  RawClient silent(bench.server->port());  // ends with the time for a head
  CHECK(silent.is_closed_by_peer());
  TlsClient good(bench.server->port(), TLS1_3_VERSION);
  REQUIRE(good.is_connected());
  good.send("GET /echo?x HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(good.read_until("GET x ").find("200") != std::string::npos);
}

TEST_CASE("over the limit of connections the 503 comes through TLS") {
  HttpServerConfig config = tls_config();
  config.max_connections = 1;
  Bench bench(config);
  TlsClient first(bench.server->port(), TLS1_3_VERSION);
  REQUIRE(first.is_connected());
  TlsClient second(bench.server->port(), TLS1_3_VERSION);
  REQUIRE(second.is_connected());
  CHECK(second.read_until("\r\n\r\n").find("503") != std::string::npos);
}

TEST_CASE("files that do not go together are refused by name before anything listens") {
  const Certificate& made = certificate();
  const auto fault = [](const TlsFiles& files) {
    HttpServerConfig config;
    config.tls = files;
    auto started = HttpServer::start(config, [](HttpRequest, auto) {});
    return started ? "" : started.error().message;
  };
  const std::string crt = made.path("ours", "crt"), key = made.path("ours", "key");
  CHECK(fault({crt, key}) == "");
  CHECK(fault({"/no/such", key}) == "certificate /no/such cannot be read");
  CHECK(fault({crt, "/no/such"}) == "private key /no/such cannot be read");
  CHECK(fault({key, key}) == "certificate " + key + " holds no PEM certificate");
  CHECK(fault({crt, crt}) == "private key " + crt + " holds no PEM key without a password");
  CHECK(fault({crt, made.path("other", "key")}) ==
        "private key " + made.path("other", "key") + " is not that of " + crt);
  // The fault: only keys of the certificate's own type are compared.
  CHECK(fault({crt, made.path("rsa", "key")}) == "private key " + made.path("rsa", "key") + " is not that of " + crt);
  const std::string locked = made.path("locked", "key");
  CHECK(fault({crt, locked}) == "private key " + locked + " holds no PEM key without a password");
}

}  // namespace
}  // namespace tandem::http
