#pragma once
// Rig: a scheduler with a scripted executor and a clock that only steps move, for tests.

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <vector>

#include "serve/sched/scheduler.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::sched {

inline SchedulerConfig roomy_config() {
  SchedulerConfig config;
  config.num_blocks = 512;
  config.max_num_seqs = 64;
  config.max_num_batched_tokens = 256;
  config.max_model_len = 1024;
  config.eos_ids = {2};
  return config;
}

inline std::vector<TokenId> prompt_of(uint32_t length, uint32_t group) {
  std::vector<TokenId> prompt(length);
  for (uint32_t i = 0; i < length; ++i) prompt[i] = static_cast<TokenId>(3 + (group * 131 + i * 17 + i * i) % 900);
  return prompt;
}

inline Request request_of(std::vector<TokenId> prompt, uint32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

struct Answer {
  std::map<uint32_t, std::vector<TokenId>> tokens;  // by choice
  std::map<uint32_t, Finish> finishes;
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<float> embedding;
  std::optional<Error> error;
  bool is_done = false;
  int64_t first_token_ns = 0;
  int64_t end_ns = 0;
  uint32_t num_cached_tokens = 0;
};

struct Rig {
  explicit Rig(const SchedulerConfig& config)
      : scheduler(config), executor({config.num_blocks, config.block_size, 1000, 0}) {}

  RequestId add(Request request) {
    const RequestId id{++last_id};
    scheduler.add(id, std::move(request), now_ns);
    answers[id] = {};
    return id;
  }

  void see(const Update& update) {
    Answer& answer = answers.at(update.request);
    REQUIRE(!answer.is_done);
    for (const ChoiceDelta& delta : update.deltas) {
      auto& tokens = answer.tokens[delta.choice];
      tokens.insert(tokens.end(), delta.tokens.begin(), delta.tokens.end());
      if (delta.finish) answer.finishes[delta.choice] = *delta.finish;
      if (!delta.tokens.empty() && answer.first_token_ns == 0) answer.first_token_ns = now_ns;
    }
    if (!update.prompt_logprobs.empty()) answer.prompt_logprobs = update.prompt_logprobs;
    if (!update.embedding.empty()) answer.embedding = update.embedding;
    answer.error = update.error;
    answer.is_done = update.is_last;
    answer.num_cached_tokens = update.num_cached_tokens;
    if (update.is_last) answer.end_ns = now_ns;
  }

  // One turn; false when idle.
  bool step() {
    for (const Update& update : scheduler.expire(now_ns)) see(update);
    if (scheduler.is_idle()) return false;
    const Batch batch = scheduler.plan_step(now_ns);
    REQUIRE(!batch.items.empty());
    auto outcome = executor.execute(batch);
    REQUIRE_MESSAGE(outcome, (outcome ? "" : outcome.error().message));
    now_ns += step_ns;
    const double seconds = static_cast<double>(step_ns) * 1e-9;
    for (const Update& update : scheduler.commit({std::move(*outcome), now_ns, seconds}).updates) see(update);
    scheduler.check_invariants();
    return true;
  }

  void run() {
    for (int i = 0; step(); ++i) REQUIRE(i < 100000);
  }

  Answer& answer(RequestId id) { return answers.at(id); }

  Scheduler scheduler;
  ScriptedExecutor executor;
  int64_t now_ns = 1;
  int64_t step_ns = 5'000'000;
  uint64_t last_id = 0;
  std::map<RequestId, Answer> answers;
};

}  // namespace tandem::sched
