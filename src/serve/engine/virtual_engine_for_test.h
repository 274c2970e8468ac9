#pragma once
// VirtualEngine: an engine without a thread, on a clock that each step moves by what a step of its shape would cost,
// and clients that come, wait, go away and come again by that clock.

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "serve/engine/engine.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::engine {

struct VirtualCost {
  double step_ms = 2, prefill_token_ms = 0.05, decode_row_ms = 0.5;
};

inline EngineConfig virtual_config() {
  EngineConfig config;
  config.vocab_size = 1000;
  config.sched.num_blocks = 512;
  config.sched.max_num_seqs = 8;
  config.sched.max_num_batched_tokens = 128;
  config.sched.max_model_len = 4096;
  config.sched.window_ms = 0;
  config.sched.enable_prefix_caching = false;
  config.sched.eos_ids = {2};
  return config;
}

// What became of one request. Times in ms.
struct Told {
  double asked_ms = 0, first_ms = -1, last_ms = -1;  // last: its newest token
  double end_ms = -1;
  std::vector<double> gaps_ms;  // between its tokens
  std::vector<TokenId> tokens;
  std::optional<Error> error;
  bool is_cancelled = false;
  bool is_done() const { return end_ms >= 0; }
  bool is_served() const { return is_done() && !error && !is_cancelled; }
};

class VirtualEngine {
 public:
  explicit VirtualEngine(const EngineConfig& with = virtual_config(), VirtualCost step_cost = {})
      : cost(step_cost),
        config(with),
        executor({config.sched.num_blocks, config.sched.block_size, config.vocab_size - 1, 3}),
        engine(config, executor, clock, metrics) {
    clock.advance_ms(1);
    executor.set_observer([this](uint64_t, const sched::Batch& batch) {
      double ms = cost.step_ms;
      for (const sched::BatchItem& item : batch.items) {
        const bool is_decode = item.begin + 1 == item.tokens.size() && item.begin >= item.num_prompt_tokens;
        ms += is_decode ? cost.decode_row_ms : cost.prefill_token_ms * item.count;
        num_rows += item.count;
      }
      clock.advance_ms(ms);
    });
  }

  double now_ms() const { return static_cast<double>(clock.now_ns()) * 1e-6; }

  // Prompts of different `seed`s have nothing in common.
  sched::Request request(uint32_t num_prompt, uint32_t max_tokens, uint32_t seed) const {
    sched::Request request;
    std::mt19937 random(seed);
    for (uint32_t i = 0; i < num_prompt; ++i) request.prompt.push_back(static_cast<TokenId>(3 + random() % 900));
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
  }

  // Null: refused; `refusal` says why.
  std::shared_ptr<Told> ask(sched::Request request, sched::RequestId* id = nullptr) {
    auto told = std::make_shared<Told>();
    told->asked_ms = now_ms();
    auto submitted = engine.submit(std::move(request), std::make_shared<Sink>(*this, told));
    if (!submitted) {
      refusal = submitted.error();
      return nullptr;
    }
    if (id) *id = *submitted;
    return told;
  }

  // At that time, or when the step then running has ended.
  void at(double ms, std::function<void()> event) { events_.emplace(ms, std::move(event)); }

  void run_until(double until_ms) {
    while (now_ms() < until_ms) {
      while (!events_.empty() && events_.begin()->first <= now_ms()) {
        const auto event = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        event();
      }
      if (engine.run_once()) continue;
      const double next_ms = events_.empty() ? until_ms : std::min(until_ms, events_.begin()->first);
      clock.set_ns(std::max(clock.now_ns() + 1, static_cast<int64_t>(next_ms * 1e6)));
    }
  }

  VirtualCost cost;
  EngineConfig config;
  ManualClock clock;
  MetricRegistry metrics;
  sched::ScriptedExecutor executor;
  Engine engine;
  Error refusal{ErrorCode::kInternal, ""};
  uint64_t num_rows = 0;  // tokens computed

 private:
  class Sink final : public sched::TokenSink {
   public:
    Sink(const VirtualEngine& world, std::shared_ptr<Told> told) : world_(world), told_(std::move(told)) {}
    void publish(sched::Update update) override {
      const double now_ms = world_.now_ms();
      for (const sched::ChoiceDelta& delta : update.deltas) {
        told_->is_cancelled |= delta.finish && delta.finish->reason == sched::FinishReason::kCancelled;
        if (delta.tokens.empty()) continue;
        if (told_->first_ms < 0)
          told_->first_ms = now_ms;
        else
          told_->gaps_ms.push_back(now_ms - told_->last_ms);
        told_->last_ms = now_ms;
        told_->tokens.insert(told_->tokens.end(), delta.tokens.begin(), delta.tokens.end());
      }
      told_->error = update.error;
      if (update.is_last) told_->end_ms = now_ms;
    }

   private:
    const VirtualEngine& world_;
    std::shared_ptr<Told> told_;
  };

  std::multimap<double, std::function<void()>> events_;
};

// The smallest value that `share` of them do not exceed.
inline double quantile(std::vector<double> values, double share) {
  REQUIRE(!values.empty());
  std::ranges::sort(values);
  const auto index = static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.999);
  return values[std::min(index, values.size() - 1)];
}

}  // namespace tandem::engine
