// Failures that other systems have had, each as a short run: what went wrong there must not here.
#include <doctest/doctest.h>

#include "cluster/mocker/sim_cluster.h"

namespace tandem::mocker {

using namespace handoff;

namespace {

constexpr Nanos kSecond = 1000 * kMs;

SimConfig small(std::vector<SimNodeSpec> nodes) {
  SimConfig config;
  config.nodes = std::move(nodes);
  config.pool = {64, 32, 16};
  config.max_pinned_blocks = 24;
  config.engine.chunk_tokens = 32;
  return config;
}

const SimNodeSpec kP1{"p1", Role::kPrefill}, kP2{"p2", Role::kPrefill}, kD1{"d1", Role::kDecode},
    kD2{"d2", Role::kDecode};

struct Run {
  SimCluster cluster;
  explicit Run(const SimConfig& config) : cluster(config) { cluster.run_for(kSecond); }

  RequestId ask(size_t prompt, uint32_t max_tokens = 20, uint32_t num_choices = 1) {
    return cluster.submit(0, std::vector<TokenId>(prompt, static_cast<TokenId>(prompt)), num_choices, max_tokens);
  }
  // Everything ends well, and then nothing is left.
  void finish(size_t num_completed, Nanos within = 30 * kSecond) {
    cluster.run_for(within, true);
    CHECK(cluster.num_open() == 0);
    CHECK(cluster.num_completed() == num_completed);
    cluster.run_for(5 * kSecond);
    cluster.check_at_rest();
    CHECK_MESSAGE(cluster.violation().empty(), cluster.violation());
    CHECK(cluster.num_mismatches() == 0);
  }
};

TEST_CASE("PDD-02, PDD-12: a source stopped in mid-push writes into nobody's blocks when it goes on") {
  for (uint32_t message = 1; message <= 12; ++message) {
    Run run(small({kP1, kP2, kD1}));
    run.cluster.stop_at_message(0, message);
    for (size_t i = 0; i < 4; ++i) run.ask(60 + i);
    run.cluster.run_for(700 * kMs);  // others take the blocks
    for (size_t i = 0; i < 4; ++i) run.ask(70 + i);
    run.cluster.continue_node(0);
    run.finish(8);
  }
}

TEST_CASE("PDD-03, PDD-11: waves of cancelled prompts leave nothing, and the next request is served") {
  Run run(small({kP1, kD1}));
  for (int round = 0; round < 4; ++round) {
    std::vector<RequestId> asked;
    for (size_t i = 0; i < 60; ++i) asked.push_back(run.ask(100 + i));
    run.cluster.run_for(static_cast<Nanos>(round) * 7 * kMs + 5 * kMs);
    for (const RequestId& id : asked) run.cluster.cancel(id);
    run.cluster.run_for(50 * kMs);
    run.cluster.check_at_rest();
    CHECK_MESSAGE(run.cluster.violation().empty(), run.cluster.violation());
  }
  const Nanos before = run.cluster.now();
  const size_t num_before = run.cluster.num_completed();  // some were quicker than their cancel
  run.ask(30, 5);
  run.cluster.run_for(2 * kSecond, true);
  CHECK(run.cluster.num_completed() == num_before + 1);
  CHECK(run.cluster.now() - before < 200 * kMs);  // virtual
}

TEST_CASE("PDD-10: kill and stop of either side in each phase: the stream completes") {
  for (const size_t node : {0, 2}) {
    for (const bool is_killed : {false, true}) {
      for (Nanos at = 0; at <= 120 * kMs; at += 8 * kMs) {
        Run run(small({kP1, kP2, kD1, kD2}));
        run.ask(90, 40, 2);
        run.cluster.run_for(at);
        if (is_killed) run.cluster.kill_node(node);
        else run.cluster.stop_node(node);
        run.cluster.run_for(30 * kSecond, true);
        CHECK(run.cluster.num_completed() == 1);
        run.cluster.heal_all();
        run.finish(1);
      }
    }
  }
}

TEST_CASE("PDD-12: a node restarted again and again under load is never taken for its former self") {
  Run run(small({kP1, kD1, kD2}));
  for (size_t i = 0; i < 20; ++i) {
    for (size_t r = 0; r < 3; ++r) run.ask(20 + 5 * r + i);
    run.cluster.run_for(40 * kMs);
    run.cluster.kill_node(i % 3);
    run.cluster.restart_node(i % 3);
    run.cluster.run_for(500 * kMs);
  }
  run.finish(60);
}

TEST_CASE("PDD-14: twelve prompts and room for four: all end, both pools are never overdrawn") {
  SimConfig config = small({kP1, kD1});
  config.pool = {32, 20, 16};
  config.max_pinned_blocks = 4;
  config.prefill_tokens_per_s = 1000;
  Run run(config);
  for (size_t i = 0; i < 12; ++i) run.ask(40 + i, 16);
  run.finish(12);
}

TEST_CASE("PDD-16, DEP-03: draining under load: decodes move, nothing is lost, the node ends up empty") {
  Run run(small({kP1, kD1, kD2}));
  for (size_t i = 0; i < 6; ++i) run.ask(30 + i, 60);
  run.cluster.run_for(60 * kMs);
  run.cluster.drain(1);
  run.cluster.run_for(2 * kSecond);
  CHECK(run.cluster.node(1).is_idle());
  run.ask(33, 10);
  run.finish(7);
  CHECK(run.cluster.node(1).is_idle());
}

TEST_CASE("OVL-01, OVL-02: beyond the queue a request is refused at once, the others end") {
  role::GatewayConfig config;
  config.self = {"g0", 1};
  config.max_requests = 16;
  role::Gateway gateway(config);
  size_t num_accepted = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    RequestState state;
    state.prompt = {1};
    state.choices.resize(1);
    const Status status = gateway.submit({0, i}, std::move(state), 1000 * kMs, 0);
    num_accepted += static_cast<bool>(status);
    if (!status) CHECK(status.error().code == ErrorCode::kExhausted);
  }
  CHECK(num_accepted == 16);
  role::GatewayOuts outs;
  gateway.on_tick(1000 * kMs, outs);  // no node ever came: each has its own deadline
  CHECK(outs.size() == 16);
  CHECK(gateway.requests().empty());
}

TEST_CASE("the next turn of a conversation pushes only what the target does not have") {
  Run run(small({kP1, kD1}));
  std::vector<TokenId> prompt(83);  // five full blocks of 16
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * 7 % 50);
  uint32_t num_known = 0;  // positions whose KV the target kept
  for (int turn = 0; turn < 3; ++turn) {
    const uint64_t before = run.cluster.num_pushed_parts();
    const RequestId id = run.cluster.submit(0, prompt, 1, 20);
    run.cluster.run_for(10 * kSecond, true);
    const size_t num_blocks = (prompt.size() + 15) / 16;
    CHECK(run.cluster.num_pushed_parts() - before == 2 * (num_blocks - num_known / 16));  // two layer groups
    const std::vector<TokenId>& answer = run.cluster.answer(id)[0].tokens;
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    num_known = static_cast<uint32_t>(prompt.size()) - 1;  // the last token's was never computed
    for (TokenId t = 0; t < 9; ++t) prompt.push_back(t);
  }
  run.finish(3);
}

