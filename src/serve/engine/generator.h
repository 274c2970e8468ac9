#pragma once
// Generator: the one way to ask for tokens. In one process it is Engine; in a cluster the gateway implements it.

#include <memory>
#include <string>

#include "base/result.h"
#include "serve/sched/request.h"

namespace tandem::engine {

// Fixed for the life of the generator.
struct GeneratorLimits {
  uint32_t max_model_len = 0;   // prompt + output tokens
  uint32_t vocab_size = 0;      // token ids below this are valid
  uint32_t max_logprobs = 64;
  uint32_t max_choices = 128;
  // Of one client, requests and their prompt tokens: a list of more can never be taken. 0: no limit.
  uint32_t max_waiting = 0;
  uint64_t max_waiting_tokens = 0;
};

struct GeneratorLoad {
  uint32_t num_running = 0;
  uint32_t num_waiting = 0;
  double kv_usage = 0;  // 0..1
  double retry_after_s = 1;  // when a queue place is likely to be free, from the drain rate
};

// Any thread may call.
class Generator {
 public:
  virtual ~Generator() = default;

  // Takes the request or refuses it at once: kInvalidArgument (can never run: too long, bad ids), kExhausted (this
  // tenant is over its share or the deadline cannot be met: 429), kUnavailable (queue full or draining: 503).
  // After success the sink gets updates until one with is_last.
  virtual Result<sched::RequestId> submit(sched::Request request, std::shared_ptr<sched::TokenSink> sink) = 0;

  // Why submit() would refuse any request of this tenant now, if so: asked before a prompt is read and made tokens, so
  // that refusing stays cheap. What passes may still be refused.
  virtual Status check_room(const std::string& tenant) {
    (void)tenant;
    return Done{};
  }

  // Ends the request within a step; its sink gets one last update with FinishReason::kCancelled for each open choice.
  // Unknown or finished ids are ignored.
  virtual void cancel(sched::RequestId request) = 0;

  // Drops what the prefix cache holds and nobody uses, before the requests submitted after this. False: this generator
  // knows of no cache.
  virtual bool reset_prefix_cache() { return false; }

  virtual GeneratorLimits limits() const = 0;
  virtual GeneratorLoad load() const = 0;
};

}  // namespace tandem::engine
