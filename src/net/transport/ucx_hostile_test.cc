// Hostile peers of a ucx listener: strangers that write bytes to its ports, and peers that speak UCX and lie. What they
// send must neither stop this process, nor reach a frame, nor disturb another connection.

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "net/transport/frame.h"
#include "net/transport/socket_address.h"
#include "net/transport/stream_greeting.h"
#include "net/transport/transport_for_test.h"
#include "net/transport/ucx_worker.h"

using namespace tandem;
using namespace tandem::transport;

namespace {

// Every TCP port that this process listens on: UCX's carriers open one of their own per interface.
std::vector<SocketAddress> listening_addresses() {
  std::vector<SocketAddress> addresses;
  for (int fd = 0; fd < 1000; ++fd) {
    int is_listening = 0;
    socklen_t size = sizeof is_listening;
    SocketAddress address;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) != 0 || is_listening == 0) continue;
    if (getsockname(fd, address.get(), &address.size) != 0 || address.storage.ss_family != AF_INET) continue;
    addresses.push_back(address);
  }
  return addresses;
}

OwnedFd connect_raw(SocketAddress address) {
  OwnedFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(connect(socket.get(), address.get(), address.size) == 0);
  REQUIRE(fcntl(socket.get(), F_SETFL, O_NONBLOCK) == 0);
  return socket;
}

OwnedFd connect_raw(const Rig& rig) {
  return connect_raw(std::move(parse_address(rig.listener->address().substr(4))).value());
}

bool is_ended(const OwnedFd& socket) {
  char bytes[256];
  return recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT) == 0;
}

// A peer that greets as it should and then says over UCX what it likes.
struct LyingPeer final : UcxReceiver {
  explicit LyingPeer(Rig& rig) : socket(connect_raw(rig)) {
    worker = std::move(UcxWorker::create(*rig.loop, std::move(contexts.of(socket.get())).value(), *this)).value();
    REQUIRE(send_stream_greeting(socket.get(), {}, {}, std::move(worker->introduction()).value()));
    std::vector<std::byte> input(64 << 10);
    size_t end = 0, size = 0;
    REQUIRE(rig.run([&] {
      size = std::move(receive_stream_greeting(socket.get(), input, end, false, rig.limits)).value();
      return size > 0;
    }));
    introduction.assign(input.begin() + sizeof(Greeting), input.begin() + static_cast<long>(size));
  }
  ~LyingPeer() { worker->leave(); }

  void send(UcxHeader header, std::string_view text) {
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(text.size());
    memcpy(bytes.get(), text.data(), text.size());
    worker->send(header, std::move(bytes), text.size());
  }
  void on_message(const UcxHeader&, UcxBytes) override {}
  void on_broken(const char*) override {}

  OwnedFd socket;
  UcxContexts contexts{"tcp"};
  std::shared_ptr<UcxWorker> worker;
  std::vector<std::byte> introduction;
};

// An honest connection beside the hostile one still works.
void check_alive(Rig& rig, Connection& connection, RecordingEnd& server) {
  const size_t before = server.frames.size();
  const std::string payload = pattern(3'000'000, before);
  REQUIRE(connection.send(frame_of("honest", payload)));
  REQUIRE(rig.run([&] { return server.frames.size() == before + 1; }));
  CHECK((server.frames.back().payload == payload));
}

}  // namespace

TEST_CASE("bytes of strangers at a port of UCX stop nobody") {
  Rig rig("ucx");
  RecordingEnd client;
  auto connection = rig.open(client);
  RecordingEnd& server = *rig.acceptor.ends[0];
  std::minstd_rand random(3);
  const auto addresses = listening_addresses();
  REQUIRE(addresses.size() >= 3);  // ours, and UCX's for either end
  for (size_t trial = 0; trial < 300; ++trial) {
    const SocketAddress& address = addresses[trial % addresses.size()];
    CAPTURE(address_text(address));
    const OwnedFd stranger = connect_raw(address);
    std::string bytes = pattern(1 + random() % 5000, random());
    if (trial / addresses.size() % 3 == 1) bytes.assign(bytes.size(), '\xff');
    if (trial / addresses.size() % 3 == 2) std::fill_n(bytes.begin(), std::min<size_t>(bytes.size(), 8), '\0');
    (void)send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    for (int i = 0; i < 5; ++i) rig.loop->run_once(1);
  }
  check_alive(rig, *connection, server);
  CHECK(rig.acceptor.greetings.size() == 1);
}

