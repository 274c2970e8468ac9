#include "cluster/node/node_process.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>

#include "base/hash.h"
#include "cluster/node/node_for_test.h"
#include "cluster/wire/peer_codec.h"
#include "net/transport/network.h"
#include "testing/comes_true.h"

namespace tandem::node {
namespace {

using handoff::Role;

handoff::RequestState state_of(uint32_t num_prompt, uint32_t num_choices, uint32_t max_tokens, uint64_t seed) {
  handoff::RequestState state;
  for (uint32_t i = 0; i < num_prompt; ++i) state.prompt.push_back(static_cast<TokenId>((i * 7 + seed * 31) % 900));
  state.sampling.seed = seed;
  state.max_tokens = max_tokens;
  state.choices.resize(num_choices);
  return state;
}

// A cluster in one process: real streams, real KV connections, real threads.
struct Cluster {
  explicit Cluster(const std::vector<std::pair<std::string, Role>>& roles, const std::string& transport) {
    for (const auto& [id, role] : roles) {
      const std::string address = transport == "shm"    ? "shm:" + folder + "/" + id
                                  : transport == "loop" ? "loop:" + id
                                                        : transport + ":127.0.0.1:0";
      auto node = start_node(id, role, address, registry, &hub, clock);
      REQUIRE(node);
      nodes[id] = std::move(*node);
    }
    auto view = registry.poll(0);
    REQUIRE(view);
    REQUIRE(*view);
    gateway = std::make_unique<TestGateway>(**view, clock);
    REQUIRE(gateway->turn_until([&] {
      return std::ranges::all_of(gateway->policy().links(),
                                 [](const auto& link) { return link.second.state == role::LinkState::kOpen; });
    }));
  }
  ~Cluster() {
    gateway.reset();
    nodes.clear();
    std::filesystem::remove_all(folder);
  }

  // Mixed requests: short and long, one choice and more.
  void submit(uint32_t count, uint32_t max_tokens) {
    for (uint32_t i = 0; i < count; ++i) {
      handoff::RequestState state = state_of(1 + i * 37 % 300, 1 + i % 3 / 2, max_tokens, i);
      const handoff::RequestId id = gateway->submit(state);
      for (uint32_t c = 0; c < state.choices.size(); ++c) expected[id].push_back(expected_tokens(state, c));
    }
  }
  void check_answers() {
    CHECK(gateway->errors.empty());
    for (const auto& [id, choices] : expected) CHECK(gateway->answers.at(id) == choices);
    CHECK(gateway->policy().num_mismatches() == 0);
    CHECK(gateway->turn_until([&] {
      return std::ranges::all_of(nodes, [](const auto& node) { return node.second->process->is_idle(); });
    }));
    for (const auto& [id, node] : nodes) {
      const NodeLoad load = node->process->load();
      CHECK(load.num_free_private == load.num_private);
      CHECK(load.num_free_shared == load.num_shared);
    }
  }

  std::string folder = [] {
    std::string made = "/tmp/tandem-node-XXXXXX";
    REQUIRE(mkdtemp(made.data()) != nullptr);
    return made;
  }();
  SystemClock clock;
  transport::LoopbackHub hub;
  registry::MemoryRegistry registry;
  std::map<std::string, std::unique_ptr<TestNode>> nodes;
  std::unique_ptr<TestGateway> gateway;
  std::map<handoff::RequestId, std::vector<std::vector<TokenId>>> expected;
};

TEST_CASE("node: handed over over each transport, every token is as in one process, and nothing stays behind") {
  for (const char* transport : {"loop", "shm", "tcp", "ucx"}) {
    CAPTURE(transport);
    Cluster cluster({{"p0", Role::kPrefill}, {"p1", Role::kPrefill}, {"d0", Role::kDecode}}, transport);
    cluster.submit(20, 24);
    CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_open == 0; }));
    cluster.check_answers();
  }
}

TEST_CASE("node: a prompt's parts arrive group by group while the step that computes them goes on") {
  for (const char* transport : {"loop", "shm", "tcp"}) {
    CAPTURE(transport);
    Cluster cluster({{"p0", Role::kPrefill}, {"d0", Role::kDecode}}, transport);
    Counter& arrived = cluster.nodes["d0"]->metrics.counter("tandem_handoff_frames_received_total",
                                                            "KV frames received from peers.");
    std::vector<uint64_t> seen;  // the engine's thread, until the request has ended
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    cluster.nodes["p0"]->executor.holds = [&](uint32_t num_groups) {
      const uint64_t now = arrived.value();
      if (now < uint64_t{4} * num_groups && std::chrono::steady_clock::now() < end) return true;
      seen.push_back(now);
      return false;
    };
    const handoff::RequestState state = state_of(60, 1, 8, 3);  // one step: three full blocks and a part of one
    const handoff::RequestId id = cluster.gateway->submit(state);
    cluster.expected[id].push_back(expected_tokens(state, 0));
    CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_open == 0; }));
    cluster.check_answers();
    CHECK(seen == std::vector<uint64_t>{4, 8});
  }
}

