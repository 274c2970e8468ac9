#include "serve/sched/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "serve/sched/rig_for_test.h"

namespace tandem::sched {
namespace {

TEST_CASE("how a choice ends") {
  Rig rig(roomy_config());
  const std::vector<TokenId> prompt = {10, 11};
  Request request = request_of(prompt, 6);
  rig.executor.set_script(prompt, {20, 21, 2, 22, 23, 24, 25});
  std::vector<TokenId> expected;
  Finish finish;
  SUBCASE("by the model's end token, which is the last token") {
    expected = {20, 21, 2};
    finish = {FinishReason::kStop, 2, false};
  }
  SUBCASE("not by it when it is ignored") {
    request.ignore_eos = true;
    expected = {20, 21, 2, 22, 23, 24};
    finish = {FinishReason::kLength, std::nullopt, false};
  }
  SUBCASE("by the request's stop token, also when end tokens are ignored") {
    request.ignore_eos = true;
    request.stop_token_ids = {22};
    expected = {20, 21, 2, 22};
    finish = {FinishReason::kStop, 22, false};
  }
  SUBCASE("not before min_tokens are out") {
    request.min_tokens = 4;  // the script says 2 all the same, as a faulty sampler might
    request.stop_token_ids = {20, 22};
    expected = {20, 21, 2, 22};
    finish = {FinishReason::kStop, 22, false};
  }
  SUBCASE("by max_tokens") {
    request.max_tokens = 2;
    expected = {20, 21};
    finish = {FinishReason::kLength, std::nullopt, false};
  }
  const RequestId id = rig.add(request);
  rig.run();
  CHECK(rig.answer(id).tokens[0] == expected);
  REQUIRE(rig.answer(id).finishes.contains(0));
  CHECK(rig.answer(id).finishes[0].reason == finish.reason);
  CHECK(rig.answer(id).finishes[0].stop_token == finish.stop_token);
  CHECK(!rig.answer(id).finishes[0].by_stop_rule);
  CHECK(rig.scheduler.pool().num_owned() == 0);
}

TEST_CASE("end and stop tokens are banned from sampling until min_tokens are out, and no longer") {
  Rig rig(roomy_config());
  std::vector<std::vector<TokenId>> banned;
  rig.executor.set_observer([&](uint64_t, const Batch& batch) { banned.push_back(batch.items[0].sampling->banned); });
  Request request = request_of(prompt_of(5, 1), 5);
  request.min_tokens = 2;
  request.stop_token_ids = {50};
  request.sampling.banned = {70};
  rig.add(request);
  rig.run();
  REQUIRE(banned.size() >= 3);
  CHECK(banned[0] == std::vector<TokenId>{70, 2, 50});
  CHECK(banned[1] == std::vector<TokenId>{70, 2, 50});
  CHECK(banned[2] == std::vector<TokenId>{70});
}

// Stops after three tokens, and notes what it saw.
class CountingRule final : public StopRule {
 public:
  explicit CountingRule(std::vector<bool>& seen) : seen_(seen) {}
  bool push(TokenId, bool may_stop) override {
    seen_.push_back(may_stop);
    return may_stop && seen_.size() >= 3;
  }

