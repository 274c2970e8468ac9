// needs: cluster_node cluster_gateway
// The gateway's and the nodes' processes as they run, joined in one program by real streams and KV connections; only
// the model is a hash. What the API would ask of one process it asks here.
#include <doctest/doctest.h>

#include "cluster/gateway/gateway_process.h"
#include "cluster/node/node_for_test.h"
#include "serve/engine/recording_sink.h"
#include "testing/comes_true.h"

namespace tandem {
namespace {

using handoff::Role;
using testing::comes_true;

struct Cluster {
  Cluster() {
    gateway::GatewayProcessConfig config;
    config.limits.max_model_len = 1024;
    config.limits.vocab_size = 50'000;
    config.registry_poll_s = 0.01;
    config.policy.ramp = 0;
    // A machine that is busy with other tests is slow, not lost.
    handoff::Timing& timing = config.policy.timing;
    timing.reserve = timing.prefill_slack = timing.open_timeout = timing.recovery_deadline = 600'000 * handoff::kMs;
    timing.suspect_min = timing.suspect_max = timing.suspect_idle = timing.stuck_min = 600'000 * handoff::kMs;
    auto started = gateway::GatewayProcess::start(config, registry, clock, metrics);
    REQUIRE(static_cast<bool>(started));
    process = std::move(started).value();
  }
  ~Cluster() { process->stop(); }

  void add(const std::string& id, Role role) {
    auto node = node::start_node(id, role, "loop:" + id, registry, &hub, clock);
    REQUIRE_MESSAGE(node, (node ? "" : node.error().message));
    nodes[id] = std::move(*node);
    const std::string ready = "\"id\":\"" + id + "\",\"role\":\"" + registry::role_name(role) +
                              "\",\"state\":\"ready\"";
    REQUIRE(comes_true([&] { return process->status_json().find(ready) != std::string::npos; }));
  }