TEST_CASE("prompts that begin alike are pushed once while the first still decodes") {
  Run run(small({kP1, kD1}));
  const auto begin_alike = [](TokenId last) {
    std::vector<TokenId> prompt(64, 5);
    prompt.push_back(last);
    return prompt;
  };
  run.cluster.submit(0, begin_alike(1), 1, 60);
  run.cluster.run_for(100 * kMs);
  CHECK(run.cluster.num_pushed_parts() == 2 * 5);
  CHECK(run.cluster.num_open() == 1);
  run.cluster.submit(0, begin_alike(2), 2, 20);
  run.cluster.run_for(30 * kMs);
  CHECK(run.cluster.num_pushed_parts() == 2 * (5 + 2));  // each choice has its own last block
  CHECK(run.cluster.node(1).num_cached_blocks() == 4);
  run.finish(2);
}

TEST_CASE("a request under which node after node dies ends with an error; one beside it goes on") {
  Run run(small({kP1, kP2, kD1, kD2}));
  const RequestId poison = run.ask(40, 400);
  const auto target = [&] {
    const auto& requests = run.cluster.gateway(0).requests();
    const auto it = requests.find(poison);
    return it == requests.end() ? std::string() : it->second->target().id;
  };
  for (int death = 0; death < 2; ++death) {
    run.cluster.run_for(100 * kMs);
    const std::string where = target();
    for (size_t n = 0; n < run.cluster.num_nodes(); ++n) {
      if (run.cluster.is_node_running(n) && run.cluster.node(n).config().self.id == where) run.cluster.kill_node(n);
    }
    if (death == 0) run.ask(30, 400);  // its node may be the second that dies, and no other
  }
  run.cluster.run_for(10 * kSecond, true);
  CHECK(run.cluster.num_open() == 0);
  CHECK(run.cluster.num_given_up() == 1);
  CHECK(run.cluster.num_failed() == 1);
  run.finish(1);
}

TEST_CASE("a second gateway is not touched by the death of the first, whose requests are freed") {
  SimConfig config = small({kP1, kD1});
  config.num_gateways = 2;
  Run run(config);
  for (uint32_t i = 0; i < 4; ++i) run.cluster.submit(i % 2, std::vector<TokenId>(30 + i, 2), 1, 40);
  run.cluster.run_for(30 * kMs);
  run.cluster.kill_gateway(0);
  run.finish(2);
}

TEST_CASE("nodes of unequal numerics are never a pair") {
  const Fingerprint a{"w", "l", "bf16", "avx512", 16, 30, 3, 1, 1};
  Fingerprint b = a;
  b.numerics = "avx2";
  role::Gateway gateway({{"g0", 1}, {}, 16, 1000, 0, true, true});
  role::GatewayOuts outs;
  gateway.add_node("p1");
  gateway.add_node("d1");
  gateway.on_tick(kSecond, outs);
  const auto hello = [&](const char* id, uint64_t stream, Role role, const Fingerprint& fingerprint) {
    gateway.on_stream_message(id, stream, Hello{1, {id, 7}, {}, fingerprint, role, 0, 64, 4}, kSecond, outs);
  };
  hello("d1", 1, Role::kDecode, a);
  hello("p1", 2, Role::kPrefill, b);
  const auto placed = gateway.place({});
  REQUIRE(placed);
  CHECK(placed->source.id == placed->target.id);
}

}  // namespace
}  // namespace tandem::mocker