 private:
  std::vector<bool>& seen_;
};

TEST_CASE("a stop rule sees every token once, through preemption too") {
  Rig rig(roomy_config());
  std::vector<bool> seen;
  Request request = request_of(prompt_of(20, 1), 50);
  request.ignore_eos = true;
  request.min_tokens = 5;
  request.make_stop_rule = [&seen] { return std::make_unique<CountingRule>(seen); };
  const RequestId id = rig.add(request);
  for (int i = 0; rig.step(); ++i) {
    if (i == 2) CHECK(rig.scheduler.preempt_one());
  }
  CHECK(seen == std::vector<bool>{false, false, false, false, true});
  CHECK(rig.answer(id).tokens[0].size() == 5);
  CHECK(rig.answer(id).finishes[0].by_stop_rule);
}

// The faults: a choice may have as many tokens as are asked for; its end goes by the model's length alone.
TEST_CASE("KVC-06, KVC-07: the model's length and the pool's size end a choice") {
  SchedulerConfig config = roomy_config();
  config.eos_ids = {};
  SUBCASE("context") {
    config.max_model_len = 40;
    Rig rig(config);
    const RequestId id = rig.add(request_of(prompt_of(30, 1), 1000));
    rig.run();
    CHECK(rig.answer(id).tokens[0].size() == 10);
    CHECK(rig.answer(id).finishes[0].reason == FinishReason::kLength);
  }
  SUBCASE("pool: the last token needs no place in it") {
    config.num_blocks = 3;
    Rig rig(config);
    const RequestId id = rig.add(request_of(prompt_of(40, 1), 1000));
    rig.run();
    CHECK(rig.answer(id).tokens[0].size() == 9);
    CHECK(rig.answer(id).finishes[0].reason == FinishReason::kLength);
  }
}

TEST_CASE("scoring a prompt generates nothing, for every choice") {
  Rig rig(roomy_config());
  Request request = request_of(prompt_of(50, 1), 0);
  request.prompt_logprobs = 1;
  request.num_choices = 2;
  const RequestId id = rig.add(request);
  rig.run();
  CHECK(rig.answer(id).is_done);
  CHECK(rig.answer(id).prompt_logprobs.size() == 49);
  CHECK(rig.answer(id).tokens[0].empty());
  CHECK(rig.answer(id).finishes.size() == 2);
  CHECK(rig.executor.num_steps() == 1);
}

TEST_CASE("KVC-05: cancelling frees everything, in every state") {
  SchedulerConfig config = roomy_config();
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 20;
  for (int num_steps = 0; num_steps < 12; ++num_steps) {
    CAPTURE(num_steps);
    Rig rig(config);
    std::vector<RequestId> ids;
    Request forked = request_of(prompt_of(30, 1), 30);
    forked.num_choices = 3;
    ids.push_back(rig.add(forked));
    for (uint32_t i = 0; i < 4; ++i) ids.push_back(rig.add(request_of(prompt_of(25, 2 + i), 30)));
    for (int i = 0; i < num_steps; ++i) rig.step();
    if (num_steps % 3 == 2) rig.scheduler.preempt_one();
    for (const RequestId id : ids) {
      const auto update = rig.scheduler.cancel(id);
      REQUIRE(update);
      CHECK(update->is_last);
      for (const ChoiceDelta& delta : update->deltas) CHECK(delta.finish->reason == FinishReason::kCancelled);
      rig.scheduler.check_invariants();
    }
    CHECK(rig.scheduler.is_idle());
    CHECK(rig.scheduler.pool().num_owned() == 0);
    CHECK(rig.scheduler.counts().num_waiting == 0);
    CHECK(!rig.scheduler.cancel(ids[0]));
  }
}

TEST_CASE("a failed step is planned again as it was") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 12;
  config.max_num_batched_tokens = 48;
  config.max_num_seqs = 6;
  Rig rig(config);
  for (uint32_t i = 0; i < 10; ++i) {
    Request request = request_of(prompt_of(5 + i * 7, i / 2), 20);
    request.num_choices = 1 + i % 2;
    rig.add(request);
  }
  for (int i = 0; !rig.scheduler.is_idle(); ++i) {
    const std::string before = rig.scheduler.dump();
    const Batch first = rig.scheduler.plan_step(rig.now_ns);
    std::vector<std::pair<SequenceId, uint32_t>> planned;
    for (const BatchItem& item : first.items) planned.emplace_back(item.sequence, item.begin);
    rig.scheduler.discard_plan();
    REQUIRE(rig.scheduler.dump() == before);
    const Batch again = rig.scheduler.plan_step(rig.now_ns);
    REQUIRE(again.items.size() == planned.size());
    for (size_t k = 0; k < planned.size(); ++k) {
      CHECK(again.items[k].sequence == planned[k].first);
      CHECK(again.items[k].begin == planned[k].second);
    }
    // The step runs, fails, and has written KV: what it evicted must not be found again.
    REQUIRE(rig.executor.execute(again));
    rig.scheduler.rollback();
    rig.scheduler.check_invariants();
    rig.step();
    REQUIRE(i < 10000);
  }
  for (const auto& [id, answer] : rig.answers) CHECK(answer.is_done);
}

TEST_CASE("what a failed step may have overwritten is not found again") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 4;
  Rig rig(config);
  rig.add(request_of(prompt_of(49, 1), 1));
  rig.run();
  REQUIRE(rig.scheduler.pool().num_cached() == 3);
  const RequestId other = rig.add(request_of(prompt_of(60, 2), 1));
  REQUIRE(rig.executor.execute(rig.scheduler.plan_step(rig.now_ns)));
  rig.scheduler.rollback();
  rig.scheduler.check_invariants();
  REQUIRE(rig.scheduler.cancel(other));
  CHECK(rig.scheduler.pool().num_cached() == 0);
  const RequestId again = rig.add(request_of(prompt_of(49, 1), 1));
  rig.run();
  CHECK(rig.answer(again).num_cached_tokens == 0);
}

