#pragma once
// FrontMetrics: what the API itself measures of requests, under vLLM's names (so that existing dashboards and load
// tools work) and under ours. Times are taken where the client's bytes come and go. What the engine sees better
// (queue and phase times, tokens, load) it measures itself. Any thread.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"

namespace tandem::openai {

// Of one request, on the server's Clock; 0: it did not happen.
struct RequestTimes {
  int64_t arrival_ns = 0;
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
};

class FrontMetrics {
 public:
  FrontMetrics(MetricRegistry& registry, const std::string& model_name, uint32_t max_model_len);

  void count_answer(std::string_view endpoint, int status);
  void observe_start(uint64_t num_prompt_tokens, uint32_t num_choices, uint64_t max_tokens);
  void observe_first_token(const RequestTimes& times);
  void observe_gap(double seconds) { inter_token_->observe(seconds); }  // between two tokens of a choice
  // One choice has ended. num_tokens: it generated.
  void observe_choice_end(std::string_view reason, uint64_t num_tokens, const RequestTimes& times);
  void observe_request_end(const RequestTimes& times, uint64_t num_tokens_of_longest, int64_t now_ns);

 private:
  HistogramMetric* histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds);

  MetricRegistry& registry_;
  const Labels labels_;
  HistogramMetric *ttft_, *our_ttft_, *inter_token_, *per_token_, *per_token_old_, *e2e_, *our_e2e_;
  HistogramMetric *prompt_length_, *generation_length_, *longest_generation_, *params_n_, *params_max_tokens_;
};

}  // namespace tandem::openai
