// One answer: a request's tokens are the same however it is run. 64 mixed requests (greedy and seeded, short and long,
// shared and own prefixes) go through the real engine, scheduler, pool and kernels in many ways; each way must give the
// tokens that each request gives alone.
// needs: serve_runner plugins_cpu serve_engine

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/check.h"
#include "compute/kernels/isa.h"
#include "e2e/fixture_files.h"
#include "e2e/scoring.h"
#include "serve/engine/engine.h"

namespace tandem::e2e {
namespace {

constexpr uint32_t kNumRequests = 64;
constexpr uint32_t kFewRequests = 2;
constexpr uint32_t kPoolTokens = 8192;

// What a request answered, by choice.
using Answer = std::vector<std::vector<TokenId>>;

class Collector final : public sched::TokenSink {
 public:
  explicit Collector(uint32_t num_choices) : answer(num_choices) {}
  void publish(sched::Update update) override {
    if (update.error) check_failed("request", 0, update.error->message.c_str());
    for (const sched::ChoiceDelta& delta : update.deltas) {
      std::vector<TokenId>& tokens = answer[delta.choice];
      tokens.insert(tokens.end(), delta.tokens.begin(), delta.tokens.end());
    }
    is_done |= update.is_last;
    num_cached = std::max(num_cached, update.num_cached_tokens);
  }
  Answer answer;
  bool is_done = false;
  uint32_t num_cached = 0;
};

// How the same requests are run.
struct Way {
  std::string name;
  bool is_alone = false;          // one request at a time
  uint32_t forced_chunk = 0;
  uint32_t num_threads = 2;
  std::string isa = {};
  bool prefix_caching = false;
  uint32_t passes_over_cache = 1;  // with caching: 2 runs everything again on a warm cache
  uint32_t preempt_every = 0;
  runner::KvType kv_type = runner::KvType::kAuto;
  uint32_t num_requests = kNumRequests;
};

struct Model {
  std::string name;
  std::string path;
  uint32_t prompt_base = 0;  // shortest prompt
  uint32_t prompt_span = 0;
  uint32_t num_new = 0;
  uint32_t num_scalar_requests = kNumRequests;  // plain loops take seconds a request on a real model
  uint32_t num_other_kv_requests = kNumRequests;  // with KV other than bf16
  uint32_t num_requests = kNumRequests;           // with bf16
};

// Deterministic pseudo-random ids; a third of the requests share a long beginning.
sched::Request make_request(const Model& model, uint32_t vocab, uint32_t index) {
  uint64_t state = 0x9e3779b97f4a7c15ull * (index % 3 == 0 ? 1 : index + 1);
  const auto next = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<uint32_t>(state >> 33);
  };
  sched::Request request;
  // Two are so long that their attention takes several chunks, cut over the team or not as the batch has it.
  const uint32_t extra = index % 32 == 7 ? 300 : 0;
  const uint32_t length = model.prompt_base + index * 37 % model.prompt_span + extra;
  for (uint32_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>(next() % vocab));
  request.max_tokens = model.num_new + index % 5;
  request.ignore_eos = true;
  request.num_choices = index % 8 == 5 ? 2 : 1;
  request.sampling.seed = 1000 + index;
  request.sampling.temperature = index % 2 == 0 ? 0.0f : 0.8f;
  if (index % 4 == 1) request.sampling.top_p = 0.9f;
  if (index % 4 == 3) request.sampling.top_k = 40;
  if (index % 7 == 3) request.sampling.repetition_penalty = 1.2f;
  return request;
}

std::vector<Answer> run(const Model& model, const Way& way) {
  runner::RunnerOptions options = test_options(model.path, kPoolTokens);
  options.num_threads = way.num_threads;
  options.isa = way.isa;
  options.kv_type = way.kv_type;
  const auto runner = open_runner(options);
  engine::EngineConfig config;
  config.sched.block_size = runner->block_tokens();
  config.sched.num_blocks = runner->num_blocks();
  config.sched.max_num_seqs = 64;
  config.sched.max_num_batched_tokens = options.max_batched_tokens;
  config.sched.max_model_len = runner->max_model_len();
  config.sched.enable_prefix_caching = way.prefix_caching;
  config.sched.forced_chunk = way.forced_chunk;
  config.sched.force_preempt_every = way.preempt_every;
  config.vocab_size = runner->vocab_size();
  const SystemClock clock;
  MetricRegistry metrics;
  engine::Engine engine(config, *runner, clock, metrics);

  std::vector<Answer> answers;
  for (uint32_t pass = 0; pass < way.passes_over_cache; ++pass) {
    std::vector<std::shared_ptr<Collector>> sinks;
    const auto finish = [&] {
      while (engine.run_once()) {
      }
      for (const auto& sink : sinks) TANDEM_CHECK(sink->is_done);
    };
    for (uint32_t i = 0; i < way.num_requests; ++i) {
      sched::Request request = make_request(model, runner->vocab_size(), i);
      sinks.push_back(std::make_shared<Collector>(request.num_choices));
      auto id = engine.submit(std::move(request), sinks.back());
      if (!id) check_failed("submit", 0, id.error().message.c_str());
      if (way.is_alone) finish();
    }
    finish();
    answers.clear();
    for (const auto& sink : sinks) answers.push_back(sink->answer);
    if (pass > 0) {
      uint32_t num_hits = 0;
      for (const auto& sink : sinks) num_hits += sink->num_cached > 0 ? 1 : 0;
      CHECK(num_hits > way.num_requests / 2);
    }
  }
  // A way that did nothing special would prove nothing.
  if (way.preempt_every > 0) CHECK(engine.scheduler().counts().num_preemptions > 0);
  if (way.forced_chunk > 0) CHECK(engine.scheduler().counts().num_steps > way.num_requests * 5 / way.forced_chunk);
  return answers;
}

std::vector<Way> ways(const Model& model, runner::KvType kv_type) {
  std::vector<Way> all = {
      {.name = "all together"},
      {.name = "chunks of 7", .forced_chunk = 7},
      {.name = "chunks of 16", .forced_chunk = 16},
      {.name = "chunks of 33", .forced_chunk = 33},
      {.name = "chunks of 64", .forced_chunk = 64},
      {.name = "one thread", .num_threads = 1},
      {.name = "prefix cache, cold", .prefix_caching = true},
      {.name = "prefix cache, warm", .prefix_caching = true, .passes_over_cache = 2},
      {.name = "after preemptions", .preempt_every = 3},
  };
  using kernels::Isa;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (!kernels::is_supported(isa) || isa == kernels::best_isa()) continue;
    Way way;
    way.name = way.isa = std::string(kernels::isa_name(isa));
    if (isa == Isa::kScalar) way.num_requests = model.num_scalar_requests;
    all.push_back(way);
  }
  for (Way& way : all) {
    way.kv_type = kv_type;
    way.num_requests = std::min(way.num_requests, model.num_requests);
    if (kv_type == runner::KvType::kBF16) continue;
    way.num_requests = std::max(kFewRequests, way.num_requests * model.num_other_kv_requests / model.num_requests);
  }
  return all;
}

