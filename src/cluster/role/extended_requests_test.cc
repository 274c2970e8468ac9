// Requests that older nodes do not know, while a cluster is upgraded node by node.

#include <doctest/doctest.h>

#include <algorithm>

#include "cluster/role/gateway.h"

namespace tandem::role {
namespace {

using namespace handoff;
using Phase = GatewayRequest::Phase;

// Nodes of two ages, which answer only as they are told to.
class MixedNodes {
 public:
  explicit MixedNodes(const std::map<std::string, uint32_t>& protos) {
    for (const auto& [node, proto] : protos) gateway.add_node(node);
    tick(1);
    for (const auto& [node, proto] : protos) {
      Hello hello;
      hello.proto = proto;
      hello.from = {node, 1};
      hello.credits = 4;
      hello.capacity_blocks = hello.private_blocks = 100;
      say(node, hello);
    }
  }

  void tick(Nanos by) { gateway.on_tick(now += by, outs); }
  void say(const std::string& node, const SessionMessage& message) {
    gateway.on_stream_message(node, gateway.links().at(node).stream, message, ++now, outs);
  }
  // All of them have just spoken.
  void beat() {
    for (const auto& [node, link] : gateway.links()) {
      Beat beat;
      beat.io_seq = ++num_beats;
      beat.step_seq = num_beats;
      beat.credits = 4;
      beat.is_busy = true;
      say(node, beat);
    }
  }
  const GatewayRequest& request() const { return *gateway.requests().begin()->second; }
  bool is_told(const std::string& node) const {
    return std::ranges::any_of(outs, [&](const GatewayOut& out) {
      const auto* send = std::get_if<SendNode>(&out);
      return send != nullptr && send->node == node && !std::holds_alternative<Hello>(send->message) &&
             !std::holds_alternative<Beat>(send->message);
    });
  }

  Nanos now = 1;
  uint64_t num_beats = 0;
  Gateway gateway{[] {
    GatewayConfig config;
    config.self = {"g", 1};
    return config;
  }()};
  GatewayOuts outs;
};

RequestState extended_request() {
  RequestState state;
  state.prompt = {1, 2, 3};
  state.choices.resize(1);
  state.max_tokens = 100;
  state.prompt_logprobs = 0;
  return state;
}

TEST_CASE("nodes that serve all other requests may know none of the newer kind") {
  CHECK(MixedNodes({{"old", 1}}).gateway.can_serve());
  CHECK(!MixedNodes({{"old", 1}}).gateway.can_serve_extended());
  CHECK(MixedNodes({{"old", 1}, {"new", 2}}).gateway.can_serve_extended());
  CHECK(!MixedNodes({{"old", 1}}).gateway.has_open_node(true));
  CHECK(MixedNodes({{"old", 1}}).gateway.has_open_node(false));
}

TEST_CASE("a decode does not move to a node that does not know all of its request") {
  // The fault: the move asked for a place without saying for which request.
  MixedNodes nodes({{"new", 2}, {"old", 1}});
  REQUIRE(nodes.gateway.submit({0, 1}, extended_request(), nodes.now));
  nodes.tick(1);
  nodes.say("new", ReserveOk{{0, 1}, 1, 1, PartSet(), 2});
  TokenBatch batch;
  TokenEntry& entry = batch.entries.emplace_back();
  entry.request = {0, 1};
  entry.attempt = 1;
  nodes.say("new", batch);
  REQUIRE(nodes.request().phase() == Phase::kDecoding);
  CHECK(nodes.request().target().id == "new");
  nodes.gateway.drain("new");
  for (int i = 0; i < 20; ++i) {
    nodes.beat();
    nodes.tick(50 * kMs);
  }
  CHECK(!nodes.request().is_moving());
  CHECK(nodes.request().target().id == "new");
  CHECK(!nodes.is_told("old"));
  nodes.gateway.check_invariants();
}

}  // namespace
}  // namespace tandem::role
