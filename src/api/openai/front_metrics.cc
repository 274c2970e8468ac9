#include "api/openai/front_metrics.h"

namespace tandem::openai {
namespace {

// vLLM's buckets, which dashboards divide by, and below them what is fast.
const std::vector<double> kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                               1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kPerTokenBounds = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2,
                                             .3,    .4,     .5,    .75,  1,     2.5,  5,   7.5,  10,  20,   40, 80};
const std::vector<double> kRequestBounds = {.01, .025, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,   2.5,  5,
                                            10,  15,   20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kChoiceBounds = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, 20, 50, ... up to the longest request.
std::vector<double> length_bounds(uint32_t max_model_len) {
  std::vector<double> bounds;
  for (double decade = 1; decade <= max_model_len; decade *= 10) {
    for (double step : {1.0, 2.0, 5.0}) {
      if (decade * step <= max_model_len) bounds.push_back(decade * step);
    }
  }
  return bounds;
}

double seconds(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

}  // namespace

FrontMetrics::FrontMetrics(MetricRegistry& registry, const std::string& model_name, uint32_t max_model_len)
    : registry_(registry), labels_{{"model_name", model_name}, {"engine", "0"}} {
  ttft_ = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", kFirstTokenBounds);
  our_ttft_ = histogram("tandem_time_to_first_token_seconds", "Arrival to first token.", kFirstTokenBounds);
  inter_token_ = histogram("vllm:inter_token_latency_seconds", "Between two tokens of a choice.", kPerTokenBounds);
  const std::string per_token_help = "Time per output token after the first, of one choice.";
  per_token_ = histogram("vllm:request_time_per_output_token_seconds", per_token_help, kPerTokenBounds);
  per_token_old_ = histogram("vllm:time_per_output_token_seconds", per_token_help, kPerTokenBounds);
  e2e_ = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", kRequestBounds);
  our_e2e_ = histogram("tandem_request_seconds", "Arrival to last token.", kRequestBounds);
  const std::vector<double> lengths = length_bounds(max_model_len);
  prompt_length_ = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths);
  generation_length_ = histogram("vllm:request_generation_tokens", "Generated tokens of a choice.", lengths);
  longest_generation_ = histogram("vllm:request_max_num_generation_tokens", "Of a request's longest choice.", lengths);
  params_n_ = histogram("vllm:request_params_n", "The parameter n.", kChoiceBounds);
  params_max_tokens_ = histogram("vllm:request_params_max_tokens", "The limit that max_tokens came to.", lengths);
}

HistogramMetric* FrontMetrics::histogram(const std::string& name, const std::string& help,
                                         const std::vector<double>& bounds) {
  return &registry_.histogram(name, help, bounds, labels_);
}

void FrontMetrics::count_answer(std::string_view endpoint, int status) {
  registry_
      .counter("tandem_http_requests_total", "Requests answered.",
               {{"endpoint", std::string(endpoint)}, {"status", std::to_string(status)}})
      .add();
}

void FrontMetrics::observe_start(uint64_t num_prompt_tokens, uint32_t num_choices, uint64_t max_tokens) {
  prompt_length_->observe(static_cast<double>(num_prompt_tokens));
  params_n_->observe(num_choices);
  params_max_tokens_->observe(static_cast<double>(max_tokens));
}

void FrontMetrics::observe_first_token(const RequestTimes& times) {
  ttft_->observe(seconds(times.arrival_ns, times.first_token_ns));
  our_ttft_->observe(seconds(times.arrival_ns, times.first_token_ns));
}

void FrontMetrics::observe_choice_end(std::string_view reason, uint64_t num_tokens, const RequestTimes& times) {
  Labels labels = labels_;
  labels.emplace_back("finished_reason", reason);
  registry_.counter("vllm:request_success_total", "Choices ended, by reason.", labels).add();
  generation_length_->observe(static_cast<double>(num_tokens));
  if (num_tokens < 2) return;
  const double per_token_s = seconds(times.first_token_ns, times.last_token_ns) / static_cast<double>(num_tokens - 1);
  per_token_->observe(per_token_s);
  per_token_old_->observe(per_token_s);
}

void FrontMetrics::observe_request_end(const RequestTimes& times, uint64_t num_tokens_of_longest, int64_t now_ns) {
  e2e_->observe(seconds(times.arrival_ns, now_ns));
  our_e2e_->observe(seconds(times.arrival_ns, now_ns));
  longest_generation_->observe(static_cast<double>(num_tokens_of_longest));
}

}  // namespace tandem::openai
