// A request's tokens do not depend on its company: 64 mixed requests, alone and in every kind of company.

#include <doctest/doctest.h>

#include <algorithm>

#include "serve/sched/rig_for_test.h"

namespace tandem::sched {
namespace {

using Outputs = std::vector<std::map<uint32_t, std::vector<TokenId>>>;

std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 64; ++i) {
    // Every fourth shares a prefix with others, of 0 to 4 blocks.
    Request request = request_of(prompt_of(1 + (i * 37) % 150, i % 4 == 0 ? 0 : i), 1 + (i * 13) % 40);
    request.sampling.seed = i % 3;
    request.num_choices = i % 8 == 5 ? 2 : 1;
    request.prompt_logprobs = i % 9 == 3 ? 2 : -1;
    request.tenant = i % 3 == 0 ? "x" : "y";
    request.priority = static_cast<int32_t>(i % 2);
    requests.push_back(std::move(request));
  }
  return requests;
}

// What each request gets when nothing else is there.
const Outputs& outputs_alone() {
  static const Outputs outputs = [] {
    Outputs alone;
    for (const Request& request : mixed_requests()) {
      Rig rig(roomy_config());
      const RequestId id = rig.add(request);
      rig.run();
      alone.push_back(rig.answer(id).tokens);
    }
    return alone;
  }();
  return outputs;
}

Outputs run_together(Rig& rig) {
  std::vector<RequestId> ids;
  for (const Request& request : mixed_requests()) ids.push_back(rig.add(request));
  rig.run();
  Outputs outputs;
  for (const RequestId id : ids) outputs.push_back(rig.answer(id).tokens);
  return outputs;
}

// Fails when what a request samples goes by its place in the batch.
TEST_CASE("SCH-05, SMP-04: alone and all together") {
  Rig rig(roomy_config());
  CHECK(run_together(rig) == outputs_alone());
}

TEST_CASE("KVC-03, SCH-04: in forced chunks") {
  for (const uint32_t chunk : {7u, 16u, 33u, 64u}) {
    CAPTURE(chunk);
    SchedulerConfig config = roomy_config();
    config.forced_chunk = chunk;
    Rig rig(config);
    CHECK(run_together(rig) == outputs_alone());
  }
}

TEST_CASE("KVC-03: with a cold, a warm and a fully hit prefix cache") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 2048;
  Rig rig(config);
  CHECK(run_together(rig) == outputs_alone());
  const uint64_t hits_cold = rig.scheduler.counts().prefix_hits_tokens;
  CHECK(run_together(rig) == outputs_alone());
  const SchedulerCounts counts = rig.scheduler.counts();
  CHECK(counts.prefix_hits_tokens > hits_cold + counts.prefix_queries_tokens / 4);
  config.enable_prefix_caching = false;
  Rig without(config);
  CHECK(run_together(without) == outputs_alone());
  CHECK(without.scheduler.pool().num_cached() == 0);
}

// The fault: a preempted sequence loses its newest token.
TEST_CASE("KVC-08, SMP-04: after forced preemption, and in a pool that forces it") {
  SchedulerConfig config = roomy_config();
  config.force_preempt_every = 3;
  Rig forced(config);
  CHECK(run_together(forced) == outputs_alone());
  CHECK(forced.scheduler.counts().num_preemptions > 10);
  config.force_preempt_every = 0;
  config.num_blocks = 14;
  config.decode_reserve_blocks = 0;
  Rig tight(config);
  CHECK(run_together(tight) == outputs_alone());
  CHECK(tight.scheduler.counts().num_preemptions > 0);
}

TEST_CASE("with larger blocks, a private part, few seats and everything forced at once") {
  SchedulerConfig config = roomy_config();
  config.block_size = 48;
  config.num_blocks = 9;
  config.num_private_blocks = 3;
  config.max_num_seqs = 5;
  config.max_num_batched_tokens = 40;
  config.forced_chunk = 11;
  config.force_preempt_every = 5;
  Rig rig(config);
  CHECK(run_together(rig) == outputs_alone());
}

