// The ring by itself, and hostile peers: what they write must neither crash nor hang the other side.

#include "net/transport/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>

#include "net/transport/frame.h"
#include "net/transport/transport_for_test.h"

using namespace tandem;
using namespace tandem::transport;

namespace {

// Both sides' regions, each mapped by its owner and by the other.
struct RingPair {
  explicit RingPair(uint64_t ring_bytes = 4096)
      : a(make(ring_bytes)),
        b(make(ring_bytes)),
        a_seen(see(a)),
        b_seen(see(b)),
        writer(a, b_seen),
        reader(b, a_seen) {}
  static RingRegion make(uint64_t ring_bytes) { return std::move(RingRegion::create(ring_bytes)).value(); }
  static RingRegion see(const RingRegion& region) {
    return std::move(RingRegion::map_peer(OwnedFd(dup(region.fd())), region.ring_bytes())).value();
  }
  RingRegion a, b, a_seen, b_seen;
  RingWriter writer;  // a's
  RingReader reader;  // b's
};

// A peer of a shm listener that is ours to misuse: it greets by hand.
struct HostilePeer {
  HostilePeer(const std::string& path, uint64_t ring_bytes)
      : region(RingPair::make(ring_bytes)), socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strcpy(address.sun_path, path.c_str());
    REQUIRE(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  void greet(const Greeting& greeting, const std::vector<int>& fds) {
    iovec range = {const_cast<Greeting*>(&greeting), sizeof greeting};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &range;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* files = CMSG_FIRSTHDR(&message);
      files->cmsg_level = SOL_SOCKET;
      files->cmsg_type = SCM_RIGHTS;
      files->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      memcpy(CMSG_DATA(files), fds.data(), fds.size() * sizeof(int));
    }
    REQUIRE(sendmsg(socket.get(), &message, MSG_NOSIGNAL) > 0);
  }
  void greet_well() { greet({.connection_id = 1, .ring_bytes = region.ring_bytes()}, {region.fd()}); }
  void ring_bell() { send(socket.get(), "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT); }

  RingRegion region;
  OwnedFd socket;
};

std::string path_of(const Rig& rig) { return rig.listener->address().substr(4); }

}  // namespace

TEST_CASE("bytes come out as they went in, around the ring's end") {
  RingPair pair;
  std::string in, out;
  uint64_t seed = 1;
  while (in.size() < 100'000) {
    auto room = pair.writer.room();
    REQUIRE(room);
    const std::string piece = pattern(std::min<size_t>(room->size(), seed * 997 % 3000), seed);
    ++seed;
    memcpy(room->data(), piece.data(), piece.size());
    pair.writer.publish(piece.size());
    in += piece;
    auto unread = pair.reader.available();
    REQUIRE(unread);
    const Bytes part = unread->first(unread->size() * (seed % 4) / 3);
    out += text_of(part);
    pair.reader.consume(part.size());
  }
  out += text_of(*pair.reader.available());
  CHECK((in == out));
}

TEST_CASE("a reader cannot write to the writer's ring, nor anybody shrink it") {
  RingPair pair;
  const int fd = pair.a.fd();
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(write(fd, "x", 1) < 0);
  CHECK(ftruncate(fd, 0) != 0);
  CHECK(mprotect(const_cast<RingControl*>(&pair.a_seen.control()), 4096, PROT_READ | PROT_WRITE) != 0);
}

TEST_CASE("counts that make no sense are refused") {
  for (const uint64_t wrong : {uint64_t{4097}, uint64_t{1} << 40, ~uint64_t{0}}) {
    RingPair pair;
    pair.a.own_control().produced = wrong;
    CHECK(pair.reader.available().error().code == ErrorCode::kCorrupt);
    pair.b.own_control().consumed = wrong;
    CHECK(pair.writer.room().error().code == ErrorCode::kCorrupt);
  }
  RingPair pair;
  pair.a.own_control().produced = 100;
  REQUIRE(pair.reader.available());
  pair.a.own_control().produced = 99;  // unwritten again
  CHECK(pair.reader.available().error().code == ErrorCode::kCorrupt);
}

TEST_CASE("a sleeper is woken once for each sleep") {
  RingPair pair;
  CHECK(!pair.writer.must_wake());
  pair.reader.announce_sleep();
  CHECK(pair.writer.must_wake());
  CHECK(!pair.writer.must_wake());
  pair.reader.announce_sleep();
  CHECK(pair.writer.must_wake());
  pair.writer.announce_sleep();
  CHECK(pair.reader.must_wake());
  CHECK(!pair.reader.must_wake());
}

TEST_CASE("a peer's file that is not a sealed ring is refused") {
  const auto code = [](int fd, uint64_t ring_bytes) {
    return RingRegion::map_peer(OwnedFd(fd), ring_bytes).error().code;
  };
  const auto memory_file = [](int flags, off_t size, int seals) {
    const int fd = memfd_create("test", flags);
    REQUIRE(ftruncate(fd, size) == 0);
    if (seals != 0) REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
  };
  CHECK(code(memory_file(MFD_ALLOW_SEALING, 8192, 0), 4096) == ErrorCode::kCorrupt);
  CHECK(code(memory_file(0, 8192, 0), 4096) == ErrorCode::kCorrupt);
  CHECK(code(memory_file(MFD_ALLOW_SEALING, 8191, F_SEAL_SHRINK), 4096) == ErrorCode::kCorrupt);
  CHECK(code(memory_file(MFD_ALLOW_SEALING, 4096, F_SEAL_SHRINK), 0) == ErrorCode::kCorrupt);
  CHECK(code(memory_file(MFD_ALLOW_SEALING, 4096 + 5000, F_SEAL_SHRINK), 5000) == ErrorCode::kCorrupt);
  CHECK(code(open("/dev/null", O_RDWR), 4096) == ErrorCode::kCorrupt);
  CHECK(code(-1, 4096) == ErrorCode::kCorrupt);
  CHECK(code(memory_file(MFD_ALLOW_SEALING, 8192, F_SEAL_SHRINK), uint64_t{1} << 63) == ErrorCode::kCorrupt);
  RingRegion good;
  CHECK(RingRegion::map_peer(OwnedFd(memory_file(MFD_ALLOW_SEALING, 8192, F_SEAL_SHRINK)), 4096));
  for (const uint64_t size : {0, 1, 2048, 5000}) {
    CHECK(RingRegion::create(size).error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("a hostile greeting is refused and leaks no file") {
  Rig rig("shm");
  const auto num_files = [] {
    int count = 0;
    for (int fd = 0; fd < 1000; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  const int before = num_files();
  const auto attempt = [&](const Greeting& greeting, size_t num_fds) {
    HostilePeer peer(path_of(rig), 4096);
    peer.greet(greeting, std::vector<int>(num_fds, peer.region.fd()));
    REQUIRE(rig.run([&] {
      char bytes[64];
      return recv(peer.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT) == 0;  // closed
    }));
  };
  attempt({.magic = 1, .ring_bytes = 4096}, 1);
  attempt({.version = 9, .ring_bytes = 4096}, 1);
  attempt({.kind = GreetingKind::kWelcome, .ring_bytes = 4096}, 1);
  attempt({.kind = static_cast<GreetingKind>(77), .ring_bytes = 4096}, 1);
  attempt({.ring_bytes = 8192}, 1);
  attempt({.ring_bytes = 4096, .owner_bytes = 5}, 1);
  attempt({.ring_bytes = 4096, .owner_bytes = ~0u}, 1);
  attempt({.ring_bytes = 4096}, 0);
  attempt({.ring_bytes = 4096}, 2);
  attempt({.ring_bytes = 4096}, 8);
  rig.settle();
  CHECK(rig.acceptor.greetings.empty());
  CHECK(num_files() == before);
}

TEST_CASE("a hostile ring closes its connection and no other") {
  struct Case {
    const char* name;
    std::function<void(HostilePeer&)> misbehave;
    ErrorCode code;
  };
  const auto write_at = [](HostilePeer& peer, uint64_t at, std::string_view bytes) {
    memcpy(peer.region.at(at), bytes.data(), bytes.size());
    peer.region.own_control().produced = at + bytes.size();
  };
  const FramePrefix frame = {.header_bytes = 2, .payload_bytes = 1'000'000};
  const std::vector<Case> cases = {
      {"garbage", [&](HostilePeer& peer) { write_at(peer, 0, std::string(500, 'g')); }, ErrorCode::kCorrupt},
      {"more than the ring", [](HostilePeer& peer) { peer.region.own_control().produced = 9999; }, ErrorCode::kCorrupt},
      {"read ahead", [](HostilePeer& peer) { peer.region.own_control().consumed = 1; }, ErrorCode::kCorrupt},
      {"out of order", [&](HostilePeer& peer) { write_at(peer, 0, text_of(object_bytes(FramePrefix{.sequence = 5}))); },
       ErrorCode::kCorrupt},
      {"gone in mid-frame",
       [&](HostilePeer& peer) {
         write_at(peer, 0, std::string(text_of(object_bytes(frame))) + "hhpayload");
         peer.ring_bell();
         peer.socket.reset();
       },
       ErrorCode::kUnavailable},
      {"a bell of no bytes", [](HostilePeer& peer) { send(peer.socket.get(), "", 0, MSG_NOSIGNAL); },
       ErrorCode::kUnavailable},
  };
  for (const Case& item : cases) {
    CAPTURE(item.name);
    Rig rig("shm");
    RecordingEnd good;
    auto connection = rig.open(good);
    HostilePeer peer(path_of(rig), 4096);
    peer.greet_well();
    REQUIRE(rig.run([&] { return rig.acceptor.connections.size() == 2; }));
    RecordingEnd& end = *rig.acceptor.ends[1];
    // Our side also has something to send, so that both directions look at the counts.
    REQUIRE(rig.acceptor.connections[1]->send(frame_of("x", "y")));
    item.misbehave(peer);
    peer.ring_bell();
    REQUIRE(rig.run([&] { return !end.closed.empty(); }));
    CHECK(end.closed[0].code == item.code);
    CHECK(end.frames.empty());
    REQUIRE(connection->send(frame_of("still", "works")));
    REQUIRE(rig.run([&] { return rig.acceptor.ends[0]->frames.size() == 1; }));
  }
}

TEST_CASE("a bell that rings for nothing moves nothing") {
  Rig rig("shm");
  HostilePeer peer(path_of(rig), 4096);
  peer.greet_well();
  REQUIRE(rig.run([&] { return rig.acceptor.connections.size() == 1; }));
  for (int i = 0; i < 1000; ++i) {
    peer.ring_bell();
    if (i % 10 == 0) rig.loop->run_once(0);
  }
  rig.settle();
  CHECK(rig.acceptor.ends[0]->closed.empty());
  CHECK(rig.acceptor.connections[0]->is_open());
}

TEST_CASE("a payload larger than the peer's small ring, held by the receiver, does not wait for ever") {
  Rig rig("shm");
  HostilePeer peer(path_of(rig), 4096);
  peer.greet_well();
  REQUIRE(rig.run([&] { return rig.acceptor.connections.size() == 1; }));
  // 3000 bytes: less than half of our own ring, more than half of the peer's.
  const std::string payload = pattern(3000, 1);
  const std::string bytes =
      std::string(text_of(object_bytes(FramePrefix{.header_bytes = 0, .payload_bytes = 3000}))) + payload;
  for (uint64_t round = 0; round < 3; ++round) {
    FramePrefix prefix = {.payload_bytes = 3000, .sequence = round};
    std::string frame = bytes;
    memcpy(frame.data(), &prefix, sizeof prefix);
    memcpy(peer.region.at(round * frame.size()), frame.data(), frame.size());
    peer.region.own_control().produced = (round + 1) * frame.size();
    peer.ring_bell();
    REQUIRE(rig.run([&] { return rig.acceptor.ends[0]->frames.size() == round + 1; }));
    CHECK((rig.acceptor.ends[0]->frames[round].payload == payload));
  }
}