TEST_CASE("a sequence that a failed step has preempted stays preempted, and comes back right") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 6;
  config.decode_reserve_blocks = 0;
  config.eos_ids = {};
  config.enable_prefix_caching = false;
  std::vector<Request> requests = {request_of(prompt_of(30, 1), 40), request_of(prompt_of(30, 2), 40)};
  Rig rig(config);
  for (const Request& request : requests) rig.add(request);
  for (int i = 0; !rig.scheduler.is_idle(); ++i) {
    REQUIRE(i < 1000);
    const uint64_t num_before = rig.scheduler.counts().num_preemptions;
    const Batch batch = rig.scheduler.plan_step(rig.now_ns);
    const bool has_preempted = rig.scheduler.counts().num_preemptions > num_before;
    if (has_preempted) REQUIRE(rig.executor.execute(batch));
    has_preempted ? rig.scheduler.rollback() : rig.scheduler.discard_plan();
    if (has_preempted) CHECK(rig.scheduler.counts().num_running == 1);
    rig.scheduler.check_invariants();
    rig.step();
  }
  CHECK(rig.scheduler.counts().num_preemptions > 0);
  for (size_t i = 0; i < 2; ++i) {
    Rig alone(config);
    const RequestId id = alone.add(requests[i]);
    alone.run();
    CHECK(rig.answer(RequestId{i + 1}).tokens == alone.answer(id).tokens);
  }
}

// The fault: a preempted sequence goes back to its place in the line, behind whoever is shorter or more urgent.
TEST_CASE("KVC-08: a preempted sequence goes before all that wait, also before shorter and more urgent ones") {
  SchedulerConfig config = roomy_config();
  config.max_num_seqs = 2;
  config.window_ms = 0;
  Rig rig(config);
  std::vector<SequenceId> newest;
  rig.executor.set_observer([&](uint64_t, const Batch& batch) {
    newest.clear();
    for (const BatchItem& item : batch.items) newest.push_back(item.sequence);
  });
  rig.add(request_of(prompt_of(30, 1), 40));
  rig.add(request_of(prompt_of(120, 2), 40));
  rig.step();
  rig.step();
  Request urgent = request_of(prompt_of(3, 3), 2);
  urgent.priority = -1;
  rig.add(urgent);
  REQUIRE(rig.scheduler.preempt_one());
  rig.step();
  CHECK(newest == std::vector<SequenceId>{SequenceId{1}, SequenceId{2}});
}

