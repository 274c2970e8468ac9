// Requests with a grammar: what the mask leaves out never comes, its end is the answer's end, its faults are its own.

#include <doctest/doctest.h>

#include "serve/sched/mask_for_test.h"
#include "serve/sched/rig_for_test.h"

namespace tandem::sched {
namespace {

Request masked(uint32_t group, uint32_t max_tokens, CountedMaskRule rule = {}) {
  Request request = request_of(prompt_of(10 + group * 7, group), max_tokens);
  add_mask(request, rule);
  return request;
}

TEST_CASE("only what its mask allows comes, for each choice by itself, and neighbours are as without it") {
  std::vector<std::vector<TokenId>> alone;
  for (uint32_t group = 0; group < 8; ++group) {
    Rig rig(roomy_config());
    const RequestId id = rig.add(request_of(prompt_of(20, group), 30));
    rig.run();
    alone.push_back(rig.answer(id).tokens[0]);
    CHECK(!CountedMask::accepts(alone.back()));  // else the check below says nothing
  }
  Rig rig(roomy_config());
  std::vector<RequestId> free, bound;
  for (uint32_t group = 0; group < 8; ++group) {
    free.push_back(rig.add(request_of(prompt_of(20, group), 30)));
    Request request = masked(group, 30);
    request.num_choices = 1 + group % 3;
    bound.push_back(rig.add(std::move(request)));
  }
  rig.run();
  for (uint32_t group = 0; group < 8; ++group) {
    CHECK(rig.answer(free[group]).tokens[0] == alone[group]);
    const Answer& answer = rig.answer(bound[group]);
    CHECK(!answer.error);
    CHECK(answer.tokens.size() == 1 + group % 3);
    for (const auto& [choice, tokens] : answer.tokens) {
      CHECK(tokens.size() == 30);
      CHECK(CountedMask::accepts(tokens));
    }
    if (answer.tokens.size() > 1) CHECK(answer.tokens.at(0) != answer.tokens.at(1));
  }
}

TEST_CASE("the end of the grammar ends the choice with stop, before min_tokens and under ignore_eos as well") {
  for (const bool ignores : {false, true}) {
    Request request = masked(1, 30, {.num_tokens = 5});
    request.min_tokens = 12;
    request.ignore_eos = ignores;
    Rig rig(roomy_config());
    const RequestId id = rig.add(std::move(request));
    rig.run();
    const Answer& answer = rig.answer(id);
    CHECK(answer.tokens.at(0).size() == 5);
    CHECK(answer.finishes.at(0).reason == FinishReason::kStop);
    CHECK(!answer.finishes.at(0).stop_token);  // its last token is part of the answer
    CHECK(!answer.finishes.at(0).by_stop_rule);
  }
}

TEST_CASE("an end token that the grammar lets through ends the choice, whatever ignore_eos says") {
  SchedulerConfig config = roomy_config();
  config.eos_ids = {7, 14, 21, 28, 35, 42, 49, 56, 63, 70, 77, 84, 91, 98};
  for (TokenId id = 100; id < 1000; id += 3) config.eos_ids.push_back(id);
  for (const bool ignores : {false, true}) {
    Request request = masked(2, 200);
    request.ignore_eos = ignores;
    Rig rig(config);
    const RequestId id = rig.add(std::move(request));
    rig.run();
    const Answer& answer = rig.answer(id);
    REQUIRE(answer.finishes.at(0).reason == FinishReason::kStop);
    CHECK(answer.finishes.at(0).stop_token == answer.tokens.at(0).back());
    CHECK(answer.tokens.at(0).size() < 200);
  }
}

TEST_CASE("at its last token a choice that the grammar ends too has stopped, not run out") {
  Rig rig(roomy_config());
  const RequestId id = rig.add(masked(3, 5, {.num_tokens = 5}));
  rig.run();
  CHECK(rig.answer(id).finishes.at(0).reason == FinishReason::kStop);
}

TEST_CASE("a grammar that fails, at its mask or at a token, ends its request and no other") {
  for (const bool at_commit : {false, true}) {
    CAPTURE(at_commit);
    CountedMaskRule rule;
    (at_commit ? rule.commit_fails_at : rule.mask_fails_at) = 4;
    Rig alone(roomy_config());
    const RequestId other = alone.add(request_of(prompt_of(20, 5), 30));
    alone.run();
    Rig rig(roomy_config());
    Request failing = masked(4, 30, rule);
    failing.num_choices = 2;
    const RequestId bad = rig.add(std::move(failing));
    const RequestId good = rig.add(request_of(prompt_of(20, 5), 30));
    const RequestId bound = rig.add(masked(6, 30));
    rig.run();
    REQUIRE(rig.answer(bad).error.has_value());
    CHECK(rig.answer(bad).error->message == (at_commit ? "the commit fails" : "the mask fails"));
    CHECK(rig.answer(bad).tokens.at(0).size() == 4);  // no token of the step that failed
    CHECK(rig.answer(good).tokens.at(0) == alone.answer(other).tokens.at(0));
    CHECK(rig.answer(bound).tokens.at(0).size() == 30);
    CHECK(!rig.answer(bound).error);
  }
}

TEST_CASE("a grammar and stop ids that leave no token are an error of that request alone") {
  Request request = masked(1, 30);
  for (TokenId id = 7; id < 1000; ++id) request.stop_token_ids.push_back(id);
  request.min_tokens = 3;
  Rig rig(roomy_config());
  const RequestId bad = rig.add(std::move(request));
  const RequestId good = rig.add(masked(2, 10));
  rig.run();
  CHECK(rig.answer(bad).error->message == "the grammar and the bans leave no token");
  CHECK(rig.answer(good).tokens.at(0).size() == 10);
}

TEST_CASE("masks are of the tokens, whatever the scheduler does: preempted, in chunks, from the cache, run again") {
  const auto requests = [] {
    std::vector<Request> all;
    for (uint32_t group = 0; group < 12; ++group) {
      all.push_back(masked(group, 20 + group, {.num_tokens = group % 4 == 0 ? 15u : 1u << 30}));
      all.back().num_choices = group % 3 == 0 ? 2 : 1;
    }
    return all;
  };
  const auto run = [&](Rig& rig) {
    std::vector<RequestId> ids;
    for (Request& request : requests()) ids.push_back(rig.add(std::move(request)));
    rig.run();
    std::vector<std::map<uint32_t, std::vector<TokenId>>> outputs;
    for (const RequestId id : ids) {
      CHECK(!rig.answer(id).error);
      outputs.push_back(rig.answer(id).tokens);
    }
    return outputs;
  };
  Rig roomy(roomy_config());
  const auto expected = run(roomy);
  SchedulerConfig config = roomy_config();
  config.force_preempt_every = 3;
  config.forced_chunk = 7;
  Rig forced(config);
  CHECK(run(forced) == expected);
  CHECK(forced.scheduler.counts().num_preemptions > 5);
  CHECK(run(forced) == expected);  // from a warm cache
  config = roomy_config();
  config.num_blocks = 14;
  config.decode_reserve_blocks = 0;
  Rig tight(config);
  CHECK(run(tight) == expected);
  CHECK(tight.scheduler.counts().num_preemptions > 0);
}

TEST_CASE("a step that is rolled back and planned again computes no mask twice and loses none") {
  uint32_t num_masks = 0;
  Rig rig(roomy_config());
  const RequestId id = rig.add(masked(2, 10, {.num_masks = &num_masks}));
  for (int turn = 0; turn < 10; ++turn) {
    const Batch failed = rig.scheduler.plan_step(rig.now_ns);
    REQUIRE(failed.items.at(0).mask != nullptr);
    static_cast<void>(failed.items[0].mask->allowed());
    rig.scheduler.rollback();
    rig.step();
  }
  CHECK(rig.answer(id).tokens.at(0).size() == 10);
  CHECK(CountedMask::accepts(rig.answer(id).tokens.at(0)));
  CHECK(num_masks == 10);
}

}  // namespace
}  // namespace tandem::sched