TEST_CASE("node: a long step lets a short prompt and its decode through between two layers") {
  Cluster cluster({{"m0", Role::kMixed}}, "loop");
  std::atomic<bool> is_held = true, is_in_step = false;
  cluster.nodes["m0"]->executor.holds = [&](uint32_t) {
    is_in_step = true;
    return is_held.load();
  };
  const auto submit = [&](uint32_t num_prompt, uint32_t max_tokens, uint64_t seed) {
    const handoff::RequestState state = state_of(num_prompt, 1, max_tokens, seed);
    const handoff::RequestId id = cluster.gateway->submit(state);
    cluster.expected[id].push_back(expected_tokens(state, 0));
    return id;
  };
  const handoff::RequestId held = submit(60, 8, 3);
  CHECK(cluster.gateway->turn_until([&] { return is_in_step.load(); }));
  const handoff::RequestId passing = submit(20, 2, 4);
  CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_open == 1; }));
  CHECK(cluster.gateway->answers.at(passing) == cluster.expected.at(passing));
  CHECK(cluster.gateway->answers.at(held)[0].empty());
  is_held = false;
  CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_open == 0; }));
  cluster.check_answers();
}

TEST_CASE("node: mixed nodes serve alone and together") {
  for (const auto& roles : {std::vector<std::pair<std::string, Role>>{{"m0", Role::kMixed}},
                            {{"m0", Role::kMixed}, {"m1", Role::kMixed}}}) {
    Cluster cluster(roles, "loop");
    cluster.submit(12, 20);
    CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_open == 0; }));
    cluster.check_answers();
  }
}

TEST_CASE("PDD-10: node: one that goes without a word, at any moment, costs no token") {
  using Roles = std::vector<std::pair<std::string, Role>>;
  const Roles pair = {{"p0", Role::kPrefill}, {"p1", Role::kPrefill}, {"d0", Role::kDecode}, {"d1", Role::kDecode}};
  const Roles mixed = {{"m0", Role::kMixed}, {"m1", Role::kMixed}, {"m2", Role::kMixed}};
  uint64_t after = 1;
  for (const auto& [roles, victim] : {std::pair{pair, "p0"}, {pair, "d0"}, {mixed, "m1"}}) {
    for (int round = 0; round < 3; ++round) {
      CAPTURE(victim);
      CAPTURE(round);
      Cluster cluster(roles, "loop");
      cluster.submit(16, 40);
      after = after * 5 % 257;
      CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_tokens() >= after; }));
      cluster.nodes.erase(victim);
      CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_open == 0; }));
      cluster.check_answers();
    }
  }
}

// Somebody at a node's data address: shows a token and pushes, without waiting to be let in.
struct Stranger final : transport::ConnectionHandler {
  Stranger(const registry::NodeRecord& node, const handoff::RequestId& request, uint64_t token, const Clock& clock) {
    const std::string text = "tandem-kv 2\n5\n" + std::to_string(node.incarnation) + "\n" +
                             std::to_string(request.high) + "\n" + std::to_string(request.low) + "\n" +
                             std::to_string(token) + "\np0";
    loop = std::move(transport::EventLoop::create(clock)).value();
    network = std::make_unique<transport::Network>(*loop, transport::TransportLimits{}, nullptr);
    connection = std::move(network->connect(node.data, transport::bytes_of(text), *this)).value();
    for (uint64_t landing = 1; landing < 20; ++landing) {
      const handoff::Push push{request, 1, landing, 0, 0, hash_64(payload.data(), payload.size()),
                               {0, static_cast<uint32_t>(payload.size())}};
      auto frame = wire::encode_peer(push);
      REQUIRE(frame);
      REQUIRE(connection->send({.header = transport::bytes_of(frame->header), .payload = {transport::Bytes(payload)}}));
    }
  }
  ~Stranger() override { connection.reset(); }