TEST_CASE("an item's error ends its request alone") {
  Rig rig(roomy_config());
  rig.executor.fail_items_with(999);
  Request healthy = request_of(prompt_of(20, 1), 5);
  healthy.ignore_eos = true;
  const RequestId good = rig.add(healthy);
  std::vector<TokenId> poisoned = prompt_of(20, 2);
  poisoned[10] = 999;
  Request bad = request_of(poisoned, 5);
  bad.num_choices = 2;
  const RequestId failing = rig.add(bad);
  rig.run();
  CHECK(!rig.answer(good).error);
  REQUIRE(rig.answer(good).finishes.contains(0));
  CHECK(rig.answer(good).tokens[0].size() == 5);
  REQUIRE(rig.answer(failing).error);
  CHECK(rig.answer(failing).error->code == ErrorCode::kInternal);
  CHECK(rig.answer(failing).is_done);
  CHECK(rig.scheduler.pool().num_owned() == 0);
}

TEST_CASE("a request whose deadline passes ends with kDeadline, wherever it is") {
  SchedulerConfig config = roomy_config();
  config.max_num_seqs = 1;
  Rig rig(config);
  Request running = request_of(prompt_of(20, 1), 500);
  running.ignore_eos = true;
  running.deadline_ns = 50'000'000;
  Request waiting = request_of(prompt_of(20, 2), 5);
  waiting.deadline_ns = 20'000'000;
  const RequestId a = rig.add(running);
  const RequestId b = rig.add(waiting);
  const RequestId c = rig.add(request_of(prompt_of(20, 3), 2));
  rig.run();
  REQUIRE(rig.answer(a).error);
  CHECK(rig.answer(a).error->code == ErrorCode::kDeadline);
  CHECK(rig.answer(a).tokens[0].size() > 5);
  REQUIRE(rig.answer(b).error);
  CHECK(rig.answer(b).error->code == ErrorCode::kDeadline);
  CHECK(rig.answer(c).finishes[0].reason == FinishReason::kLength);
}

TEST_CASE("a long prompt gets its turn under an endless stream of short ones") {
  SchedulerConfig config = roomy_config();
  config.max_num_batched_tokens = 64;
  config.line.short_first_ms_per_token = 1;
  Rig rig(config);
  const RequestId longest = rig.add(request_of(prompt_of(900, 1), 1));
  uint32_t num_short = 0;
  // Two short prompts a step would use up the whole budget for ever.
  while (!rig.answer(longest).is_done) {
    REQUIRE(num_short < 4000);
    for (int i = 0; i < 2; ++i) rig.add(request_of(prompt_of(32, 100 + num_short++), 1));
    rig.step();
  }
  // 900 tokens are worth 900 ms; then only those that came before go first.
  CHECK(rig.answer(longest).end_ns > 900'000'000);
  CHECK(rig.answer(longest).end_ns < 2'500'000'000);
}

TEST_CASE("low priority is served in the end under an endless stream of high priority") {
  SchedulerConfig config = roomy_config();
  config.max_num_seqs = 2;
  config.line.priority_step_ms = 500;
  Rig rig(config);
  rig.add(request_of(prompt_of(20, 1), 3));
  Request low = request_of(prompt_of(20, 2), 1);
  low.priority = 2;
  const RequestId id = rig.add(low);
  uint32_t i = 0;
  while (!rig.answer(id).is_done) {
    REQUIRE(i < 2000);
    for (int k = 0; k < 2; ++k) rig.add(request_of(prompt_of(20, 10 + i++), 2));
    rig.step();
  }
  CHECK(rig.answer(id).end_ns > 500'000'000);
}

TEST_CASE("decode never waits for prompts: every running sequence has a row in every step") {
  SchedulerConfig config = roomy_config();
  config.max_num_batched_tokens = 32;
  config.max_num_seqs = 16;
  config.window_ms = 0;
  Rig rig(config);
  Request request = request_of(prompt_of(10, 1), 200);
  request.ignore_eos = true;
  const RequestId stream = rig.add(request);
  rig.step();
  size_t num_before = rig.answer(stream).tokens[0].size();
  for (uint32_t i = 0; !rig.answer(stream).is_done; ++i) {
    rig.add(request_of(prompt_of(40, 10 + i), 1));  // more than a step can take
    rig.step();
    CHECK(rig.answer(stream).tokens[0].size() == ++num_before);
  }
}

TEST_CASE("KVC-06: a request too large for what is free holds back those behind it, and is not passed for ever") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 16;
  config.line.short_first_ms_per_token = 0.5;
  config.eos_ids = {};
  Rig rig(config);
  for (uint32_t i = 0; i < 4; ++i) rig.add(request_of(prompt_of(40, i), 20));
  rig.step();
  const RequestId large = rig.add(request_of(prompt_of(200, 50), 2));
  uint32_t i = 0;
  while (!rig.answer(large).is_done) {
    REQUIRE(i < 1000);
    rig.add(request_of(prompt_of(40, 100 + i++), 20));
    rig.step();
  }
}

