// Handed over = local, with real models: the same requests through one engine, and through prefill and decode nodes
// that hand their KV over, are adopted after a node's death, or run mixed. No sockets: tests/e2e/local_cluster.h.
// needs: serve_runner plugins_cpu serve_engine cluster_node

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "e2e/fixture_files.h"
#include "e2e/local_cluster.h"
#include "e2e/scoring.h"
#include "serve/engine/engine.h"
#include "serve/sched/mask_for_test.h"

namespace tandem::e2e {
namespace {

using Answer = std::vector<std::vector<TokenId>>;
using handoff::Role;

constexpr uint32_t kPoolTokens = 6144;

// The grammar of a request's source: a number of tokens, after which nothing may come.
node::ChoiceMasks masks_of(const sched::Grammar& grammar, uint32_t vocab) {
  sched::CountedMaskRule rule;
  rule.vocab = vocab;
  rule.num_tokens = static_cast<uint32_t>(std::stoul(grammar.source));
  return [rule] { return std::make_unique<sched::CountedMask>(rule); };
}

// Greedy and seeded, one choice and two, penalties, a stop token, a grammar, prompts of one token to several blocks.
handoff::RequestState make_request(uint32_t vocab, uint32_t index, uint32_t longest) {
  uint64_t state = 0x9e3779b97f4a7c15ull * (index % 3 == 0 ? 1 : index + 1);  // a third begin alike
  const auto next = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<uint32_t>(state >> 33);
  };
  handoff::RequestState request;
  const uint32_t length = index == 0 ? 1 : 3 + index * 29 % longest;
  for (uint32_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>(next() % vocab));
  request.max_tokens = 20 + index % 5;
  request.ignore_eos = true;
  request.sampling.seed = 1000 + index;
  request.sampling.temperature = index % 2 == 0 ? 0.0f : 0.8f;
  if (index % 4 == 1) request.sampling.top_p = 0.9f;
  if (index % 4 == 3) request.sampling.top_k = 40;
  if (index % 5 == 3) request.sampling.repetition_penalty = 1.2f;
  if (index % 5 == 4) request.sampling.frequency_penalty = 0.5f;
  if (index % 6 == 5) {
    for (TokenId id = 0; id < static_cast<TokenId>(vocab); id += 7) request.stop_token_ids.push_back(id);
    request.min_tokens = 4;
  }
  if (index % 4 == 2 || (index % 8 == 5 && index % 6 != 5)) {
    request.grammar_kind = handoff::GrammarKind::kRegex;
    request.grammar_source = index % 8 == 2 ? "17" : "1000";
  }
  request.choices.resize(index % 8 == 5 ? 2 : 1);
  return request;
}

class Collector final : public sched::TokenSink {
 public:
  explicit Collector(size_t num_choices) : answer(num_choices) {}
  void publish(sched::Update update) override {
    if (update.error) check_failed("request", 0, update.error->message.c_str());
    for (const sched::ChoiceDelta& delta : update.deltas) {
      answer[delta.choice].insert(answer[delta.choice].end(), delta.tokens.begin(), delta.tokens.end());
    }
  }
  Answer answer;
};

std::vector<Answer> run_in_one_process(const runner::RunnerOptions& options,
                                       const std::vector<handoff::RequestState>& requests) {
  const auto runner = open_runner(options);
  engine::EngineConfig config;
  config.sched.block_size = runner->block_tokens();
  config.sched.num_blocks = runner->num_blocks();
  config.sched.max_num_batched_tokens = options.max_batched_tokens;
  config.sched.max_model_len = runner->max_model_len();
  config.vocab_size = runner->vocab_size();
  const SystemClock clock;
  MetricRegistry metrics;
  engine::Engine engine(config, *runner, clock, metrics);
  std::vector<std::shared_ptr<Collector>> sinks;
  for (const handoff::RequestState& state : requests) {
    sched::Request request;
    request.prompt = state.prompt;
    request.sampling = state.sampling;
    request.num_choices = static_cast<uint32_t>(state.choices.size());
    request.max_tokens = state.max_tokens;
    request.min_tokens = state.min_tokens;
    request.ignore_eos = state.ignore_eos;
    request.stop_token_ids = state.stop_token_ids;
    if (state.grammar_kind != handoff::GrammarKind::kNone) {
      request.grammar = sched::Grammar{sched::GrammarKind::kRegex, state.grammar_source};
      request.make_token_mask = masks_of(*request.grammar, config.vocab_size);
    }
    sinks.push_back(std::make_shared<Collector>(state.choices.size()));
    TANDEM_CHECK(static_cast<bool>(engine.submit(std::move(request), sinks.back())));
  }
  while (engine.run_once()) {
  }
  std::vector<Answer> answers;
  for (const auto& sink : sinks) answers.push_back(sink->answer);
  return answers;
}

struct Topology {
  std::string name;
  std::vector<LocalNodeSpec> nodes;
  std::string killed;       // a node that dies while requests are under way; empty: none
  uint32_t dies_after = 0;  // tokens of all requests
};

std::vector<Topology> topologies() {
  const LocalNodeSpec p0{"p0", Role::kPrefill}, p1{"p1", Role::kPrefill}, d0{"d0", Role::kDecode},
      d1{"d1", Role::kDecode}, m0{"m0", Role::kMixed}, m1{"m1", Role::kMixed};
  return {{"1P1D", {p0, d0}, ""},
          {"2P1D", {p0, p1, d0}, ""},
          {"2P2D", {p0, p1, d0, d1}, ""},
          {"2M", {m0, m1}, ""},
          {"2P2D, a prefill node dies", {p0, p1, d0, d1}, "p1", 6},
          {"2P2D, a decode node dies", {p0, p1, d0, d1}, "d0", 60},
          {"2P1D, the only decode node dies", {p0, p1, d0}, "d0", 60},
          {"2M, one dies", {m0, m1}, "m0", 60}};
}

void check_model(const std::string& path, uint32_t num_requests, uint32_t longest, runner::KvType kv_type) {
  runner::RunnerOptions options = test_options(path, kPoolTokens);
  options.kv_type = kv_type;
  options.num_threads = 2;
  std::vector<handoff::RequestState> requests;
  const uint32_t vocab = open_runner(options)->vocab_size();
  for (uint32_t i = 0; i < num_requests; ++i) requests.push_back(make_request(vocab, i, longest));
  const std::vector<Answer> expected = run_in_one_process(options, requests);
  for (uint32_t i = 0; i < num_requests; ++i) {
    if (requests[i].grammar_kind == handoff::GrammarKind::kNone) continue;
    for (const auto& tokens : expected[i]) CHECK(sched::CountedMask::accepts(tokens));
    if (requests[i].grammar_source == "17") CHECK(expected[i][0].size() == 17);
  }
  for (const Topology& topology : topologies()) {
    CAPTURE(topology.name);
    LocalCluster cluster(topology.nodes, options, 48,
                         [vocab](const sched::Grammar& grammar) { return masks_of(grammar, vocab); });
    std::vector<handoff::RequestId> ids;
    for (const handoff::RequestState& request : requests) ids.push_back(cluster.submit(request));
    bool has_died = topology.killed.empty();
    for (int turn = 0; turn < 200000 && cluster.num_open() > 0; ++turn) {
      cluster.turn();
      size_t num_tokens = 0;
      for (const handoff::RequestId& id : ids) num_tokens += cluster.answer(id)[0].size();
      if (has_died || num_tokens < topology.dies_after) continue;
      has_died = true;
      cluster.kill(topology.killed);
    }
    REQUIRE(cluster.num_open() == 0);
    CHECK(has_died);
    uint32_t num_recovered = 0;
    for (uint32_t i = 0; i < num_requests; ++i) {
      CAPTURE(i);
      CHECK(cluster.error_of(ids[i]).empty());
      CHECK(cluster.answer(ids[i]) == expected[i]);
      num_recovered += cluster.num_attempts(ids[i]) > 1 ? 1 : 0;
    }
    // A cluster that handed nothing over, or a death that hit nobody, would prove nothing.
    if (topology.nodes[0].role == Role::kPrefill) CHECK(cluster.num_pushed_blocks() > num_requests);
    CHECK(cluster.num_mirror_frames() > 0);
    if (!topology.killed.empty()) CHECK(num_recovered > 0);
    CHECK(cluster.gateway().num_mismatches() == 0);
  }
}

TEST_CASE("requests that are handed over answer as in one process, also when a node dies") {
  check_model(fixture("tiny/mistral-swa.F16.gguf"), 24, 110, runner::KvType::kBF16);
  check_model(fixture("tiny/quantised/llama-gqa.Q4_K_M.gguf"), 16, 90, runner::KvType::kInt8);
}

TEST_CASE("the demo model's requests that are handed over answer as in one process") {
  const char* path = std::getenv("TANDEM_DEMO_MODEL");
  if (path == nullptr || *path == '\0') {
    std::printf("SKIP demo_model: TANDEM_DEMO_MODEL is not set\n");
    return;
  }
  check_model(path, 8, 200, runner::KvType::kAuto);
}

}  // namespace
}  // namespace tandem::e2e
