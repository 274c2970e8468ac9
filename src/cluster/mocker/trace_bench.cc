// trace_bench TRACE.csv [SECONDS [NODES]] : one recorded load (TIMESTAMP,ContextTokens,GeneratedTokens) on simulated
// clusters of NODES nodes (default 9), prefill and decode apart in several ratios and all mixed, at growing rates.
// Prints time to the first token and per token, and the share of requests within 1 s and 50 ms, as JSON lines. Virtual
// time, real policies; a step costs what Llama-2-70B costs on eight H100, after the rows that Splitwise measured (ISCA
// 2024).

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "cluster/mocker/sim_cluster.h"

namespace tandem::mocker {
namespace {

using namespace handoff;

struct Arrival {
  double at_s = 0;
  uint32_t prompt = 0, generated = 0;
};

struct Topology {
  std::string name;
  uint32_t num_prefill = 0, num_decode = 0, num_mixed = 0;
};

constexpr double kTtftGoal_ms = 1000, kTpotGoal_ms = 50;
constexpr uint32_t kMaxPrompt = 4096;  // longer ones are cut

// 30 ms a step, 60 us a prompt token, 0.3 ms a row; a position attended to 8 ns for a prompt token, 20 ns for a row.
const cost::StepCost& machine() {
  static const cost::StepCost fitted = cost_of({30e-3, 60e-6, 3e-4, 8e-9, 2e-8});
  return fitted;
}

// Seconds of the day; the trace does not pass midnight.
bool parse(const std::string& line, Arrival& arrival) {
  int hours = 0, minutes = 0;
  double seconds = 0;
  return std::sscanf(line.c_str(), "%*d-%*d-%*d %d:%d:%lf,%u,%u", &hours, &minutes, &seconds, &arrival.prompt,
                     &arrival.generated) == 5 &&
         (arrival.at_s = 3600.0 * hours + 60.0 * minutes + seconds, arrival.prompt > 0 && arrival.generated > 0);
}

std::vector<Arrival> read_trace(const std::string& path) {
  std::ifstream file(path);
  std::vector<Arrival> arrivals;
  std::string line;
  for (Arrival arrival; std::getline(file, line);) {
    if (parse(line, arrival)) arrivals.push_back(arrival);
  }
  return arrivals;
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(p * static_cast<double>(values.size() - 1))];
}

SimConfig config_of(const Topology& topology) {
  SimConfig config;
  const auto add = [&](const char* prefix, Role role, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) config.nodes.push_back({prefix + std::to_string(i), role});
  };
  add("p", Role::kPrefill, topology.num_prefill);
  add("d", Role::kDecode, topology.num_decode);
  add("m", Role::kMixed, topology.num_mixed);
  config.pool = {32768, 20480, 16};
  config.max_pinned_blocks = 8192;
  config.engine.chunk_tokens = 2048;
  config.engine.checks_all_positions = false;
  config.runs_to_length = true;
  config.uses_wire_format = false;
  config.step_cost = &machine();
  config.prefill_tokens_per_s = 12000;
  return config;
}

void run(const Topology& topology, const std::vector<Arrival>& arrivals, double duration_s, double rate) {
  SimConfig config = config_of(topology);
  if (topology.num_mixed > 0) config.engine.chunk_tokens = 512;  // decodes wait for each chunk
  SimCluster cluster(config);
  SimRandom random(7);
  cluster.run_for(1'000'000'000);
  // The trace's lengths in their order, its gaps scaled to the rate.
  const double own_rate = static_cast<double>(arrivals.size() - 1) / (arrivals.back().at_s - arrivals.front().at_s);
  const Nanos begin = cluster.now();
  size_t num_asked = 0;
  for (const Arrival& arrival : arrivals) {
    const double at_s = (arrival.at_s - arrivals.front().at_s) * own_rate / rate;
    if (at_s > duration_s) break;
    const Nanos at = begin + static_cast<Nanos>(at_s * 1e9);
    if (at > cluster.now()) cluster.run_for(at - cluster.now());
    std::vector<TokenId> prompt(std::min(arrival.prompt, kMaxPrompt));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random.below(30000));
    cluster.submit(0, std::move(prompt), 1, arrival.generated);
    ++num_asked;
  }
  cluster.run_for(static_cast<Nanos>(600e9), true);
  std::vector<double> ttft, tpot;
  size_t num_good = 0;
  for (const SimCluster::Served& served : cluster.served()) {
    ttft.push_back(served.ttft_ms);
    if (served.num_tokens > 1) tpot.push_back(served.tpot_ms);
    num_good += served.ttft_ms <= kTtftGoal_ms && served.tpot_ms <= kTpotGoal_ms;
  }
  const std::vector<double> gaps = cluster.gaps_ms();
  std::printf("{\"topology\":\"%s\",\"requests_per_s\":%.0f,\"requests\":%zu,\"completed\":%zu,"
              "\"ttft_ms_p50\":%.0f,\"ttft_ms_p99\":%.0f,\"tpot_ms_p50\":%.1f,\"tpot_ms_p99\":%.1f,"
              "\"gap_ms_p99\":%.1f,\"gap_ms_p999\":%.1f,\"within_goals\":%.4f}\n",
              topology.name.c_str(), rate, num_asked, cluster.num_completed(), percentile(ttft, 0.5),
              percentile(ttft, 0.99), percentile(tpot, 0.5), percentile(tpot, 0.99), percentile(gaps, 0.99),
              percentile(gaps, 0.999), static_cast<double>(num_good) / static_cast<double>(num_asked));
  std::fflush(stdout);
  if (!cluster.violation().empty()) std::fprintf(stderr, "%s\n", cluster.violation().c_str());
}

}  // namespace
}  // namespace tandem::mocker

int main(int argc, char** argv) {
  using namespace tandem::mocker;
  if (argc < 2) return std::fprintf(stderr, "usage: %s TRACE.csv [SECONDS [NODES]]\n", argv[0]), 2;
  const double duration_s = argc > 2 ? std::atof(argv[2]) : 60;
  const uint32_t nodes = argc > 3 ? static_cast<uint32_t>(std::max(3, std::atoi(argv[3]))) : 9;
  const std::vector<Arrival> arrivals = read_trace(argv[1]);
  if (arrivals.size() < 2) return std::fprintf(stderr, "%s holds no requests\n", argv[1]), 1;
  const auto apart = [](uint32_t prefill, uint32_t decode) {
    return Topology{std::to_string(prefill) + "P" + std::to_string(decode) + "D", prefill, decode, 0};
  };
  const uint32_t third = nodes / 3;
  const Topology topologies[] = {apart(nodes - third, third), apart(third, nodes - third),
                                 {std::to_string(nodes) + "M", 0, 0, nodes}};
  for (const double per_node : {1.0, 2.0, 3.0, 4.0, 5.0}) {
    for (const Topology& topology : topologies) run(topology, arrivals, duration_s, per_node * nodes);
  }
}