TEST_CASE("tenants share the tokens by weight, however many requests each sends") {
  SchedulerConfig config = roomy_config();
  config.max_num_batched_tokens = 64;
  config.max_num_seqs = 8;
  config.enable_prefix_caching = false;
  config.tenant_weights = {{"gold", 3}};
  Rig rig(config);
  std::map<std::string, uint64_t> served;
  std::map<RequestId, std::string> tenants;
  uint32_t next = 0;
  const auto refill = [&](const std::string& tenant, size_t num_open) {
    size_t open = 0;
    for (const auto& [id, name] : tenants) open += name == tenant && !rig.answer(id).is_done;
    for (; open < num_open; ++open) {
      Request request = request_of(prompt_of(32, ++next), 1);
      request.tenant = tenant;
      tenants[rig.add(request)] = tenant;
    }
  };
  for (int step = 0; step < 400; ++step) {
    refill("flood", 40);
    refill("gold", 6);
    refill("plain", 6);
    rig.step();
  }
  for (const auto& [id, tenant] : tenants) served[tenant] += rig.answer(id).is_done;
  const double all = static_cast<double>(served["flood"] + served["gold"] + served["plain"]);
  CHECK(served["gold"] / all == doctest::Approx(0.6).epsilon(0.05));
  CHECK(served["flood"] / all == doctest::Approx(0.2).epsilon(0.05));
  CHECK(served["plain"] / all == doctest::Approx(0.2).epsilon(0.05));
}

TEST_CASE("a tenant that was away has no claim on that time") {
  SchedulerConfig config = roomy_config();
  config.max_num_batched_tokens = 32;
  config.max_num_seqs = 4;
  config.enable_prefix_caching = false;
  Rig rig(config);
  const auto add = [&](const std::string& tenant, uint32_t group) {
    Request request = request_of(prompt_of(32, group), 1);
    request.tenant = tenant;
    return rig.add(request);
  };
  for (uint32_t i = 0; i < 60; ++i) add("busy", i);
  for (int i = 0; i < 30; ++i) rig.step();
  std::vector<RequestId> late;
  for (uint32_t i = 0; i < 20; ++i) late.push_back(add("late", 100 + i));
  for (int i = 0; i < 20; ++i) rig.step();
  const auto num_done = std::count_if(late.begin(), late.end(), [&](RequestId id) { return rig.answer(id).is_done; });
  CHECK(num_done >= 9);
  CHECK(num_done <= 11);
}

TEST_CASE("prompts stay out of the private part, also when they come back from preemption") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 12;
  config.num_private_blocks = 4;
  config.eos_ids = {};
  Rig rig(config);
  for (uint32_t i = 0; i < 20; ++i) rig.add(request_of(prompt_of(60, i), 40));
  for (int i = 0; rig.step(); ++i) {
    REQUIRE(i < 10000);
    CHECK(rig.scheduler.pool().num_charged(kv::Part::kShared) <= 8);
    if (i % 10 == 9) rig.scheduler.preempt_one();
  }
  for (const auto& [id, answer] : rig.answers) CHECK(answer.finishes.at(0).reason == FinishReason::kLength);
}

}  // namespace
}  // namespace tandem::sched
