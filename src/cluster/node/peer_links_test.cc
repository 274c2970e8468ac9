#include "cluster/node/peer_links.h"

#include <doctest/doctest.h>

namespace tandem::node {
namespace {

using handoff::NodeRef;

constexpr uint32_t kPayloadBytes = 100'000;

struct Owner final : PeerOwner {
  void on_peer_frame(const NodeRef&, const handoff::PeerMessage& message, uint64_t, const std::byte*) override {
    blocks.push_back(std::get<handoff::Push>(message).block);
  }
  void on_peer_lost(const NodeRef&) override { FAIL("lost"); }
  std::string address_of(const NodeRef& peer) override { return "loop:" + peer.id; }
  bool is_let_in(const KvPass& pass) override { return pass.token == 5; }
  std::vector<uint32_t> blocks;
};

// Two nodes on one loop, in one process.
struct Pair {
  Pair() { REQUIRE(to.listen("loop:b")); }

  void send_blocks(uint32_t count) {
    for (uint32_t block = 0; block < count; ++block) {
      from.send(b, KvPass{{}, 5}, [block](handoff::PeerMessage& message, std::vector<std::byte>& payload) {
        payload.resize(kPayloadBytes);
        handoff::Push push;
        push.attempt = 1;
        push.block = block;
        push.payload = {0, kPayloadBytes};
        message = push;
        return true;
      });
    }
  }
  void run() {
    for (int i = 0; i < 20; ++i) loop->run_once(0);
  }
  static transport::TransportLimits limits() {
    transport::TransportLimits limits;
    limits.max_header_bytes = 1 << 16;
    limits.max_payload_bytes = 1 << 20;
    return limits;
  }

  ManualClock clock;
  std::unique_ptr<transport::EventLoop> loop = std::move(transport::EventLoop::create(clock)).value();
  transport::LoopbackHub hub;
  transport::Network network{*loop, limits(), &hub};
  Owner owner;
  MetricRegistry metrics;
  const NodeRef a{"a", 1}, b{"b", 2};
  PeerLinks from{*loop, network, a, owner, metrics}, to{*loop, network, b, owner, metrics};
};

TEST_CASE("a peer is sent no more bytes a second than the rate that it is held to, in order") {
  Pair pair;
  pair.from.hold_to_rate(kPayloadBytes);
  pair.send_blocks(5);
  // A frame takes a second and a little more for its header.
  std::vector<uint32_t> expected;
  for (uint32_t block = 0; block < 5; ++block) {
    pair.run();
    expected.push_back(block);
    CHECK(pair.owner.blocks == expected);
    pair.clock.advance_ms(900);
    pair.run();
    CHECK(pair.owner.blocks == expected);
    pair.clock.advance_ms(120);
  }
}

TEST_CASE("frames that come are taken as fast as they cost a share of the thread's time, while decodes run") {
  Pair pair;
  bool is_decoding = true;
  int64_t cpu_ns = 0;
  // Each look at the thread's time finds half a millisecond more: a frame costs as much, and is paid for with 4.5 ms.
  pair.to.pace_intake({[&] { return is_decoding; }, [&] { return cpu_ns += 500'000; }, 0.1});
  pair.send_blocks(6);
  std::vector<uint32_t> expected;
  for (uint32_t block = 0; block < 3; ++block) {
    pair.run();
    expected.push_back(block);
    CHECK(pair.owner.blocks == expected);
    pair.clock.advance_ms(4.4);
    pair.run();
    CHECK(pair.owner.blocks == expected);
    pair.clock.advance_ms(0.2);
  }
  // Nobody decodes any more: all that is left comes at once.
  is_decoding = false;
  pair.run();
  CHECK(pair.owner.blocks == std::vector<uint32_t>{0, 1, 2, 3, 4, 5});
}

}  // namespace
}  // namespace tandem::node
