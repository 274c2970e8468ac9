#pragma once
// Request: what a client asks of the engine, in tokens. Update: what the engine tells back. Plain data.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/sampling_params.h"
#include "base/trace_context.h"
#include "serve/sched/grammar.h"
#include "serve/sched/stop_rule.h"
#include "serve/sched/token_mask.h"

namespace tandem::sched {

enum class RequestId : uint64_t {};

// What a request for an embedding makes of the prompt's hidden states after the final norm: nothing, the last one, or
// their mean.
enum class Pooling : uint8_t { kNone, kLast, kMean };

struct Request {
  std::string client_id;  // for logs; need not be unique
  TraceContext trace;     // of the span that stands for it
  std::string tenant;     // the API key's name; empty: none. Fairness and per-key limits go by it
  std::vector<TokenId> prompt;   // >= 1 token
  SamplingParams sampling;       // `choice` is set per choice by the engine
  uint32_t num_choices = 1;      // n
  uint32_t max_tokens = 0;       // per choice; 0 only with prompt_logprobs or pooling (nothing is generated)
  uint32_t min_tokens = 0;       // no stop before
  bool ignore_eos = false;       // the model's end tokens do not stop (stop_token_ids still do)
  std::vector<TokenId> stop_token_ids;
  int32_t prompt_logprobs = -1;  // -1: none; k: logprob of every prompt token but the first, and the k best there
  Pooling pooling = Pooling::kNone;  // else: an embedding of the prompt; with max_tokens 0 and n = 1
  int32_t priority = 0;          // lower goes first, as in vLLM
  int64_t deadline_ns = 0;       // on the engine's Clock; 0: none. Infeasible: refused or ended with kDeadline
  std::string cache_salt;        // part of the prefix cache's key
  std::function<std::unique_ptr<StopRule>()> make_stop_rule;  // one rule per choice; empty: no stop strings
  // What the rule goes by, for a generator that samples in another process and makes the rule there.
  std::vector<std::string> stop_strings;
  std::optional<Grammar> grammar;  // what every choice has to fit
  // One mask per choice, for a generator that samples in this process; never empty there with a grammar.
  std::function<std::unique_ptr<TokenMask>()> make_token_mask;
  bool shows_special = false;    // special tokens give text, which can complete a stop string
};

// A token and how likely it was, from the raw logits (before penalties and temperature).
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // natural logarithm
  uint32_t rank = 0;  // 1: the most likely
  std::vector<std::pair<TokenId, float>> top;  // the k best, best first (lower id first on ties)
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::optional<TokenId> stop_token;  // kStop by a token id: which; that token is not among the delta's tokens' text
  bool by_stop_rule = false;          // kStop by a stop string
};

// News of one choice: tokens in order (usually one), and at its end how it ended. A stop token that ended the
// choice is the last token here and in the usage, as in vLLM; whether its text shows is the API's business.
struct ChoiceDelta {
  uint32_t choice = 0;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;  // as many as tokens, when asked for
  std::optional<Finish> finish;
};

struct Update {
  RequestId request{};
  std::vector<ChoiceDelta> deltas;
  std::vector<TokenLogprob> prompt_logprobs;  // once, when the prompt is computed; element i is prompt token i + 1
  std::vector<float> embedding;               // once, when the prompt is computed; as pooled, of any length
  std::optional<Error> error;                 // ends the request
  bool is_last = false;                       // nothing follows
  uint32_t num_cached_tokens = 0;             // of the prompt, found in the prefix cache (first prefill)
  int64_t scheduled_ns = 0;                   // when the first step that computes this request was planned; 0: not yet
};

// Where updates go. Called on the engine thread, once per request and step: it must not block; hand over and return.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void publish(Update update) = 0;
};

}  // namespace tandem::sched
