// Failures that other systems have had, each as a short run: what went wrong there must not here.
#include <doctest/doctest.h>

#include <algorithm>

#include "cluster/mocker/cases_for_test.h"

namespace tandem::mocker {

using namespace handoff;

namespace {

TEST_CASE("PDD-02, PDD-12: a source stopped in mid-push writes into nobody's blocks when it goes on") {
  for (uint32_t message = 1; message <= 12; ++message) {
    Run run(small_cluster({kP1, kP2, kD1}));
    run.cluster.stop_at_message(0, message);
    for (size_t i = 0; i < 4; ++i) run.ask(60 + i);
    run.cluster.run_for(700 * kMs);  // others take the blocks
    for (size_t i = 0; i < 4; ++i) run.ask(70 + i);
    run.cluster.continue_node(0);
    run.finish(8);
  }
}

TEST_CASE("PDD-03, PDD-11: waves of cancelled prompts leave nothing, and the next request is served") {
  Run run(small_cluster({kP1, kD1}));
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
        Run run(small_cluster({kP1, kP2, kD1, kD2}));
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
  Run run(small_cluster({kP1, kD1, kD2}));
  for (size_t i = 0; i < 20; ++i) {
    for (size_t r = 0; r < 3; ++r) run.ask(20 + 5 * r + i);
    run.cluster.run_for(40 * kMs);
    run.cluster.kill_node(i % 3);
    run.cluster.restart_node(i % 3);
    run.cluster.run_for(500 * kMs);
  }
  run.finish(60);
}

TEST_CASE("PDD-14: many prompts and room for four: all end, both pools are never overdrawn") {
  for (const int policy : {-1, 0, 1, 2}) {
    CAPTURE(policy);
    SimConfig config = small_cluster({kP1, kD1});
    config.pool = {32, 20, 16};
    config.max_pinned_blocks = 4;
    config.prefill_tokens_per_s = 1000;
    if (policy >= 0) config.router = router::RouterConfig{.policy = static_cast<router::Policy>(policy)};
    Run run(config);
    for (size_t i = 0; i < 60; ++i) run.ask(40 + i % 20, 16);
    run.finish(60, 120 * kSecond);
  }
}

TEST_CASE("a request that needs most of the pool gets it in the end, though smaller ones keep coming") {
  SimConfig config = small_cluster({kP1, kD1});
  config.runs_to_length = true;
  config.router = router::RouterConfig{};
  Run run(config);
  const auto small = [&] { return run.ask(30, 40); };
  for (int i = 0; i < 8; ++i) small();
  run.cluster.run_for(100 * kMs);
  const RequestId large = run.ask(300, 100);  // 25 of 32 blocks
  for (int i = 0; i < 600 && run.cluster.gateway(0).requests().contains(large); ++i) {
    run.cluster.run_for(20 * kMs);
    if (run.cluster.num_open() < 12) small();
  }
  CHECK(!run.cluster.gateway(0).requests().contains(large));
  run.cluster.run_for(30 * kSecond, true);
  CHECK(run.cluster.num_failed() == 0);
}

TEST_CASE("without a budget for copies nothing is pinned, and a stream survives its target by computing anew") {
  SimConfig config = small_cluster({kP1, kP2, kD1, kD2});
  config.max_pinned_blocks = 0;
  Run run(config);
  run.ask(60, 60);
  run.cluster.run_for(60 * kMs);
  for (size_t n = 0; n < 4; ++n) CHECK(run.cluster.node(n).num_pinned_blocks() == 0);
  for (const size_t n : {2, 3}) {
    run.cluster.kill_node(n);
    run.cluster.restart_node(n);
    run.cluster.run_for(30 * kMs);
  }
  run.finish(1);
  CHECK(run.cluster.num_recoveries() > 0);
}

TEST_CASE("engines that are much slower than they foresee are called stuck a few times, not for ever") {
  SimConfig config = small_cluster({kP1, kP2, kD1});
  config.engine.slowness = 20;
  config.engine.surprise = 100;  // 2 to 4 s a step
  SUBCASE("patience grows") {
    Run run(config);
    run.ask(120, 3);
    run.finish(1, 120 * kSecond);
    CHECK(run.cluster.num_recoveries() > 0);
  }
  SUBCASE("left out, nothing completes") {
    config.timing.longest_patience = 1;
    Run run(config);
    run.ask(120, 3);
    run.cluster.run_for(120 * kSecond, true);
    CHECK(run.cluster.num_completed() == 0);
  }
}

TEST_CASE("PDD-16, DEP-03: draining under load: decodes move, nothing is lost, the node ends up empty") {
  Run run(small_cluster({kP1, kD1, kD2}));
  for (size_t i = 0; i < 6; ++i) run.ask(30 + i, 60);
  run.cluster.run_for(60 * kMs);
  run.cluster.drain(1);
  run.cluster.run_for(2 * kSecond);
  CHECK(run.cluster.node(1).is_idle());
  run.ask(33, 10);
  run.finish(7);
  CHECK(run.cluster.node(1).is_idle());
}

// The faults: how many there are is not looked at; a request that no node takes outlives its deadline.
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
    const Status status = gateway.submit({0, i}, std::move(state), 0, {1000 * kMs});
    num_accepted += static_cast<bool>(status);
    if (!status) CHECK(status.error().code == ErrorCode::kExhausted);
  }
  CHECK(num_accepted == 16);
  role::GatewayOuts outs;
  gateway.on_tick(1000 * kMs, outs);  // no node ever came: each has its own deadline
  const auto is_end = [](const role::GatewayOut& out) { return std::holds_alternative<role::RequestEnded>(out); };
  CHECK(std::ranges::count_if(outs, is_end) == 16);
  CHECK(gateway.requests().empty());
}

