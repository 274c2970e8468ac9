#pragma once
// ScriptedGenerator: a Generator without a model. It says what a script tells it to, token by token on a thread of its
// own, and keeps the engine's rules: max_tokens, min_tokens, end tokens, stop ids, stop rules, cancel, one last update.

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread_safety.h"
#include "serve/engine/generator.h"

namespace tandem::openai {

// What one choice says.
struct Script {
  std::vector<TokenId> tokens;  // then the end token
  std::optional<Error> error;   // instead of what follows `error_after` tokens
  size_t error_after = 0;
};

// The k best tokens after any token, made up but always the same.
inline sched::TokenLogprob scripted_logprob(TokenId token, int32_t k) {
  sched::TokenLogprob out;
  out.token = token;
  out.logprob = -0.5f - 0.25f * static_cast<float>(token % 7);
  out.rank = static_cast<uint32_t>(token % 7) + 1;
  for (int32_t i = 0; i < k; ++i) out.top.emplace_back((token + i) % 256, -0.5f - 0.25f * static_cast<float>(i));
  return out;
}

class ScriptedGenerator final : public engine::Generator {
 public:
  using ScriptOf = std::function<Script(const sched::Request&, uint32_t choice)>;

  ScriptedGenerator(engine::GeneratorLimits limits, TokenId end_token, ScriptOf script_of)
      : limits_(limits), end_token_(end_token), script_of_(std::move(script_of)), thread_([this] { run(); }) {}

