// Known faults of schedulers and KV caches, each tried on ours; the names are those of the list they come from. The
// scripted executor fails a step that reads KV which is not the reader's own prefix.

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "serve/sched/rig_for_test.h"

namespace tandem::sched {
namespace {

using Tokens = std::map<uint32_t, std::vector<TokenId>>;

Tokens alone(const Request& request) {
  SchedulerConfig config = roomy_config();
  config.enable_prefix_caching = false;
  Rig rig(config);
  const RequestId id = rig.add(request);
  rig.run();
  return rig.answer(id).tokens;
}

Request endless(uint32_t length, uint32_t group, uint32_t max_tokens) {
  Request request = request_of(prompt_of(length, group), max_tokens);
  request.ignore_eos = true;
  return request;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Fails when blocks are published as soon as they are planned.
TEST_CASE("KVC-01: of prompts that begin alike and come at once none reads a block before it is computed") {
  for (const uint32_t chunk : {0u, 7u, 16u, 40u}) {
    CAPTURE(chunk);
    SchedulerConfig config = roomy_config();
    config.forced_chunk = chunk;
    config.max_num_batched_tokens = 64;  // so that some are admitted while others are being computed
    Rig rig(config);
    for (uint32_t round = 0; round < 50; ++round) {
      rig.scheduler.pool().drop_cache();
      std::vector<std::pair<RequestId, Request>> sent;
      for (uint32_t client = 0; client < 16; ++client) {
        // Half say the same, half go on in their own way.
        const uint32_t tail = client % 2 == 0 ? 0 : client;
        Request request = request_of(joined(prompt_of(128, round), prompt_of(tail, client)), 4);
        sent.emplace_back(rig.add(request), std::move(request));
      }
      rig.run();
      for (const auto& [id, request] : sent) CHECK(rig.answer(id).tokens == alone(request));
    }
    CHECK(rig.scheduler.counts().prefix_hits_tokens > 0);
  }
}

// Fails when the prefix index believes its hash, or leaves the salt out of what it compares.
TEST_CASE("KVC-02: with a hash of four bits, and one of none, answers are those without a cache; salts are apart") {
  for (const uint64_t mask : {uint64_t{15}, uint64_t{0}}) {
    SchedulerConfig config = roomy_config();
    config.prefix_hash_mask = mask;
    Rig rig(config);
    std::mt19937 random(5);
    for (int round = 0; round < 60; ++round) {
      std::vector<std::pair<RequestId, Request>> sent;
      for (int i = 0; i < 8; ++i) {
        std::vector<TokenId> prompt(17 + random() % 40);
        for (TokenId& token : prompt) token = static_cast<TokenId>(5 + random() % 2);
        Request request = request_of(std::move(prompt), 3);
        request.cache_salt = std::string(random() % 3, 's');
        sent.emplace_back(rig.add(request), std::move(request));
      }
      rig.run();
      for (const auto& [id, request] : sent) CHECK(rig.answer(id).tokens == alone(request));
    }
    Request request = request_of(prompt_of(40, 1), 2);
    request.cache_salt = "alice";
    rig.add(request);
    rig.run();
    const RequestId again = rig.add(request);
    request.cache_salt = "bob";
    const RequestId other = rig.add(request);
    request.tenant = "alice";  // a name that equals another's salt is not that salt
    request.cache_salt = "";
    const RequestId unsalted = rig.add(request);
    rig.run();
    CHECK(rig.answer(again).num_cached_tokens == 32);
    CHECK(rig.answer(other).num_cached_tokens == 0);
    CHECK(rig.answer(unsalted).num_cached_tokens == 0);
  }
}

// Fails when match_prefix() may match a whole prompt: then nothing is left to compute the next token from.
TEST_CASE("KVC-03: an answer from a cold, a hit and a half hit cache is the same, at each length and chunk") {
  for (const uint32_t chunk : {0u, 5u, 16u, 33u}) {
    for (const uint32_t length : {1u, 15u, 16u, 17u, 31u, 32u, 33u, 64u, 100u}) {
      CAPTURE(chunk);
      CAPTURE(length);
      SchedulerConfig config = roomy_config();
      config.forced_chunk = chunk;
      Rig rig(config);
      const Request request = endless(length, 1, 20);
      const Tokens expected = alone(request);
      for (const char* temperature : {"cold", "hit", "hit again"}) {
        CAPTURE(temperature);
        const RequestId id = rig.add(request);
        rig.run();
        CHECK(rig.answer(id).tokens == expected);
        const bool is_cold = temperature == std::string("cold");
        CHECK(rig.answer(id).num_cached_tokens == (is_cold ? 0 : (length - 1) / 16 * 16));
      }
      // Two blocks in common, then another way; and the first answer's prompt with its own answer, as a next turn is.
      Request partial = endless(length, 1, 20);
      partial.prompt = joined(prompt_of(std::min(length, 32u), 1), prompt_of(30, 7));
      const RequestId half = rig.add(partial);
      Request next = endless(length, 1, 20);
      next.prompt = joined(joined(next.prompt, expected.at(0)), prompt_of(5, 8));
      const RequestId turn = rig.add(next);
      rig.run();
      CHECK(rig.answer(half).tokens == alone(partial));
      CHECK(rig.answer(turn).tokens == alone(next));
      CHECK(rig.answer(turn).num_cached_tokens >= length / 16 * 16);
    }
  }
}

// Fails when check_fits() looks at the model's length alone, or when a sequence that is alone preempts itself.
TEST_CASE("KVC-06: what can never fit is refused, what outgrows the pool ends there, and those behind go on") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 20;
  config.eos_ids = {};
  for (const bool caches : {true, false}) {
    config.enable_prefix_caching = caches;
    Rig rig(config);
    const Status refused = rig.scheduler.admission().check_fits(request_of(prompt_of(20 * 16 + 1, 1), 1));
    REQUIRE(!refused);
    CHECK(refused.error().message.find("321") != std::string::npos);
    CHECK(refused.error().message.find("320") != std::string::npos);
    const RequestId big = rig.add(request_of(prompt_of(310, 1), 1000));
    std::vector<RequestId> small;
    for (uint32_t i = 0; i < 10; ++i) small.push_back(rig.add(request_of(prompt_of(20, 10 + i), 10)));
    int num_steps = 0;
    while (rig.step()) REQUIRE(++num_steps < 200);
    CHECK(rig.answer(big).tokens[0].size() == 11);  // the last token needs no place
    CHECK(rig.answer(big).finishes.at(0).reason == FinishReason::kLength);
    CHECK(!rig.answer(big).error);
    for (const RequestId id : small) CHECK(rig.answer(id).tokens[0].size() == 10);
    CHECK(rig.scheduler.pool().num_owned() == 0);
  }
}

// Fails when a preempted sequence loses its newest token.
TEST_CASE("KVC-08: room for three, eight long answers and one in a hurry: each answer is the one it gets alone") {
  SchedulerConfig config = roomy_config();
  config.num_blocks = 18;
  config.decode_reserve_blocks = 0;
  config.window_ms = 0;
  for (const bool caches : {true, false}) {
    config.enable_prefix_caching = caches;
    Rig rig(config);
    std::vector<std::pair<RequestId, Request>> sent;
    for (uint32_t i = 0; i < 8; ++i) {
      Request request = endless(30, i, 60);
      sent.emplace_back(rig.add(request), request);
    }
    for (int i = 0; i < 20; ++i) rig.step();
    Request urgent = endless(40, 50, 50);
    urgent.priority = -5;
    sent.emplace_back(rig.add(urgent), urgent);
    rig.run();
    CHECK(rig.scheduler.counts().num_preemptions > 0);
    for (const auto& [id, request] : sent) CHECK(rig.answer(id).tokens == alone(request));
    // Equals end in the order in which they came.
    for (size_t i = 0; i + 2 < sent.size(); ++i) {
      CHECK(rig.answer(sent[i].first).end_ns <= rig.answer(sent[i + 1].first).end_ns);
    }
    CHECK(rig.answer(sent.back().first).end_ns <= rig.answer(sent[7].first).end_ns);
    CHECK(rig.scheduler.pool().num_owned() == 0);
  }
}

// Fails when a step without a chunk of the request ends its collecting, or when another than the last chunk samples.
TEST_CASE("SCH-04: a scored prompt whose chunks others interrupt gives what it gives in one, and nothing before") {
  Request request = endless(100, 1, 3);
  request.prompt_logprobs = 2;
  Rig whole(roomy_config());
  const RequestId expected = whole.add(request);
  whole.run();

  SchedulerConfig config = roomy_config();
  config.max_num_batched_tokens = 24;
  config.max_num_seqs = 8;
  config.window_ms = 0;
  Rig rig(config);
  std::vector<uint32_t> own_tokens;  // of each step
  rig.executor.set_observer([&](uint64_t, const Batch& batch) {
    own_tokens.push_back(0);
    for (const BatchItem& item : batch.items) {
      if (item.prompt_logprobs >= 0) own_tokens.back() += item.count;
      if (item.prompt_logprobs >= 0) CHECK(item.samples == (item.begin + item.count == 100));
    }
  });
  const RequestId id = rig.add(request);
  for (uint32_t i = 0; !rig.answer(id).is_done; ++i) {
    REQUIRE(i < 200);
    if (i > 0 && i < 12 && i % 2 == 1) {
      Request other = request_of(prompt_of(24, 20 + i), 1);
      other.tenant = "other";
      other.priority = -9;
      rig.add(other);
    }
    rig.step();
    const bool is_whole = std::accumulate(own_tokens.begin(), own_tokens.end(), 0u) >= 100;
    if (!is_whole) CHECK(rig.answer(id).tokens[0].empty());
    if (!is_whole) CHECK(rig.answer(id).prompt_logprobs.empty());
  }
  const auto last = std::find_if(own_tokens.rbegin(), own_tokens.rend(), [](uint32_t n) { return n > 0; }).base();
  CHECK(std::count(own_tokens.begin(), last, 0u) > 0);  // some steps went by without it
  REQUIRE(rig.answer(id).prompt_logprobs.size() == 99);
  for (size_t i = 0; i < 99; ++i) {
    CHECK(rig.answer(id).prompt_logprobs[i].logprob == whole.answer(expected).prompt_logprobs[i].logprob);
    CHECK(rig.answer(id).prompt_logprobs[i].top == whole.answer(expected).prompt_logprobs[i].top);
  }
  CHECK(rig.answer(id).tokens == whole.answer(expected).tokens);
}

// Fails when only the first of the ids counts, or when ignore_eos leaves one of them in force.
TEST_CASE("SMP-10: each of several end tokens ends a text, none of them when they are ignored") {
  SchedulerConfig config = roomy_config();
  config.eos_ids = {151645, 151643, 7};
  for (const TokenId end : config.eos_ids) {
    CAPTURE(end);
    Rig rig(config);
    const std::vector<TokenId> prompt = {10, 11};
    rig.executor.set_script(prompt, {20, end, 21, 22});
    const RequestId stops = rig.add(request_of(prompt, 4));
    Request ignoring = request_of(prompt, 4);
    ignoring.ignore_eos = true;
    const RequestId goes_on = rig.add(ignoring);
    Request own = request_of(prompt, 4);
    own.stop_token_ids = {21};
    own.ignore_eos = true;
    const RequestId by_own = rig.add(own);
    rig.run();
    CHECK(rig.answer(stops).tokens[0] == std::vector<TokenId>{20, end});
    CHECK(rig.answer(stops).finishes.at(0).reason == FinishReason::kStop);
    CHECK(rig.answer(stops).finishes.at(0).stop_token == end);
    CHECK(rig.answer(goes_on).tokens[0] == std::vector<TokenId>{20, end, 21, 22});
    CHECK(rig.answer(goes_on).finishes.at(0).reason == FinishReason::kLength);
    CHECK(rig.answer(by_own).tokens[0] == std::vector<TokenId>{20, end, 21});
  }
}

// Fails when the context, or the pool, is divided by the seats.
TEST_CASE("DEP-04: ten seats leave each request the whole context, and share the pool as it is used") {
  SchedulerConfig config = roomy_config();
  config.max_model_len = 256;
  config.max_num_seqs = 10;
  config.num_blocks = 20;
  config.eos_ids = {};
  Rig rig(config);
  CHECK(rig.scheduler.admission().max_sequence_tokens() == 256);
  const RequestId longest = rig.add(request_of(prompt_of(200, 1), 1000));
  std::vector<RequestId> others;
  for (uint32_t i = 0; i < 9; ++i) others.push_back(rig.add(request_of(prompt_of(8, 2 + i), 4)));
  rig.run();
  CHECK(rig.answer(longest).tokens[0].size() == 56);
  CHECK(rig.answer(longest).finishes.at(0).reason == FinishReason::kLength);
  for (const RequestId id : others) CHECK(rig.answer(id).tokens[0].size() == 4);
}

}  // namespace
}  // namespace tandem::sched