  void on_open(transport::Connection&) override { is_let_in = true; }
  transport::Placement on_header(transport::Connection&, transport::Bytes, uint64_t) override {
    return transport::Placement::hold();
  }
  void on_frame(transport::Connection&, transport::Bytes, transport::Bytes) override {}
  void on_close(transport::Connection&, const Error& reason) override { end = reason.message; }

  const std::vector<std::byte> payload = std::vector<std::byte>(kTestBlockSize * sizeof(uint64_t), std::byte{0xAA});
  bool is_let_in = false;
  std::string end;
  std::unique_ptr<transport::EventLoop> loop;
  std::unique_ptr<transport::Network> network;
  std::unique_ptr<transport::Connection> connection;
};

TEST_CASE("PDD-01: node: a stranger that connects and pushes is refused, counted, and changes no byte") {
  for (const char* transport : {"tcp", "ucx"}) {
    CAPTURE(transport);
    Cluster cluster({{"p0", Role::kPrefill}, {"d0", Role::kDecode}}, transport);
    const handoff::RequestState state = state_of(100, 1, 1500, 3);
    TestNode& target = *cluster.nodes.at("d0");
    target.executor.pause_us = 5000;  // so that it is still running when the last stranger has come
    const handoff::RequestId id = cluster.gateway->submit(state);
    cluster.expected[id] = {expected_tokens(state, 0)};
    CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_tokens() > 5; }));
    const registry::NodeRecord record = (**cluster.registry.poll(0)).nodes.at("d0");
    const uint64_t token = cluster.gateway->kv_tokens.at(id);
    Counter& refused = target.metrics.counter("tandem_handoff_refused_connections_total",
                                              "KV connections refused: no valid token, or for another process.");
    const uint64_t before = refused.value();
    uint64_t num_strangers = 0;
    const auto meet = [&](const handoff::RequestId& request, uint64_t shown) {
      Stranger stranger(record, request, shown, cluster.clock);
      CHECK(cluster.gateway->turn_until([&] {
        stranger.loop->run_once(0);
        return stranger.is_let_in || !stranger.end.empty();
      }));
      return stranger.is_let_in;
    };
    const uint64_t high_bit = uint64_t{1} << 63;
    for (const uint64_t shown : {uint64_t{0}, uint64_t{1}, uint64_t{2}, token ^ 1, token ^ high_bit, ~token}) {
      CAPTURE(shown);
      CHECK_FALSE(meet(id, shown));
      ++num_strangers;
    }
    CHECK_FALSE(meet({1, 1}, token));  // another request's
    ++num_strangers;
    CHECK(cluster.gateway->num_open == 1);  // all that while it ran
    CHECK(refused.value() == before + num_strangers);
    // With the token it is somebody that the gateway has told of it; what it pushes is then refused by the request.
    CHECK(meet(id, token));
    CHECK(refused.value() == before + num_strangers);
    target.executor.pause_us = 0;
    CHECK(cluster.gateway->turn_until([&] { return cluster.gateway->num_open == 0; }));
    cluster.check_answers();
    for (uint32_t block = 0; block < kTestBlocks; ++block) {
      CHECK(target.memory.word(kv::BlockId{block}, 0, 0) != 0xAAAA'AAAA'AAAA'AAAA);
    }
    CHECK_FALSE(meet(id, token));  // the request is over, and its token with it
  }
}

TEST_CASE("node: an operator's word in the registry is told") {
  registry::MemoryRegistry registry;
  SystemClock clock;
  transport::LoopbackHub hub;
  const auto node = start_node("a", Role::kMixed, "loop:a", registry, &hub, clock);
  REQUIRE(node);
  NodeProcess& process = *node.value()->process;
  CHECK(!process.is_told_to_drain());
  CHECK(static_cast<bool>(registry.set_state("a", process.self().incarnation, registry::NodeState::kDraining)));
  CHECK(testing::comes_true([&] { return process.is_told_to_drain(); }));
}

TEST_CASE("node: what cannot be listened on is an error that says so") {
  registry::MemoryRegistry registry;
  SystemClock clock;
  transport::LoopbackHub hub;
  const auto first = start_node("a", Role::kMixed, "loop:same", registry, &hub, clock);
  REQUIRE(first);
  const auto second = start_node("b", Role::kMixed, "loop:same", registry, &hub, clock);
  REQUIRE_FALSE(second);
  CHECK(second.error().message.find("same") != std::string::npos);
  const auto third = start_node("c", Role::kMixed, "carrier:pigeon", registry, &hub, clock);
  CHECK_FALSE(third);
}

}  // namespace
}  // namespace tandem::node