  ~ScriptedGenerator() override {
    {
      Lock lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Result<sched::RequestId> submit(sched::Request request, std::shared_ptr<sched::TokenSink> sink) override {
    Lock lock(mutex_);
    if (refusal_) return *refusal_;
    if (request.prompt.empty()) return Error{ErrorCode::kInvalidArgument, "empty prompt"};
    const auto id = sched::RequestId{++num_submitted_};
    seen_.push_back(request);
    Live live{std::move(request), std::move(sink), {}, false, false};
    for (uint32_t i = 0; i < live.request.num_choices; ++i) {
      live.choices.emplace_back();
      live.choices.back().script = script_of_(live.request, i);
      if (live.request.make_stop_rule) live.choices.back().stop_rule = live.request.make_stop_rule();
    }
    live_.emplace(id, std::move(live));
    wake_.notify_all();
    return id;
  }

  void cancel(sched::RequestId request) override {
    Lock lock(mutex_);
    const auto found = live_.find(request);
    if (found == live_.end()) return;
    found->second.is_cancelled = true;
    ++num_cancelled;
    wake_.notify_all();
  }

  engine::GeneratorLimits limits() const override { return limits_; }
  engine::GeneratorLoad load() const override {
    Lock lock(mutex_);
    return {static_cast<uint32_t>(live_.size()), 0, 0.25, 3};
  }

  // While held nothing is generated (cancels still work).
  void hold(bool is_held) {
    Lock lock(mutex_);
    is_held_ = is_held;
    wake_.notify_all();
  }
  void refuse_with(std::optional<Error> refusal) {
    Lock lock(mutex_);
    refusal_ = std::move(refusal);
  }
  void set_tokens_per_step(size_t tokens) {
    Lock lock(mutex_);
    tokens_per_step_ = tokens;
  }
  bool reset_prefix_cache() override {
    ++num_resets;
    return has_cache;
  }
  std::vector<sched::Request> seen() const {
    Lock lock(mutex_);
    return seen_;
  }
  size_t num_live() const {
    Lock lock(mutex_);
    return live_.size();
  }

  std::atomic<size_t> num_cancelled{0};
  std::atomic<size_t> num_resets{0};
  std::atomic<bool> has_cache{true};

 private:
  struct LiveChoice {
    Script script;
    std::unique_ptr<sched::StopRule> stop_rule;
    size_t num_said = 0;
    bool is_finished = false;
  };
  struct Live {
    sched::Request request;
    std::shared_ptr<sched::TokenSink> sink;
    std::vector<LiveChoice> choices;
    bool has_begun = false;
    bool is_cancelled = false;
  };

  void run() {
    while (true) {
      std::vector<std::pair<std::shared_ptr<sched::TokenSink>, sched::Update>> news;
      {
        Lock lock(mutex_);
        while (!is_stopping_ && (live_.empty() || (is_held_ && !has_cancelled()))) wake_.wait(mutex_);
        if (is_stopping_) break;
        for (auto at = live_.begin(); at != live_.end();) {
          Live& live = at->second;
          sched::Update update = is_held_ && !live.is_cancelled ? sched::Update{} : step(at->first, live);
          const bool is_last = update.is_last;
          news.emplace_back(live.sink, std::move(update));
          if (is_last)
            at = live_.erase(at);
          else
            ++at;
        }
      }
      for (auto& [sink, update] : news) {
        if (!update.deltas.empty() || update.is_last || update.error) sink->publish(std::move(update));
      }
    }
    Lock lock(mutex_);
    live_.clear();
  }

  bool has_cancelled() const REQUIRES(mutex_) {
    return std::any_of(live_.begin(), live_.end(), [](const auto& entry) { return entry.second.is_cancelled; });
  }

  sched::Update step(sched::RequestId id, Live& live) REQUIRES(mutex_) {
    sched::Update update;
    update.request = id;
    if (!live.has_begun) {
      live.has_begun = true;
      update.scheduled_ns = clock_.now_ns();
      for (size_t i = 1; live.request.prompt_logprobs >= 0 && i < live.request.prompt.size(); ++i) {
        update.prompt_logprobs.push_back(scripted_logprob(live.request.prompt[i], live.request.prompt_logprobs));
      }
      // Made up; the first is of length 5.
      if (live.request.pooling == sched::Pooling::kLast) update.embedding = {3, 4, 0};
      if (live.request.pooling == sched::Pooling::kMean) {
        update.embedding = {0, 3, static_cast<float>(live.request.prompt.size())};
      }
    }
    bool has_open = false;
    for (uint32_t i = 0; i < live.choices.size() && !update.error; ++i) {
      if (live.choices[i].is_finished) continue;
      sched::ChoiceDelta delta;
      delta.choice = i;
      for (size_t t = 0; t < tokens_per_step_ && !delta.finish && !update.error; ++t) say(live, i, delta, update);
      live.choices[i].is_finished = delta.finish.has_value();
      has_open |= !live.choices[i].is_finished;
      update.deltas.push_back(std::move(delta));
    }
    update.is_last = !has_open || update.error;
    return update;
  }

  void say(Live& live, uint32_t index, sched::ChoiceDelta& delta, sched::Update& update) REQUIRES(mutex_) {
    const sched::Request& request = live.request;
    LiveChoice& choice = live.choices[index];
    if (live.is_cancelled) {
      delta.finish = sched::Finish{sched::FinishReason::kCancelled, {}, false};
      return;
    }
    if (choice.script.error && choice.num_said == choice.script.error_after) {
      update.error = choice.script.error;
      return;
    }
    if (request.max_tokens == 0) {
      delta.finish = sched::Finish{sched::FinishReason::kLength, {}, false};
      return;
    }
    const size_t at = choice.num_said++;
    const TokenId token = at < choice.script.tokens.size() ? choice.script.tokens[at] : end_token_;
    delta.tokens.push_back(token);
    const int32_t k = request.sampling.num_logprobs;
    if (k >= 0) delta.logprobs.push_back(scripted_logprob(token, k));
    const bool may_stop = choice.num_said >= request.min_tokens;
    const bool is_stop_string = choice.stop_rule && choice.stop_rule->push(token, may_stop);
    const auto& ids = request.stop_token_ids;
    const bool is_end =
        (token == end_token_ && !request.ignore_eos) || std::find(ids.begin(), ids.end(), token) != ids.end();
    if (is_end && may_stop)
      delta.finish = sched::Finish{sched::FinishReason::kStop, token, false};
    else if (is_stop_string && may_stop)
      delta.finish = sched::Finish{sched::FinishReason::kStop, {}, true};
    else if (choice.num_said == request.max_tokens)
      delta.finish = sched::Finish{sched::FinishReason::kLength, {}, false};
  }

  const engine::GeneratorLimits limits_;
  const TokenId end_token_;
  const ScriptOf script_of_;
  SystemClock clock_;
  mutable Mutex mutex_;
  CondVar wake_;
  std::map<sched::RequestId, Live> live_ GUARDED_BY(mutex_);
  std::vector<sched::Request> seen_ GUARDED_BY(mutex_);
  std::optional<Error> refusal_ GUARDED_BY(mutex_);
  uint64_t num_submitted_ GUARDED_BY(mutex_) = 0;
  size_t tokens_per_step_ GUARDED_BY(mutex_) = 1;
  bool is_held_ GUARDED_BY(mutex_) = false;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::openai
