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

TEST_CASE("a peer is sent no more bytes a second than the rate that it is held to, in order") {
  ManualClock clock;
  auto loop = transport::EventLoop::create(clock);
  REQUIRE(loop);
  transport::LoopbackHub hub;
  transport::TransportLimits limits;
  limits.max_header_bytes = 1 << 16;
  limits.max_payload_bytes = 1 << 20;
  transport::Network network(**loop, limits, &hub);
  Owner owner;
  MetricRegistry metrics;
  const NodeRef a{"a", 1}, b{"b", 2};
  PeerLinks from(**loop, network, a, owner, metrics), to(**loop, network, b, owner, metrics);
  REQUIRE(to.listen("loop:b"));
  from.hold_to_rate(kPayloadBytes);
  for (uint32_t block = 0; block < 5; ++block) {
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
  // A frame takes a second and a little more for its header.
  std::vector<uint32_t> expected;
  for (uint32_t block = 0; block < 5; ++block) {
    for (int i = 0; i < 20; ++i) (*loop)->run_once(0);
    expected.push_back(block);
    CHECK(owner.blocks == expected);
    clock.advance_ms(900);
    for (int i = 0; i < 20; ++i) (*loop)->run_once(0);
    CHECK(owner.blocks == expected);
    clock.advance_ms(120);
  }
}

}  // namespace
}  // namespace tandem::node
