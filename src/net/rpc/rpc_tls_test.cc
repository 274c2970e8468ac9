#include <doctest/doctest.h>
#include <stdlib.h>

#include <string>

#include "net/rpc/rpc_for_test.h"
#include "net/rpc/tls_files.h"
#include "testing/raw_client.h"

using namespace tandem;
using namespace tandem::rpc;

namespace {

void run(const std::string& command) { REQUIRE_MESSAGE(system((command + " >/dev/null 2>&1").c_str()) == 0, command); }

// Two authorities and certificates of theirs, made by the openssl program in a folder that goes away.
struct Certificates {
  std::string folder;

  Certificates() {
    char name[] = "/tmp/tandem_rpc_XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    folder = name;
    for (const char* authority : {"ours", "other"}) {
      run("openssl req -x509 " + new_key(authority) + " -out " + path(authority, "crt") +
          " -days 2 -subj /CN=authority");
    }
    make("node", "ours", "IP:127.0.0.1", 2);
    make("elsewhere", "ours", "DNS:node-7.example", 2);
    make("old", "ours", "IP:127.0.0.1", -1);
    make("stranger", "other", "IP:127.0.0.1", 2);
  }
  ~Certificates() { (void)!system(("rm -r " + folder).c_str()); }

  std::string path(const std::string& name, const std::string& suffix) const {
    return folder + "/" + name + "." + suffix;
  }

  // With the certificate `name`, trusting what `authority` signed.
  RpcOptions options(const std::string& name, const std::string& authority) const {
    RpcOptions options = patient();
    options.tls = TlsFiles{path(name, "crt"), path(name, "key"), path(authority, "crt"), ""};
    return options;
  }

 private:
  std::string new_key(const std::string& name) const {
    return "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + path(name, "key");
  }
  void make(const std::string& name, const std::string& authority, const std::string& subject, int days) const {
    const std::string request = path(name, "csr"), extensions = path(name, "ext");
    run("openssl req " + new_key(name) + " -out " + request + " -subj /CN=" + name);
    run("echo subjectAltName=" + subject + " >" + extensions + " && openssl x509 -req -in " + request + " -CA " +
        path(authority, "crt") + " -CAkey " + path(authority, "key") + " -CAcreateserial -out " + path(name, "crt") +
        " -days " + std::to_string(days) + " -extfile " + extensions);
  }
};

const Certificates& certificates() {
  static const Certificates made;
  return made;
}

// What the client is told.
Error refusal(const RpcOptions& server_options, const RpcOptions& client_options) {
  Pair pair(server_options, client_options, false);
  const Error end = pair.at_client.end();
  CHECK(pair.at_client.opened.empty());
  // Nothing got through to the server's inbox but, at most, an end.
  pair.at_server.take(pair.at_server.inbox.drain());
  CHECK(pair.at_server.opened.empty());
  return end;
}

}  // namespace

TEST_CASE("TLS: both ends show certificates of a common authority") {
  const RpcOptions options = certificates().options("node", "ours");
  Pair pair(options, options);
  for (int i = 0; i < 1000; ++i) CHECK(send_patiently(*pair.stream, std::to_string(i)));
  CHECK(pair.server_end().send(std::string(1 << 20, 'x')) == SendResult::kQueued);
  REQUIRE(pair.at_server.wait_for(1, 1000, 0));
  REQUIRE(pair.at_client.wait_for(1, 1, 0));
  CHECK(pair.at_server.frames[999] == "999");
}

TEST_CASE("TLS: a server's certificate is for the host that was asked for, or for the name that is set") {
  RpcOptions client = certificates().options("node", "ours");
  const RpcOptions server = certificates().options("elsewhere", "ours");
  const Error end = refusal(server, client);
  CHECK(end.code == ErrorCode::kUnavailable);
  CHECK(end.message.find("TLS") != std::string::npos);
  client.tls->server_name = "node-7.example";
  Pair pair(server, client);
  CHECK(pair.stream->version() == 1);
}

TEST_CASE("TLS: certificates that the other side does not trust, and ends without TLS") {
  const Certificates& made = certificates();
  const RpcOptions plain = patient(), ours = made.options("node", "ours");
  for (const Error& end : {refusal(ours, made.options("stranger", "ours")),  // the server does not trust the client's
                           refusal(made.options("stranger", "ours"), ours),  // the client does not trust the server's
                           refusal(plain, ours)}) {
    CHECK(end.code == ErrorCode::kUnavailable);
    CHECK(end.message.find("with TLS (each side must trust the other's certificate)") != std::string::npos);
  }
  const Error end = refusal(ours, plain);
  CHECK(end.code == ErrorCode::kUnavailable);
  CHECK(end.message.find(" without TLS: ") != std::string::npos);
}

TEST_CASE("TLS: a connection that never shakes hands ends") {
  RpcOptions options = certificates().options("node", "ours");
  options.connect_timeout_ms = 200;
  Reader reader;
  const auto server = open_server(options, reader);
  CHECK(testing::RawClient(server->port()).is_closed_by_peer());
}

TEST_CASE("TLS: files are checked before anything is opened") {
  const Certificates& made = certificates();
  const auto fault = [](const TlsFiles& files) {
    Reader reader;
    RpcOptions options;
    options.tls = files;
    const auto client = RpcClient::open(options, reader.inbox);
    const auto server = RpcServer::listen("127.0.0.1", 0, options, reader.inbox);
    REQUIRE_FALSE(client);
    REQUIRE_FALSE(server);
    CHECK(client.error().message == server.error().message);
    return client.error();
  };
  const TlsFiles good = *made.options("node", "ours").tls;
  CHECK(read_tls_files(good));
  TlsFiles files = good;
  files.certificate = made.path("absent", "crt");
  CHECK(fault(files).code == ErrorCode::kNotFound);
  CHECK(fault(files).message == "certificate " + files.certificate + ": No such file or directory");
  files = good;
  files.certificate = made.path("node", "key");
  CHECK(fault(files).code == ErrorCode::kInvalidArgument);
  CHECK(fault(files).message == "certificate " + files.certificate + " holds no PEM certificate");
  files = good;
  files.private_key = made.path("stranger", "key");
  CHECK(fault(files).message == "private key " + files.private_key + " is not that of " + files.certificate);
  files.private_key = made.path("node", "crt");
  CHECK(fault(files).message == "private key " + files.private_key + " holds no PEM key without a password");
  files = good;
  files.trusted = made.path("node", "csr");
  CHECK(fault(files).message == "trusted certificates " + files.trusted + " holds no PEM certificate");
  files = *made.options("old", "ours").tls;
  CHECK(fault(files).message == "certificate " + files.certificate + " has expired");
}