  registry::MemoryRegistry registry;
  SystemClock clock;
  MetricRegistry metrics;
  transport::LoopbackHub hub;
  std::map<std::string, std::unique_ptr<node::TestNode>> nodes;
  std::unique_ptr<gateway::GatewayProcess> process;
};

sched::Request request_of(uint32_t number) {
  sched::Request request;
  for (uint32_t i = 0; i < 40 + 7 * number; ++i) {
    request.prompt.push_back(static_cast<TokenId>(1 + (i * 31 + number) % 999));
  }
  request.sampling.seed = number;
  request.num_choices = 1 + number % 3;
  request.max_tokens = 60;
  return request;
}

void check_answer(const sched::Request& request, engine::RecordingSink& sink) {
  CHECK(!sink.error());
  handoff::RequestState state;
  state.prompt = request.prompt;
  state.sampling = request.sampling;
  state.max_tokens = request.max_tokens;
  for (uint32_t c = 0; c < request.num_choices; ++c) {
    CHECK(sink.tokens(c) == node::expected_tokens(state, c));
    CHECK(sink.finish(c)->reason == sched::FinishReason::kLength);
  }
}

struct Asked {
  sched::Request request;
  std::shared_ptr<engine::RecordingSink> sink = std::make_shared<engine::RecordingSink>();
};

std::vector<Asked> ask(Cluster& cluster, uint32_t count) {
  std::vector<Asked> asked;
  for (uint32_t i = 0; i < count; ++i) {
    Asked& one = asked.emplace_back(Asked{request_of(i)});
    const auto id = cluster.process->submit(one.request, one.sink);
    REQUIRE_MESSAGE(id, (id ? "" : id.error().message));
  }
  return asked;
}

void check_answers(const std::vector<Asked>& asked) {
  for (const Asked& one : asked) {
    REQUIRE(comes_true([&] { return one.sink->is_done(); }));
    check_answer(one.request, *one.sink);
  }
}

TEST_CASE("a gateway's and three nodes' processes answer as one process would") {
  Cluster cluster;
  cluster.add("p0", Role::kPrefill);
  cluster.add("p1", Role::kPrefill);
  cluster.add("d0", Role::kDecode);
  check_answers(ask(cluster, 12));
  REQUIRE(comes_true([&] { return cluster.nodes.at("d0")->process->is_idle(); }));
}

// What a prompt gives without any cluster.
void check_reading(const sched::Request& request, const engine::RecordingSink& sink) {
  uint64_t words[node::kTestGroups] = {0, 1};
  std::vector<float> expected;
  double sum = 0, last = 0;
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    for (uint64_t& word : words) word = node::mixed(word, static_cast<uint64_t>(request.prompt[i]));
    sum += last = node::HashExecutor::hidden_of(words[0], words[1]);
    if (i + 1 == request.prompt.size()) break;
    expected.push_back(node::HashExecutor::logprob_of(words[0], words[1], request.prompt[i + 1]));
  }
  std::vector<sched::TokenLogprob> scores;
  std::vector<float> embedding;
  for (const sched::Update& update : sink.updates()) {
    scores.insert(scores.end(), update.prompt_logprobs.begin(), update.prompt_logprobs.end());
    embedding.insert(embedding.end(), update.embedding.begin(), update.embedding.end());
  }
  REQUIRE(scores.size() == (request.prompt_logprobs >= 0 ? expected.size() : 0));
  for (size_t i = 0; i < scores.size(); ++i) {
    CHECK(scores[i].token == request.prompt[i + 1]);
    CHECK(scores[i].logprob == expected[i]);
    CHECK(scores[i].rank == 2);
    CHECK(scores[i].top.size() == 1);
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(request.prompt.size()));
  if (request.pooling == sched::Pooling::kMean) CHECK(embedding == std::vector<float>{mean});
  if (request.pooling == sched::Pooling::kLast) CHECK(embedding == std::vector<float>{static_cast<float>(last)});
  if (request.pooling == sched::Pooling::kNone) CHECK(embedding.empty());
}

// The faults: a prefill that takes the prompt's KV from the cache; scores of each chunk alone; a token shown that was
// not asked for.
TEST_CASE("API-10 in a cluster: prompts are scored and pooled as in one process, also when their KV is known") {
  Cluster cluster;
  cluster.add("p0", Role::kPrefill);
  cluster.add("d0", Role::kDecode);
  for (int round = 0; round < 2; ++round) {  // the second finds the prompts in the caches
    std::vector<Asked> asked;
    for (uint32_t i = 0; i < 12; ++i) {
      Asked& one = asked.emplace_back(Asked{request_of(i)});
      one.request.max_tokens = i % 4 == 0 ? 5 : 0;
      if (i % 4 <= 1) {
        one.request.prompt_logprobs = 1;
      } else {
        one.request.num_choices = 1;
        one.request.pooling = i % 4 == 2 ? sched::Pooling::kMean : sched::Pooling::kLast;
      }
      const auto id = cluster.process->submit(one.request, one.sink);
      REQUIRE_MESSAGE(id, (id ? "" : id.error().message));
    }
    check_answers(asked);
    for (const Asked& one : asked) check_reading(one.request, *one.sink);
  }
  sched::Request too_much = request_of(1);
  too_much.prompt.assign(1000, 1);
  too_much.prompt_logprobs = 600;
  CHECK(!cluster.process->submit(too_much, std::make_shared<engine::RecordingSink>()));
}

TEST_CASE("a decode node that goes without a word costs no token") {
  Cluster cluster;
  cluster.add("p0", Role::kPrefill);
  cluster.add("d0", Role::kDecode);
  cluster.add("d1", Role::kDecode);
  const std::vector<Asked> asked = ask(cluster, 8);
  REQUIRE(comes_true([&] { return !cluster.nodes.at("d0")->process->is_idle(); }));
  cluster.nodes.erase("d0");
  check_answers(asked);
  CHECK(cluster.metrics.exposition().find("tandem_token_mismatch_total 0") != std::string::npos);
}

TEST_CASE("a node drains while it decodes, and ends with nothing on it") {
  Cluster cluster;
  cluster.add("p0", Role::kPrefill);
  cluster.add("d0", Role::kDecode);
  cluster.add("d1", Role::kDecode);
  const std::vector<Asked> asked = ask(cluster, 8);
  REQUIRE(static_cast<bool>(cluster.process->drain("d0")));
  check_answers(asked);
  REQUIRE(comes_true([&] { return cluster.nodes.at("d0")->process->is_idle(); }));
}

}  // namespace
}  // namespace tandem