TEST_CASE("a peer that lies in a greeting is given up, and nobody is asked to admit it") {
  for (const std::string scheme : {"tcp", "ucx"}) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingEnd client;
    auto connection = rig.open(client);
    const auto attempt = [&](const Greeting& greeting, std::string_view tail) {
      const OwnedFd peer = connect_raw(rig);
      const std::string text = std::string(text_of(object_bytes(greeting))) + std::string(tail);
      REQUIRE(send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
      REQUIRE(rig.run([&] { return is_ended(peer); }));
    };
    attempt({.magic = 1}, "");
    attempt({.version = 9}, "");
    attempt({.kind = GreetingKind::kWelcome}, "");
    attempt({.kind = static_cast<GreetingKind>(77)}, "");
    attempt({.owner_bytes = ~0u}, "four");
    attempt({.owner_bytes = 1025}, std::string(1025, 'x'));
    attempt({.carrier_bytes = ~0u}, "four");
    attempt({.carrier_bytes = kMaxCarrierBytes + 1}, "");
    CHECK(rig.acceptor.greetings.size() == 1);
    check_alive(rig, *connection, *rig.acceptor.ends[0]);
  }
}

TEST_CASE("a ucx peer that was admitted and does not say where it is ends its own connection only") {
  Rig rig("ucx");
  RecordingEnd client;
  auto connection = rig.open(client);
  for (const size_t size : {0u, 7u, 8u}) {
    CAPTURE(size);
    const OwnedFd peer = connect_raw(rig);
    REQUIRE(send_stream_greeting(peer.get(), {}, {}, bytes_of(std::string(size, 'x'))));
    REQUIRE(rig.run([&] { return is_ended(peer); }));
  }
  check_alive(rig, *connection, *rig.acceptor.ends[0]);
}

TEST_CASE("a ucx peer that breaks the rules of chunks and credit ends its own connection and no other") {
  Rig rig("ucx");
  RecordingEnd client;
  auto connection = rig.open(client);
  using Kind = UcxHeader::Kind;
  const std::string largest(1 << 20, 'x');
  struct Case {
    const char* name;
    UcxHeader header;
    std::string text;
  };
  const auto begin = [](const FramePrefix& prefix) { return std::string(text_of(object_bytes(prefix))); };
  const std::vector<Case> cases = {
      {"bytes that are no frame", {.kind = Kind::kChunk}, std::string(500, 'g')},
      {"a chunk beyond the window", {.kind = Kind::kChunk, .number = 8}, "x"},
      {"a chunk far beyond the window", {.kind = Kind::kChunk, .number = ~0ull}, "x"},
      {"an empty chunk", {.kind = Kind::kChunk}, ""},
      {"a chunk that is too large", {.kind = Kind::kChunk}, largest + "x"},
      {"credit for what was not sent", {.kind = Kind::kCredit, .number = 1}, ""},
      {"an unknown kind", {.kind = static_cast<Kind>(99)}, "x"},
      {"a frame that is out of order", {.kind = Kind::kChunk}, begin({.sequence = 5})},
      {"a frame over the limit", {.kind = Kind::kChunk}, begin({.payload_bytes = (256 << 20) + 1})},
  };
  for (const Case& hostile : cases) {
    CAPTURE(hostile.name);
    const size_t index = rig.acceptor.connections.size();
    LyingPeer peer(rig);
    REQUIRE(rig.acceptor.connections.size() == index + 1);
    REQUIRE(peer.worker->connect(peer.introduction));
    peer.send(hostile.header, hostile.text);
    const RecordingEnd& end = *rig.acceptor.ends[index];
    REQUIRE(rig.run([&] { return !end.closed.empty() && is_ended(peer.socket); }));
    CHECK(end.closed[0].code == ErrorCode::kCorrupt);
    CHECK(end.num_headers == 0);
  }
  check_alive(rig, *connection, *rig.acceptor.ends[0]);
}

TEST_CASE("a message without the key of its receiver is dropped") {
  Rig rig("ucx");
  LyingPeer peer(rig);
  peer.introduction[0] ^= std::byte{1};
  REQUIRE(peer.worker->connect(peer.introduction));
  const FramePrefix frame = {.header_bytes = 4};
  const std::string chunk = std::string(text_of(object_bytes(frame))) + "head";
  peer.send({.kind = UcxHeader::Kind::kChunk}, chunk);
  // One with the right key, on an endpoint of its own, comes behind it.
  LyingPeer honest(rig);
  REQUIRE(honest.worker->connect(honest.introduction));
  honest.send({.kind = UcxHeader::Kind::kChunk}, chunk);
  REQUIRE(rig.run([&] { return rig.acceptor.ends[1]->frames.size() == 1; }));
  for (int i = 0; i < 20; ++i) rig.loop->run_once(5);
  CHECK(rig.acceptor.ends[0]->frames.empty());
  CHECK(rig.acceptor.ends[0]->closed.empty());
}