TEST_CASE("the next turn of a conversation pushes only what the target does not have") {
  Run run(small_cluster({kP1, kD1}));
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
  SimConfig config = small_cluster({kP1, kD1});
  config.runs_to_length = true;
  Run run(config);
  const auto begin_alike = [](TokenId last) {
    std::vector<TokenId> prompt(64, 5);
    prompt.push_back(last);
    return prompt;
  };
  run.cluster.submit(0, begin_alike(1), 1, 60);
  run.cluster.run_for(50 * kMs);
  CHECK(run.cluster.num_pushed_parts() == 2 * 5);
  CHECK(run.cluster.num_open() == 1);
  run.cluster.submit(0, begin_alike(2), 2, 20);
  run.cluster.run_for(30 * kMs);
  CHECK(run.cluster.num_pushed_parts() == 2 * (5 + 2));  // each choice has its own last block
  CHECK(run.cluster.node(1).num_cached_blocks() == 4);
  run.finish(2);
}

// Two requests; the node that decodes the first is lost, and then the next one that does.
struct TwoLosses {
  static SimConfig config() {
    SimConfig config = small_cluster({kP1, kP2, kD1, kD2});
    config.runs_to_length = true;
    return config;
  }
  Run run{config()};
  RequestId first = run.ask(40, 300), second = run.ask(30, 300);

  size_t node_that_decodes() {
    const std::string where = run.cluster.gateway(0).requests().at(first)->target().id;
    size_t n = 0;
    while (run.cluster.node_id(n) != where) ++n;
    return n;
  }
  template <class Loss>
  void lose_twice(const Loss& loss) {
    for (int i = 0; i < 2; ++i) {
      run.cluster.run_for(100 * kMs);
      REQUIRE(run.cluster.gateway(0).requests().at(first)->phase() == GatewayRequest::Phase::kDecoding);
      loss(node_that_decodes());
    }
  }
};

TEST_CASE("a request under which node after node dies ends with an error; one beside it goes on") {
  TwoLosses t;
  SimCluster& cluster = t.run.cluster;
  SUBCASE("nobody restarts them") {
    t.lose_twice([&](size_t n) { cluster.kill_node(n); });
  }
  SUBCASE("they are there again at once") {
    t.lose_twice([&](size_t n) {
      cluster.kill_node(n);
      cluster.restart_node(n);
    });
  }
  cluster.run_for(kSecond);  // known long before death_known
  CHECK(cluster.num_given_up() == 1);
  CHECK(cluster.num_failed() == 1);
  t.run.finish(1);
}

TEST_CASE("a request whose sessions end while the processes live is never given up") {
  TwoLosses t;
  SimCluster& cluster = t.run.cluster;
  SUBCASE("streams that break") {
    t.lose_twice([&](size_t n) { cluster.break_stream(0, n); });
  }
  SUBCASE("links that are cut for good") {
    t.lose_twice([&](size_t n) {
      cluster.break_stream(0, n);
      cluster.cut_from_gateway(0, n, true);
    });
  }
  SUBCASE("one of them dies") {
    bool is_dead = false;
    t.lose_twice([&](size_t n) {
      if (is_dead) cluster.break_stream(0, n);
      else cluster.kill_node(n);
      is_dead = true;
    });
  }
  cluster.run_for(30 * kSecond, true);
  CHECK(cluster.num_failed() == 0);
  cluster.heal_all();
  t.run.finish(2);
}

