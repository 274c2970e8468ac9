#pragma once
// EtcdServer: an etcd of a test's own, on loopback, on free ports, in a folder that goes away with it. It can be killed
// and started again with what it has stored.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "cluster/registry/etcd_client.h"
#include "testing/comes_true.h"

namespace tandem::registry {

class EtcdServer {
 public:
  EtcdServer() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-etcd-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    start();
  }
  ~EtcdServer() {
    kill();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // With a prefix that nobody has used.
  EtcdAddress new_address() { return {{endpoint()}, "test/" + std::to_string(++num_prefixes_)}; }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Under its old port, if it had one. Another process may take a port meanwhile: then anew.
  void start() {
    const bool is_first = port_ == 0;
    const bool is_up = testing::comes_true([&] {
      if (is_first && pid_ == 0) port_ = free_port();
      if (pid_ == 0) run();
      if (waitpid(pid_, nullptr, WNOHANG) != 0) pid_ = 0;
      return pid_ != 0 && answers();
    });
    REQUIRE_MESSAGE(is_up, "etcd starts; tools/setup.sh test installs it");
  }

 private:
  static uint16_t free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    close(fd);
    return ntohs(address.sin_port);
  }
  bool answers() const {
    EtcdClient client({endpoint()}, {}, 1000);
    return static_cast<bool>(client.read("test/"));
  }
  void run() {
    const std::string client = endpoint(), peer = "http://127.0.0.1:" + std::to_string(free_port());
    const std::string data = folder_ + "/data", log = folder_ + "/log", member = "default=" + peer;
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1), dup2(fd, 2);
    execlp("etcd", "etcd", "--data-dir", data.c_str(), "--listen-client-urls", client.c_str(),
           "--advertise-client-urls", client.c_str(), "--listen-peer-urls", peer.c_str(),
           "--initial-advertise-peer-urls", peer.c_str(), "--initial-cluster", member.c_str(), "--heartbeat-interval",
           "10", "--election-timeout", "100", static_cast<char*>(nullptr));
    _exit(127);
  }

  std::string folder_;
  uint16_t port_ = 0;
  pid_t pid_ = 0;
  int num_prefixes_ = 0;
};

// One for all tests that leave it as it is.
inline EtcdServer& shared_etcd() {
  static EtcdServer server;
  return server;
}

}  // namespace tandem::registry
