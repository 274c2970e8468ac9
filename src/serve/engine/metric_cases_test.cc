// What the public fault cases about metrics ask of the engine's counts.

#include <random>

#include "serve/engine/virtual_engine_for_test.h"
#include "testing/exposition.h"

namespace tandem::engine {
namespace {

using Samples = std::map<std::string, double>;

Samples samples_of(const VirtualEngine& world) { return testing::samples_in_exposition(world.metrics.exposition()); }

double value_of(const Samples& samples, const std::string& name, const std::string& more_labels = "") {
  const auto found = samples.find(name + "{model_name=\"\",engine=\"0\"" + more_labels + "}");
  REQUIRE_MESSAGE(found != samples.end(), name);
  return found->second;
}

TEST_CASE("MET-02: whatever is preempted, cancelled, cached or fails, no count falls, and sources add up to prompts") {
  // The fault: prompt tokens counted as they are computed, so that a preempted prompt counts twice, or what was found
  // in the cache is taken off twice.
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    EngineConfig config = virtual_config();
    config.sched.num_blocks = 40;
    config.sched.max_model_len = 300;
    config.sched.enable_prefix_caching = true;
    config.sched.force_preempt_every = seed % 2 == 0 ? 7 : 0;
    config.sched.forced_chunk = seed % 3 == 0 ? 24 : 0;
    VirtualEngine world(config);
    std::mt19937 random(seed);
    for (int step = 20; step < 2000; step += 97) world.executor.fail_step(step, {ErrorCode::kInternal, "scripted"});
    std::vector<std::pair<std::shared_ptr<Told>, uint32_t>> told;
    Samples before = samples_of(world);
    for (int round = 0; round < 300; ++round) {
      if (random() % 3 == 0) {
        const uint32_t num_prompt = 1 + random() % 120;
        sched::Request request = world.request(num_prompt, 1 + random() % 60, random() % 4);
        request.num_choices = 1 + random() % 3;
        sched::RequestId id{};
        auto answer = world.ask(std::move(request), &id);
        REQUIRE(answer);
        if (random() % 4 == 0) world.at(world.now_ms() + random() % 200, [&world, id] { world.engine.cancel(id); });
        told.emplace_back(std::move(answer), num_prompt);
      }
      world.run_until(world.now_ms() + 5);
      const Samples now = samples_of(world);
      for (const auto& [name, value] : now) {
        if (name.find("_total{") != std::string::npos) CHECK_MESSAGE(value >= before.at(name), name);
      }
      const double all = value_of(now, "vllm:prompt_tokens_total");
      const double cached = value_of(now, "vllm:prompt_tokens_by_source_total", ",source=\"local_cache_hit\"");
      CHECK(cached == value_of(now, "vllm:prompt_tokens_cached_total"));
      CHECK(value_of(now, "vllm:prompt_tokens_by_source_total", ",source=\"local_compute\"") + cached == all);
      before = now;
    }
    world.run_until(world.now_ms() + 60'000);
    const Samples end = samples_of(world);
    // Each prompt that has a token counts once.
    uint64_t expected = 0;
    for (const auto& [answer, num_prompt] : told) {
      REQUIRE(answer->is_done());
      expected += answer->first_ms >= 0 ? num_prompt : 0;
    }
    CHECK(value_of(end, "vllm:prompt_tokens_total") == static_cast<double>(expected));
    CHECK(value_of(end, "vllm:prompt_tokens_cached_total") > 0);
    if (config.sched.force_preempt_every > 0) CHECK(value_of(end, "vllm:num_preemptions_total") > 0);
  }
}

TEST_CASE("MET-02: a cache that says more than the prompt, and totals that fall, add nothing and take nothing away") {
  // The faults: 768 - 8448 added to a count of computed tokens; a total that is less than before, subtracted.
  MetricRegistry registry;
  EngineMetrics metrics(registry, "", {});
  sched::CommitResult result;
  result.completed_prompt_tokens = 768;
  result.cached_prompt_tokens = 8448;
  sched::SchedulerConfig config;
  config.num_blocks = 40;
  config.max_model_len = 200;
  config.window_ms = 0;
  config.enable_prefix_caching = true;
  sched::Scheduler busy(config);
  busy.add(sched::RequestId{1}, VirtualEngine().request(100, 5, 1), 1);
  REQUIRE(busy.plan_step(1).items.size() == 1);
  metrics.on_step(busy, result, 0.01);
  metrics.on_step(sched::Scheduler(config), {}, 0.01);
  const Samples now = testing::samples_in_exposition(registry.exposition());
  CHECK(value_of(now, "vllm:prompt_tokens_total") == 768);
  CHECK(value_of(now, "vllm:prompt_tokens_by_source_total", ",source=\"local_compute\"") == 0);
  CHECK(value_of(now, "vllm:prompt_tokens_by_source_total", ",source=\"local_cache_hit\"") == 768);
  CHECK(value_of(now, "vllm:prefix_cache_queries_total") == 100);
}

TEST_CASE("MET-03: a lookup counts once, when the request is admitted, however often it was looked at before") {
  // The faults: counted where the cache is asked, which a request that waits for room does in every step; counted again
  // when a preempted request comes back.
  EngineConfig config = virtual_config();
  config.sched.num_blocks = 20;
  config.sched.max_model_len = 320;
  config.sched.enable_prefix_caching = true;
  VirtualEngine world(config);
  const auto large = world.ask(world.request(240, 40, 1));  // 15 blocks, and up to 18
  world.run_until(20);
  const auto waits = world.ask(world.request(200, 5, 2));  // 13 blocks: not before the first has gone
  REQUIRE(waits);
  world.run_until(2000);
  REQUIRE(waits->is_served());
  CHECK(waits->first_ms > large->end_ms);
  Samples now = samples_of(world);
  CHECK(value_of(now, "vllm:prefix_cache_queries_total") == 440);
  CHECK(value_of(now, "vllm:prefix_cache_hits_total") == 0);
  const auto again = world.ask(world.request(200, 5, 2));
  world.run_until(4000);
  REQUIRE(again->is_served());
  now = samples_of(world);
  CHECK(value_of(now, "vllm:prefix_cache_queries_total") == 640);
  CHECK(value_of(now, "vllm:prefix_cache_hits_total") == 192);
  CHECK(value_of(now, "vllm:gpu_prefix_cache_hits_total") == 192);
  CHECK(value_of(now, "vllm:prompt_tokens_cached_total") == 192);

  config.sched.force_preempt_every = 5;
  VirtualEngine preempting(config);
  REQUIRE(preempting.ask(preempting.request(100, 30, 1)));
  preempting.run_until(2000);
  now = samples_of(preempting);
  CHECK(value_of(now, "vllm:num_preemptions_total") > 2);
  CHECK(value_of(now, "vllm:prefix_cache_queries_total") == 100);
  CHECK(value_of(now, "vllm:prefix_cache_hits_total") == 0);
}

TEST_CASE("MET-04: a wait of a millisecond and one of minutes are told apart by the queue's and the phases' times") {
  // The faults: vLLM's bounds as they are, from 0.3 s; or none above 60 s.
  for (const double wait_s : {0.002, 0.04, 400.0}) {
    EngineConfig config = virtual_config();
    config.sched.max_num_seqs = 1;
    VirtualEngine world(config, {wait_s * 500, 0, 0});
    world.ask(world.request(5, 2, 1));
    world.ask(world.request(5, 1, 2));  // waits for two steps
    world.run_until(4000 * wait_s);
    const auto samples = samples_of(world);
    const std::string name = "vllm:request_queue_time_seconds";
    double last_below = 0, first_above = 1e9;
    for (const auto& [key, value] : samples) {
      if (!key.starts_with(name + "_bucket") || key.find("+Inf") != std::string::npos) continue;
      const double bound = std::stod(key.substr(key.find("le=\"") + 4));
      // The first began at once, so a bucket with both holds the second.
      if (value == 1) last_below = std::max(last_below, bound);
      if (value == 2) first_above = std::min(first_above, bound);
    }
    CHECK(last_below > 0);
    CHECK(last_below < wait_s);
    CHECK(first_above >= wait_s);
    CHECK(first_above <= 5 * last_below);
  }
}

TEST_CASE("MET-01: the engine's page is well-formed when nothing has happened and when much has") {
  VirtualEngine world;
  CHECK(testing::faults_in_exposition(world.metrics.exposition()).empty());
  for (uint32_t i = 0; i < 10; ++i) world.ask(world.request(30, 5, i));
  world.run_until(500);
  for (const std::string& fault : testing::faults_in_exposition(world.metrics.exposition())) FAIL_CHECK(fault);
}

}  // namespace
}  // namespace tandem::engine