void check_model(const Model& model) {
  for (runner::KvType kv_type : {runner::KvType::kBF16, runner::KvType::kF32, runner::KvType::kInt8}) {
    Way alone{.name = "alone", .is_alone = true};
    alone.kv_type = kv_type;
    alone.num_requests = kv_type == runner::KvType::kBF16 ? model.num_requests : model.num_other_kv_requests;
    const std::vector<Answer> expected = run(model, alone);
    // The test is worth something only when requests differ: no two may answer alike by accident of a dead model.
    std::map<Answer, int> distinct;
    for (const Answer& answer : expected) ++distinct[answer];
    CHECK(distinct.size() > alone.num_requests / 2);
    for (const Way& way : ways(model, kv_type)) {
      CAPTURE(model.name);
      CAPTURE(way.name);
      CAPTURE(static_cast<int>(kv_type));
      const std::vector<Answer> got = run(model, way);
      for (uint32_t i = 0; i < way.num_requests; ++i) {
        CAPTURE(i);
        CHECK(got[i] == expected[i]);
      }
    }
  }
}

// What a request is given depends on nobody else: SCH-05 fails when rows of a batch share a sum, SMP-04 when draws go
// by the batch, KVC-03 when a cached block is not the one it stands for, KVC-08 when a preempted one loses its place.
TEST_CASE("SCH-05, SMP-04, KVC-03, KVC-08: the sliding-window model answers the same however its requests are run") {
  check_model({"mistral-swa", fixture("tiny/mistral-swa.F16.gguf"), 5, 120, 24});
}

// The same request many times, which shares all its blocks with itself.
TEST_CASE("SCH-05, KVC-01: 50 equal greedy requests at once, 2, 8 and 32 at a time, give what one gives") {
  const auto runner = open_runner(test_options(fixture("tiny/llama-gqa"), kPoolTokens));
  std::optional<Answer> expected;
  for (const uint32_t num_at_once : {1u, 2u, 8u, 32u, 50u}) {
    for (const bool caches : {false, true}) {
      CAPTURE(num_at_once);
      engine::EngineConfig config;
      config.sched.block_size = runner->block_tokens();
      config.sched.num_blocks = runner->num_blocks();
      config.sched.max_num_seqs = num_at_once;
      config.sched.max_num_batched_tokens = 96;
      config.sched.max_model_len = runner->max_model_len();
      config.sched.enable_prefix_caching = caches;
      config.sched.window_ms = 0;
      config.vocab_size = runner->vocab_size();
      const SystemClock clock;
      MetricRegistry metrics;
      engine::Engine engine(config, *runner, clock, metrics);
      std::vector<std::shared_ptr<Collector>> sinks;
      for (uint32_t i = 0; i < 50; ++i) {
        sched::Request request;
        for (int32_t t = 0; t < 75; ++t) request.prompt.push_back((t * 37 + t * t) % 400);
        request.max_tokens = 20;
        request.ignore_eos = true;
        request.sampling.temperature = 0;
        sinks.push_back(std::make_shared<Collector>(1));
        const auto id = engine.submit(std::move(request), sinks.back());
        if (!id) check_failed("submit", 0, id.error().message.c_str());
      }
      while (engine.run_once()) {
      }
      for (const auto& sink : sinks) {
        REQUIRE(sink->is_done);
        if (!expected) expected = sink->answer;
        CHECK(sink->answer == *expected);
      }
    }
  }
}

TEST_CASE("SCH-05, SMP-04, KVC-03, KVC-08: the demo model answers the same however its requests are run") {
  const char* path = std::getenv("TANDEM_DEMO_MODEL");
  if (path == nullptr || *path == '\0') {
    std::printf("SKIP demo_model: TANDEM_DEMO_MODEL is not set\n");
    return;
  }
  // TANDEM_FULL=1: every request in every way, which takes minutes more.
  const bool is_full = std::getenv("TANDEM_FULL") != nullptr;
  const uint32_t num_scalar = is_full ? kNumRequests : 6, num_other_kv = is_full ? kNumRequests : 16;
  check_model({"smollm2", path, 5, 70, 8, num_scalar, num_other_kv, is_full ? kNumRequests : 32});
}

}  // namespace
}  // namespace tandem::e2e
