#include "serve/engine/engine.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "serve/engine/recording_sink.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::engine {
namespace {

using sched::FinishReason;
using sched::Request;

EngineConfig small_config() {
  EngineConfig config;
  config.vocab_size = 1000;
  config.sched.num_blocks = 64;
  config.sched.max_num_seqs = 8;
  config.sched.max_num_batched_tokens = 64;
  config.sched.max_model_len = 256;
  config.sched.eos_ids = {2};
  return config;
}

Request make_request(std::vector<TokenId> prompt, uint32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

std::vector<TokenId> prompt_of(uint32_t length, TokenId first) {
  std::vector<TokenId> prompt(length);
  for (uint32_t i = 0; i < length; ++i) prompt[i] = 3 + (first * 131 + static_cast<TokenId>(i) * 17) % 900;
  return prompt;
}

// An engine without a thread, on a clock that a step advances by 5 ms.
struct Bench {
  explicit Bench(const EngineConfig& with = small_config())
      : config(with),
        executor({config.sched.num_blocks, config.sched.block_size, config.vocab_size - 1, 3}),
        engine(config, executor, clock, metrics) {
    executor.set_observer([this](uint64_t, const sched::Batch& batch) {
      clock.advance_ms(5);
      largest_batch = std::max(largest_batch, batch.items.size());
    });
  }

  std::shared_ptr<RecordingSink> submit(Request request) {
    auto sink = std::make_shared<RecordingSink>();
    auto id = engine.submit(std::move(request), sink);
    REQUIRE(id);
    last_id = *id;
    return sink;
  }

  void run() {
    for (int turn = 0; turn < 100000; ++turn) {
      if (!engine.run_once()) return;
      engine.scheduler().check_invariants();
    }
    FAIL("the engine does not become idle");
  }

  EngineConfig config;
  ManualClock clock;
  MetricRegistry metrics;
  sched::ScriptedExecutor executor;
  Engine engine;
  sched::RequestId last_id{};
  size_t largest_batch = 0;
};

TEST_CASE("a scripted request gives its tokens and ends at the end token") {
  Bench bench;
  bench.executor.set_script({10, 11, 12}, {20, 21, 2});
  const auto sink = bench.submit(make_request({10, 11, 12}, 50));
  bench.run();
  REQUIRE(sink->is_done());
  CHECK(sink->tokens() == std::vector<TokenId>{20, 21, 2});
  REQUIRE(sink->finish());
  CHECK(sink->finish()->reason == FinishReason::kStop);
  CHECK(sink->finish()->stop_token == 2);
}

TEST_CASE("SCH-05: many requests run in one batch and each ends as it does alone") {
  Bench together;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 20; ++i) sinks.push_back(together.submit(make_request(prompt_of(5 + i * 3, i), 10)));
  together.run();
  CHECK(together.largest_batch > 4);
  for (int i = 0; i < 20; ++i) {
    Bench alone;
    const auto sink = alone.submit(make_request(prompt_of(5 + i * 3, i), 10));
    alone.run();
    CHECK(sinks[i]->tokens() == sink->tokens());
    CHECK(sinks[i]->finish()->reason == FinishReason::kLength);
  }
}

TEST_CASE("what a request learns: cached tokens, when it was scheduled, logprobs") {
  Bench bench;
  bench.clock.advance_ms(100);
  Request request = make_request(prompt_of(40, 1), 3);
  request.sampling.num_logprobs = 2;
  const auto first = bench.submit(request);
  bench.run();
  const auto second = bench.submit(request);
  bench.run();
  CHECK(first->updates()[0].num_cached_tokens == 0);
  CHECK(first->updates()[0].scheduled_ns == 100'000'000);
  CHECK(second->updates()[0].num_cached_tokens == 32);
  CHECK(second->tokens() == first->tokens());
  CHECK(first->updates()[0].deltas[0].logprobs.size() == 1);
  CHECK(first->updates()[0].deltas[0].logprobs[0].top.size() == 2);
}

TEST_CASE("a reset drops what is cached and unused, and no block that a request holds") {
  Bench bench;
  const auto ask = [&bench] {
    const auto sink = bench.submit(make_request(prompt_of(40, 1), 3));
    bench.run();
    return sink->updates()[0].num_cached_tokens;
  };
  CHECK(ask() == 0);
  CHECK(ask() == 32);
  CHECK(bench.engine.reset_prefix_cache());
  CHECK(ask() == 0);
  const auto running = bench.submit(make_request(prompt_of(40, 1), 30));
  for (int i = 0; i < 4; ++i) CHECK(bench.engine.run_once());
  CHECK(bench.engine.reset_prefix_cache());
  bench.run();
  CHECK(running->tokens().size() == 30);
  CHECK(!running->error());
  CHECK(bench.engine.reset_prefix_cache());
  bench.run();
  CHECK(bench.engine.scheduler().pool().num_cached() == 0);
}

TEST_CASE("a step that fails once is tried again and nobody notices") {
  Bench whole;
  const auto expected = whole.submit(make_request(prompt_of(30, 1), 8));
  whole.run();
  Bench bench;
  for (const uint64_t step : {0, 3, 5}) bench.executor.fail_step(step, {ErrorCode::kUnavailable, "scripted"});
  const auto sink = bench.submit(make_request(prompt_of(30, 1), 8));
  bench.run();
  CHECK(!sink->error());
  CHECK(sink->tokens() == expected->tokens());
}

TEST_CASE("a request that breaks every step is found and ends alone") {
  for (const size_t culprit : {0, 3, 6}) {
    Bench bench;
    bench.executor.fail_steps_with(999);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    std::vector<Request> requests;
    for (size_t i = 0; i < 7; ++i) {
      requests.push_back(make_request(prompt_of(9, static_cast<TokenId>(i)), 6));
      if (i == culprit) requests.back().prompt[4] = 999;
      sinks.push_back(bench.submit(requests.back()));
    }
    bench.run();
    for (size_t i = 0; i < 7; ++i) {
      REQUIRE(sinks[i]->is_done());
      if (i == culprit) {
        REQUIRE(sinks[i]->error());
        CHECK(sinks[i]->error()->code == ErrorCode::kInternal);
        continue;
      }
      Bench alone;
      const auto sink = alone.submit(requests[i]);
      alone.run();
      CHECK(!sinks[i]->error());
      CHECK(sinks[i]->tokens() == sink->tokens());
    }
    CHECK(bench.engine.scheduler().pool().num_owned() == 0);
  }
}

TEST_CASE("forks are computed right when their step has to be taken apart") {
  Request forked = make_request(prompt_of(40, 1), 6);
  forked.num_choices = 3;
  Bench whole;
  const auto expected = whole.submit(forked);
  whole.run();
  Bench bench;
  // The step with the copies fails twice as a whole.
  bench.executor.fail_step(1, {ErrorCode::kInternal, "scripted"});
  bench.executor.fail_step(2, {ErrorCode::kInternal, "scripted"});
  const auto sink = bench.submit(forked);
  bench.run();
  CHECK(!sink->error());
  for (uint32_t choice = 0; choice < 3; ++choice) CHECK(sink->tokens(choice) == expected->tokens(choice));
}

TEST_CASE("an executor that always fails ends requests, not the engine") {
  Bench bench;
  for (uint64_t step = 0; step < 12; ++step) bench.executor.fail_step(step, {ErrorCode::kUnavailable, "no device"});
  const auto a = bench.submit(make_request(prompt_of(9, 1), 6));
  const auto b = bench.submit(make_request(prompt_of(9, 2), 6));
  bench.run();
  REQUIRE(a->error());
  CHECK(a->error()->code == ErrorCode::kInternal);
  CHECK(a->error()->message.find("no device") != std::string::npos);
  REQUIRE(b->error());
  while (bench.executor.num_steps() < 12) {
    bench.submit(make_request(prompt_of(9, 3), 6));
    bench.run();
  }
  const auto c = bench.submit(make_request(prompt_of(9, 1), 6));
  bench.run();
  CHECK(!c->error());
  CHECK(c->tokens().size() == 6);
}

ErrorCode refusal(Engine& engine, Request request) {
  auto id = engine.submit(std::move(request), std::make_shared<RecordingSink>());
  REQUIRE(!id);
  return id.error().code;
}

TEST_CASE("submit refuses at once what cannot run") {
  Bench bench;
  Engine& engine = bench.engine;
  CHECK(refusal(engine, make_request({}, 5)) == ErrorCode::kInvalidArgument);
  CHECK(refusal(engine, make_request({1000}, 5)) == ErrorCode::kInvalidArgument);
  CHECK(refusal(engine, make_request({-1}, 5)) == ErrorCode::kInvalidArgument);
  CHECK(refusal(engine, make_request(prompt_of(256, 1), 5)) == ErrorCode::kInvalidArgument);
  CHECK(refusal(engine, make_request({5}, 0)) == ErrorCode::kInvalidArgument);
  Request many = make_request({5}, 5);
  many.num_choices = 1000000;
  CHECK(refusal(engine, many) == ErrorCode::kInvalidArgument);
  Request greedy = make_request({5}, 5);
  greedy.sampling.num_logprobs = 100000;
  CHECK(refusal(engine, greedy) == ErrorCode::kInvalidArgument);
  Request late = make_request({5}, 5);
  bench.clock.advance_ms(10);
  late.deadline_ns = 5'000'000;
  CHECK(refusal(engine, late) == ErrorCode::kExhausted);
  engine.begin_drain();
  CHECK(refusal(engine, make_request({5}, 5)) == ErrorCode::kUnavailable);
}

TEST_CASE("the queue is bounded, and has room again when requests leave it") {
  EngineConfig config = small_config();
  config.sched.max_queue_length = 4;
  config.sched.max_queued_per_tenant = 2;
  Bench bench(config);
  Request named = make_request(prompt_of(9, 1), 3);
  named.tenant = "x";
  bench.submit(named);
  bench.submit(named);
  CHECK(refusal(bench.engine, named) == ErrorCode::kExhausted);
  bench.submit(make_request(prompt_of(9, 2), 3));
  bench.submit(make_request(prompt_of(9, 3), 3));
  CHECK(refusal(bench.engine, make_request({5}, 5)) == ErrorCode::kUnavailable);
  CHECK(bench.engine.load().num_waiting == 4);
  CHECK(bench.engine.load().retry_after_s >= 1);
  bench.engine.run_once();
  CHECK(bench.engine.load().num_waiting == 0);
  CHECK(bench.engine.load().num_running == 4);
  CHECK(bench.engine.load().kv_usage > 0);
  bench.submit(named);
  bench.run();
  CHECK(bench.engine.load().num_running == 0);
}

TEST_CASE("KVC-06: a request that fills the pool does not keep others out") {
  EngineConfig config = small_config();
  config.sched.num_blocks = 8;
  config.sched.eos_ids = {};
  Bench bench(config);
  CHECK(refusal(bench.engine, make_request(prompt_of(129, 1), 5)) == ErrorCode::kInvalidArgument);
  const auto large = bench.submit(make_request(prompt_of(100, 1), 1000));
  std::vector<std::shared_ptr<RecordingSink>> small;
  for (TokenId i = 0; i < 10; ++i) small.push_back(bench.submit(make_request(prompt_of(10, 10 + i), 5)));
  bench.run();
  CHECK(large->finish()->reason == FinishReason::kLength);
  CHECK(large->tokens().size() == 29);
  for (const auto& sink : small) CHECK(sink->tokens().size() == 5);
}

TEST_CASE("KVC-05: cancelling ends a request within a step, once, wherever it is") {
  for (int num_turns = 0; num_turns < 6; ++num_turns) {
    Bench bench;
    const auto other = bench.submit(make_request(prompt_of(30, 2), 10));
    Request request = make_request(prompt_of(90, 1), 50);
    request.num_choices = 2;
    const auto sink = bench.submit(request);
    for (int i = 0; i < num_turns; ++i) bench.engine.run_once();
    const sched::RequestId id = bench.last_id;
    bench.engine.cancel(id);
    bench.engine.cancel(id);
    bench.engine.cancel(sched::RequestId{12345});
    bench.engine.run_once();
    REQUIRE(sink->is_done());
    CHECK(sink->finish(0)->reason == FinishReason::kCancelled);
    CHECK(sink->finish(1)->reason == FinishReason::kCancelled);
    bench.run();
    bench.engine.cancel(id);
    bench.run();
    CHECK(other->tokens().size() > 0);
    CHECK(!other->error());
  }
}

TEST_CASE("stopping ends what is open, and nothing is taken any more") {
  Bench bench;
  const auto running = bench.submit(make_request(prompt_of(9, 1), 50));
  bench.engine.run_once();
  const auto queued = bench.submit(make_request(prompt_of(9, 2), 50));
  bench.engine.stop();
  for (const auto& sink : {running, queued}) {
    REQUIRE(sink->is_done());
    REQUIRE(sink->error());
    CHECK(sink->error()->code == ErrorCode::kUnavailable);
  }
  CHECK(refusal(bench.engine, make_request({5}, 5)) == ErrorCode::kUnavailable);
}

TEST_CASE("metrics say what happened, under our names and vLLM's") {
  Bench bench;
  bench.submit(make_request(prompt_of(40, 1), 4));
  bench.run();
  bench.submit(make_request(prompt_of(40, 1), 4));
  bench.run();
  refusal(bench.engine, make_request({}, 1));
  const std::string text = bench.metrics.exposition();
  for (const char* line : {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total",
                           "vllm:request_queue_time_seconds_count", "vllm:num_requests_running",
                           "vllm:kv_cache_usage_perc", "tandem_step_seconds_count", "tandem_kv_blocks",
                           "tandem_step_cost_relative_error"}) {
    CAPTURE(line);
    CHECK(text.find(std::string("\n") + line) != std::string::npos);
  }
  const Labels as = {{"model_name", ""}, {"engine", "0"}};
  const char* help = "Prompt tokens computed or taken from a cache.";
  CHECK(bench.metrics.counter("vllm:prompt_tokens_total", help, as).value() == 40 + 40);
  for (const char* line :
       {"vllm:prompt_tokens_by_source_total{model_name=\"\",engine=\"0\",source=\"local_compute\"} 48\n",
        "vllm:prompt_tokens_by_source_total{model_name=\"\",engine=\"0\",source=\"local_cache_hit\"} 32\n",
        "vllm:cache_config_info{model_name=\"\",engine=\"0\",block_size=\"16\","}) {
    CAPTURE(line);
    CHECK(text.find(std::string("\n") + line) != std::string::npos);
  }
  CHECK(bench.metrics.counter("vllm:generation_tokens_total", "Tokens generated.", as).value() == 8);
  CHECK(bench.metrics
            .counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", as)
            .value() == 32);
}

void wait_until(const std::function<bool()>& is_so) {
  for (int i = 0; i < 20000 && !is_so(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(is_so());
}

// An engine on its own thread and the machine's clock.
struct Running {
  explicit Running(const EngineConfig& config = small_config())
      : executor({config.sched.num_blocks, config.sched.block_size, config.vocab_size - 1, 3}),
        engine(config, executor, clock, metrics) {}
  SystemClock clock;
  MetricRegistry metrics;
  sched::ScriptedExecutor executor;
  Engine engine;
};

TEST_CASE("KVC-05: four threads submit and cancel; every request ends and nothing is left") {
  EngineConfig config = small_config();
  config.sched.max_queue_length = 64;
  Running running(config);
  running.engine.start();
  std::atomic<int> num_ended{0};
  std::atomic<int> num_refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<sched::RequestId, std::shared_ptr<RecordingSink>>> open;
      for (int i = 0; i < 60; ++i) {
        Request request = make_request(prompt_of(5 + (t * 31 + i * 7) % 60, i % 5), 1 + i % 20);
        request.num_choices = i % 6 == 0 ? 2 : 1;
        request.tenant = std::string(1, static_cast<char>('a' + t));
        auto sink = std::make_shared<RecordingSink>();
        auto id = running.engine.submit(std::move(request), sink);
        if (!id) {
          ++num_refused;
          std::this_thread::yield();
          continue;
        }
        open.emplace_back(*id, sink);
        if (i % 3 == 0) running.engine.cancel(open[static_cast<size_t>(i) % open.size()].first);
        if (i % 10 == 0) (void)running.engine.load();
        if (i % 20 == 0) CHECK(running.engine.debug_dump().find("sched:") != std::string::npos);
      }
      for (const auto& [id, sink] : open) {
        while (!sink->is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        num_ended += !sink->error();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(num_ended + num_refused == 240);
  running.engine.begin_drain();
  CHECK(running.engine.wait_idle(10));
  running.engine.stop();
  CHECK(running.engine.scheduler().pool().num_owned() == 0);
  CHECK(running.engine.scheduler().is_idle());
}

TEST_CASE("a request cancelled while its step hangs ends after that step") {
  Running running;
  running.executor.hang_at_step(2);
  running.engine.start();
  auto sink = std::make_shared<RecordingSink>();
  auto id = running.engine.submit(make_request(prompt_of(9, 1), 200), sink);
  REQUIRE(id);
  wait_until([&] { return running.executor.is_hanging(); });
  running.engine.cancel(*id);
  CHECK(!sink->is_done());
  CHECK(!running.engine.wait_idle(0.01));
  running.executor.release_hang();
  CHECK(running.engine.wait_idle(10));
  CHECK(sink->finish()->reason == FinishReason::kCancelled);
  CHECK(running.executor.num_steps() == 3);
}

TEST_CASE("draining lets in nobody and lets everybody finish") {
  Running running;
  running.engine.start();
  auto sink = std::make_shared<RecordingSink>();
  Request request = make_request(prompt_of(9, 1), 200);
  request.ignore_eos = true;
  REQUIRE(running.engine.submit(request, sink));
  running.engine.begin_drain();
  CHECK(!running.engine.submit(make_request(prompt_of(9, 1), 2), sink));
  CHECK(running.engine.wait_idle(30));
  CHECK(sink->tokens().size() == 200);
  running.engine.stop();
  running.engine.stop();
}

}  // namespace
}  // namespace tandem::engine