TEST_CASE("SCH-04: prompt logprobs are whole in whatever chunks") {
  Request request = request_of(prompt_of(100, 1), 3);
  request.prompt_logprobs = 2;
  Rig whole(roomy_config());
  const RequestId a = whole.add(request);
  whole.run();
  REQUIRE(whole.answer(a).prompt_logprobs.size() == 99);

  SchedulerConfig config = roomy_config();
  config.forced_chunk = 7;
  config.max_num_batched_tokens = 8;
  config.max_num_seqs = 8;
  Rig chunked(config);
  chunked.add(request_of(prompt_of(100, 1), 1));  // leaves the prompt in the cache
  chunked.run();
  for (uint32_t i = 0; i < 6; ++i) chunked.add(request_of(prompt_of(4, 20 + i), 30));
  const RequestId b = chunked.add(request);
  chunked.run();
  const auto& got = chunked.answer(b).prompt_logprobs;
  REQUIRE(got.size() == 99);
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].token == request.prompt[i + 1]);
    CHECK(got[i].logprob == whole.answer(a).prompt_logprobs[i].logprob);
  }
  CHECK(chunked.answer(b).num_cached_tokens == 0);
  CHECK(chunked.answer(b).tokens == whole.answer(a).tokens);
}

// The faults: logprobs published chunk by chunk; those of the newest chunk kept alone; the prompt sampled after every
// chunk.
TEST_CASE("SCH-04: a scored prompt that steps pass over says nothing before it is whole, and then all of it") {
  for (const uint32_t max_tokens : {0u, 3u}) {
    Request request = request_of(prompt_of(48, 1), max_tokens);
    request.prompt_logprobs = 1;
    request.tenant = "x";
    Rig whole(roomy_config());
    const RequestId a = whole.add(request);
    whole.run();

    SchedulerConfig config = roomy_config();
    config.max_num_batched_tokens = 16;
    config.max_num_seqs = 8;
    config.window_ms = 0;
    config.tpot_target_ms = 0;
    Rig rig(config);
    uint32_t num_chunks = 0, num_passed_over = 0;
    const auto seen = std::make_shared<std::vector<TokenId>>(request.prompt);
    rig.executor.set_observer([&](uint64_t, const Batch& batch) {
      const bool has_chunk = std::ranges::any_of(batch.items, [&](const BatchItem& item) {
        return std::ranges::equal(item.tokens.first(item.num_prompt_tokens), *seen);
      });
      ++(has_chunk ? num_chunks : num_passed_over);
    });
    const RequestId b = rig.add(request);
    REQUIRE(rig.step());
    // Another tenant's, which have had nothing yet and take whole steps.
    for (uint32_t i = 0; i < 3; ++i) rig.add(request_of(prompt_of(40, 30 + i), 20));
    const uint32_t before = num_passed_over;
    while (rig.answer(b).prompt_logprobs.empty()) {
      CHECK(rig.answer(b).tokens.empty());
      REQUIRE(rig.step());
    }
    CHECK(num_chunks >= 3);
    CHECK(num_passed_over > before);
    rig.run();
    const auto& got = rig.answer(b).prompt_logprobs;
    REQUIRE(got.size() == 47);
    for (size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].token == request.prompt[i + 1]);
      CHECK(got[i].logprob == whole.answer(a).prompt_logprobs[i].logprob);
    }
    CHECK(rig.answer(b).tokens == whole.answer(a).tokens);
  }
}

TEST_CASE("embeddings are the same alone, together, in chunks, cached and preempted") {
  const auto pooled_requests = [] {
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 12; ++i) {
      requests.push_back(request_of(prompt_of(1 + (i * 37) % 150, i % 4 == 0 ? 0 : i), 0));
      requests.back().pooling = i % 3 == 0 ? Pooling::kLast : Pooling::kMean;
    }
    return requests;
  };
  std::vector<std::vector<float>> alone;
  for (const Request& request : pooled_requests()) {
    Rig rig(roomy_config());
    const RequestId id = rig.add(request);
    rig.run();
    REQUIRE(!rig.answer(id).embedding.empty());
    CHECK(rig.answer(id).tokens.at(0).empty());
    alone.push_back(rig.answer(id).embedding);
  }
  for (const uint32_t chunk : {0u, 7u, 16u}) {
    SchedulerConfig config = roomy_config();
    config.forced_chunk = chunk;
    config.max_num_batched_tokens = 64;
    config.max_num_seqs = 9;
    Rig rig(config);
    for (int round = 0; round < 2; ++round) {  // the second finds the prompts in the cache
      std::vector<RequestId> ids;
      for (const Request& request : pooled_requests()) ids.push_back(rig.add(request));
      for (int i = 0; rig.step(); ++i) {
        if (i % 2 == 1 && i < 20) rig.scheduler.preempt_one();
        REQUIRE(i < 10000);
      }
      for (size_t i = 0; i < ids.size(); ++i) CHECK(rig.answer(ids[i]).embedding == alone[i]);
    }
  }
  Request bad = request_of(prompt_of(4, 1), 1);
  bad.pooling = Pooling::kMean;
  CHECK(!AdmissionPolicy(roomy_config()).check_fits(bad));
}

}  // namespace
}  // namespace tandem::sched