TEST_CASE("each part of a request's way is told once, and by none that has no part in it") {
  SUBCASE("over two nodes") {
    Run run(small_cluster({kP1, kD1}));
    run.ask(90, 20);
    run.finish(1);
    for (const Part part : {Part::kPrefillQueue, Part::kPrefill, Part::kPush, Part::kTransfer, Part::kDecodeQueue,
                            Part::kFirstEmit, Part::kDecode}) {
      const auto it = run.cluster.part_times().find(part);
      REQUIRE_MESSAGE(it != run.cluster.part_times().end(), name_of(part));
      CHECK_MESSAGE(it->second.size() == 1, name_of(part));
    }
    const auto time = [&](Part part) { return run.cluster.part_times().at(part)[0]; };
    CHECK(time(Part::kPrefill) > 0);
    // What the target counts from the prefill's end is part of what the source sees pass until the acknowledgement.
    CHECK(time(Part::kTransfer) <= time(Part::kPush));
    CHECK(time(Part::kDecodeQueue) + time(Part::kFirstEmit) <= time(Part::kDecode));
  }
  SUBCASE("where the source is the target nothing is moved") {
    Run run(small_cluster({{"m1", Role::kMixed}}));
    run.ask(90, 20);
    run.finish(1);
    CHECK(run.cluster.part_times().at(Part::kPrefill).size() == 1);
    CHECK(run.cluster.part_times().at(Part::kDecode).size() == 1);
    CHECK(!run.cluster.part_times().contains(Part::kTransfer));
    CHECK(!run.cluster.part_times().contains(Part::kPush));
  }
}

TEST_CASE("a suspicion is false when the same process greets again, and only then") {
  Run run(small_cluster({kP1, kD1, kD2}));
  run.ask(60, 400);
  run.cluster.run_for(100 * kMs);
  SUBCASE("it was stopped") {
    run.cluster.stop_node(1);
    run.cluster.stop_node(2);
    run.cluster.run_for(2 * kSecond);
    CHECK(run.cluster.num_suspicions() > 0);
    CHECK(run.cluster.gateway(0).num_false_suspicions() == 0);
    run.cluster.heal_all();
    run.cluster.run_for(2 * kSecond);
    CHECK(run.cluster.gateway(0).num_false_suspicions() == run.cluster.num_suspicions());
  }
  SUBCASE("it died") {
    run.cluster.kill_node(1);
    run.cluster.kill_node(2);
    run.cluster.heal_all();
    run.cluster.run_for(2 * kSecond);
    CHECK(run.cluster.gateway(0).num_false_suspicions() == 0);
  }
}

TEST_CASE("a second gateway is not touched by the death of the first, whose requests are freed") {
  SimConfig config = small_cluster({kP1, kD1});
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
    Hello said;
    said.from = {id, 7};
    said.fingerprint = fingerprint;
    said.role = role;
    said.capacity_blocks = 64;
    said.credits = 4;
    gateway.on_stream_message(id, stream, said, kSecond, outs);
  };
  hello("d1", 1, Role::kDecode, a);
  hello("p1", 2, Role::kPrefill, b);
  const auto placed = gateway.place({});
  REQUIRE(placed);
  CHECK(placed->source.id == placed->target.id);
}

TEST_CASE("a node that does not answer is tried ever more rarely, until it says Hello or its record changes") {
  role::Gateway gateway({{"g0", 1}, {}, 16, 1000, 0, true, true});
  gateway.add_node("m0");
  Nanos now = kSecond;
  // Until a stream is opened: how long that took, and which stream it is.
  const auto pause = [&] {
    for (const Nanos begin = now;; now += 50 * kMs) {
      role::GatewayOuts outs;
      gateway.on_tick(now, outs);
      for (const role::GatewayOut& out : outs) {
        if (std::holds_alternative<role::OpenStream>(out)) return (now - begin) / kMs;
      }
    }
  };
  const auto lose = [&] {
    role::GatewayOuts outs;
    gateway.on_stream_closed("m0", gateway.links().at("m0").stream, now, outs);
  };
  const auto pauses = [&](size_t count) {
    std::vector<Nanos> all;
    for (size_t i = 0; i < count; ++i) lose(), all.push_back(pause());
    return all;
  };
  CHECK(pause() == 0);
  CHECK(pauses(7) == std::vector<Nanos>{100, 200, 400, 800, 1600, 2000, 2000});
  lose();
  gateway.add_node("m0");
  CHECK(pause() == 0);
  CHECK(pauses(2) == std::vector<Nanos>{100, 200});
  role::GatewayOuts outs;
  Hello hello;
  hello.from = {"m0", 7};
  gateway.on_stream_message("m0", gateway.links().at("m0").stream, hello, now, outs);
  REQUIRE(gateway.links().at("m0").state == role::LinkState::kOpen);
  CHECK(pauses(3) == std::vector<Nanos>{100, 100, 200});
}

}  // namespace
}  // namespace tandem::mocker
