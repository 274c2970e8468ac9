#include "cluster/gateway/handoff_metrics.h"

#include <doctest/doctest.h>

#include "testing/exposition.h"

namespace tandem::gateway {
namespace {

using handoff::kMs;
using Phase = handoff::GatewayRequest::Phase;

handoff::TokenEntry token(const handoff::RequestId& id, uint32_t index, uint32_t num_cached, uint32_t choice = 0) {
  handoff::TokenEntry entry;
  entry.request = id;
  entry.index = index;
  entry.choice = choice;
  entry.num_cached = num_cached;
  return entry;
}

struct Page {
  std::map<std::string, double> samples;
  double of(const std::string& name, const std::string& more = "") const {
    const auto found = samples.find("vllm:" + name + "{model_name=\"m\",engine=\"0\"" + more + "}");
    REQUIRE_MESSAGE(found != samples.end(), name);
    return found->second;
  }
};

Page page_of(const MetricRegistry& registry) {
  for (const std::string& fault : testing::faults_in_exposition(registry.exposition())) FAIL_CHECK(fault);
  return {testing::samples_in_exposition(registry.exposition())};
}

TEST_CASE("MET-06: cached are the tokens that the prefill found, not those that were handed over; each prompt once") {
  // The faults: all but one token of a prompt counted as cached because its KV came from elsewhere; a prompt that was
  // computed again after a loss counted again.
  MetricRegistry registry;
  HandoffMetrics metrics(registry, "m", 10000);
  const auto play = [&](uint64_t number, uint32_t num_cached, bool is_lost) {
    const handoff::RequestId id{1, number};
    const handoff::Nanos begin = static_cast<handoff::Nanos>(number) * 1000 * kMs;
    metrics.on_arrival(id, 100, begin);
    metrics.on_moved({id, Phase::kQueued, Phase::kReserving, 1, true, role::Cause::kProgress}, begin + 10 * kMs);
    metrics.on_moved({id, Phase::kReserving, Phase::kPrefilling, 1, false, role::Cause::kProgress}, begin + 20 * kMs);
    metrics.on_token(token(id, 0, num_cached), begin + 100 * kMs);
    if (is_lost) {
      metrics.on_moved({id, Phase::kDecoding, Phase::kReserving, 2, true, role::Cause::kClosed}, begin + 150 * kMs);
      metrics.on_moved({id, Phase::kReserving, Phase::kPrefilling, 2, false, role::Cause::kProgress},
                       begin + 160 * kMs);
    }
    metrics.on_token(token(id, 1, is_lost ? 99 : 0), begin + 200 * kMs);
    metrics.on_token(token(id, 2, 0), begin + 300 * kMs);
    metrics.on_end(id);
  };
  play(1, 0, false);     // cold
  play(2, 96, false);    // the same again
  play(3, 48, true);     // half of it
  play(4, 5000, false);  // a node that says more than there is
  const Page page = page_of(registry);
  CHECK(page.of("prompt_tokens_total") == 400);
  CHECK(page.of("prompt_tokens_cached_total") == 96 + 48 + 100);
  CHECK(page.of("prompt_tokens_by_source_total", ",source=\"local_cache_hit\"") == 244);
  CHECK(page.of("prompt_tokens_by_source_total", ",source=\"local_compute\"") == 156);
  CHECK(page.of("prefix_cache_queries_total") == 400);
  CHECK(page.of("prefix_cache_hits_total") == 244);
  CHECK(page.of("generation_tokens_total") == 12);
  CHECK(page.of("request_queue_time_seconds_sum") == doctest::Approx(0.04));
  CHECK(page.of("request_queue_time_seconds_count") == 4);
  CHECK(page.of("request_prefill_time_seconds_sum") == doctest::Approx(0.36));
  CHECK(page.of("request_decode_time_seconds_sum") == doctest::Approx(0.8));
  CHECK(page.of("request_inference_time_seconds_sum") == doctest::Approx(1.16));
}

TEST_CASE("what the gateway admits by: how long answers are, and how fast they come") {
  MetricRegistry registry;
  HandoffMetrics metrics(registry, "m", 10000);
  CHECK(metrics.mean_output_tokens() == 0);
  CHECK(metrics.seconds_per_output_token() == 0);
  for (uint64_t number = 1; number <= 100; ++number) {
    const handoff::RequestId id{1, number};
    metrics.on_arrival(id, 10, 0);
    for (uint32_t i = 0; i < 21; ++i) {
      metrics.on_token(token(id, i, 0), static_cast<handoff::Nanos>(i + 1) * 50 * kMs);
      metrics.on_token(token(id, i, 0, 1), static_cast<handoff::Nanos>(i + 1) * 50 * kMs);  // another choice
    }
    metrics.on_end(id);
  }
  CHECK(metrics.mean_output_tokens() == doctest::Approx(21));
  CHECK(metrics.seconds_per_output_token() == doctest::Approx(0.05));
  // One whose token is not shown says nothing, nor does a choice that goes on for longer than the first.
  metrics.on_arrival({1, 300}, 10, 0, true);
  metrics.on_token(token({1, 300}, 0, 0), 50 * kMs);
  metrics.on_end({1, 300});
  CHECK(metrics.mean_output_tokens() == doctest::Approx(21));
  metrics.on_arrival({1, 301}, 10, 0);
  for (uint32_t i = 0; i < 21; ++i)
    metrics.on_token(token({1, 301}, i, 0), static_cast<handoff::Nanos>(i + 1) * 50 * kMs);
  metrics.on_token(token({1, 301}, 21, 0, 1), 900'000 * kMs);
  metrics.on_end({1, 301});
  CHECK(metrics.seconds_per_output_token() == doctest::Approx(0.05));
  // One that was refused or cancelled without a token says nothing.
  metrics.on_arrival({1, 200}, 10, 0);
  metrics.on_end({1, 200});
  metrics.on_end({1, 201});
  CHECK(metrics.mean_output_tokens() == doctest::Approx(21));
}

TEST_CASE("MET-01: the gateway's page is well-formed before anything has happened") {
  MetricRegistry registry;
  HandoffMetrics metrics(registry, "m", 10000);
  metrics.on_kv_usage(0.25);
  const Page page = page_of(registry);
  CHECK(page.of("kv_cache_usage_perc") == 0.25);
  CHECK(page.of("gpu_cache_usage_perc") == 0.25);
}

TEST_CASE("the pace of tokens is the first choice's, and what a client does not see is no answer") {
  // The faults: the time ran to the end of the last choice; scores and embeddings were answers of one token.
  MetricRegistry registry;
  HandoffMetrics metrics(registry, "m", 10000);
  const handoff::RequestId id{1, 1}, hidden{1, 2};
  metrics.on_arrival(id, 10, 0);
  metrics.on_token(token(id, 0, 0, 1), 10 * kMs);  // another choice is the first to begin, and the last to end
  for (uint32_t i = 0; i < 5; ++i) metrics.on_token(token(id, i, 0), (i + 2) * 50 * kMs);
  for (uint32_t i = 1; i < 50; ++i) metrics.on_token(token(id, i, 0, 1), (i + 10) * 50 * kMs);
  metrics.on_end(id);
  CHECK(metrics.mean_output_tokens() == doctest::Approx(5));
  CHECK(metrics.seconds_per_output_token() == doctest::Approx(0.05));
  metrics.on_arrival(hidden, 10, 0, true);
  metrics.on_token(token(hidden, 0, 4), 100 * kMs);
  metrics.on_end(hidden);
  CHECK(metrics.mean_output_tokens() == doctest::Approx(5));
  const Page page = page_of(registry);
  CHECK(page.of("generation_tokens_total") == 55);
  CHECK(page.of("prompt_tokens_total") == 20);
  CHECK(page.of("request_decode_time_seconds_count") == 1);
}

}  // namespace
}  // namespace tandem::gateway
