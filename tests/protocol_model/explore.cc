// Every interleaving, breadth first, then liveness by backward reachability; and random schedules.
#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "model.h"

namespace protocol_model {
namespace {

struct Hash128 {
  uint64_t a, b;
  bool operator==(const Hash128&) const = default;
};
struct HashOf {
  size_t operator()(const Hash128& hash) const { return hash.a; }
};

Hash128 hash_of(const std::string& key) {
  Hash128 h{1469598103934665603ull, 0x9E3779B97F4A7C15ull};
  for (const unsigned char c : key) {
    h.a = (h.a ^ c) * 1099511628211ull;
    h.b = (h.b + c) * 0xD6E8FEB86659FD93ull;
    h.b ^= h.b >> 32;
  }
  h.a ^= h.a >> 29;
  return h;
}

// The visited set keeps hashes; whole states live only in the frontier. Edges are kept for the backward passes.
struct Graph {
  std::unordered_map<Hash128, uint32_t, HashOf> seen;
  std::vector<uint32_t> parent;
  std::vector<uint8_t> end_flags;  // 1: the stream ended; 2: and nothing is held
  std::vector<std::pair<uint32_t, uint32_t>> edges;  // (to, from * 2 + is_repair); faults are not counted on
  size_t num_transitions = 0;

  uint32_t add(const State& state, uint32_t from, bool& is_new) {
    const auto [it, inserted] = seen.try_emplace(hash_of(key_of(state)), static_cast<uint32_t>(parent.size()));
    is_new = inserted;
    if (inserted) {
      parent.push_back(from);
      end_flags.push_back(static_cast<uint8_t>(is_over(state) ? (is_clean(state) ? 3 : 1) : 0));
    }
    return it->second;
  }

  void print_trace(uint32_t id, const std::string& last) const {
    std::vector<uint32_t> path;
    for (uint32_t x = id; x; x = parent[x]) path.push_back(x);
    std::reverse(path.begin(), path.end());
    State state;
    for (const uint32_t wanted : path) {
      State next_state;
      std::string found;
      successors(state, [&](const std::string& label, State&& next) {
        if (!found.empty() || !violation.empty()) return;
        const auto it = seen.find(hash_of(key_of(next)));
        if (it == seen.end() || it->second != wanted) return;
        next_state = std::move(next);
        found = label;
      });
      std::printf("    %s\n", found.c_str());
      state = next_state;
    }
    if (!last.empty()) std::printf("    %s\n", last.c_str());
  }
};

// States from which no end can be reached; the first of them, or SIZE_MAX.
size_t first_stuck(const Graph& graph, uint8_t flag, bool may_repair) {
  const size_t n = graph.parent.size();
  std::vector<size_t> offset(n + 1, 0);
  for (const auto& edge : graph.edges) ++offset[edge.first + 1];
  for (size_t i = 0; i < n; ++i) offset[i + 1] += offset[i];
  std::vector<uint8_t> is_good(n, 0);
  std::vector<uint32_t> pending;
  for (size_t i = 0; i < n; ++i) {
    if (!(graph.end_flags[i] & flag)) continue;
    is_good[i] = 1;
    pending.push_back(static_cast<uint32_t>(i));
  }
  while (!pending.empty()) {
    const uint32_t to = pending.back();
    pending.pop_back();
    for (size_t e = offset[to]; e < offset[to + 1]; ++e) {
      const uint32_t from = graph.edges[e].second >> 1;
      const bool is_repair = graph.edges[e].second & 1;
      if ((is_repair && !may_repair) || is_good[from]) continue;
      is_good[from] = 1;
      pending.push_back(from);
    }
  }
  const auto it = std::find(is_good.begin(), is_good.end(), 0);
  return it == is_good.end() ? SIZE_MAX : static_cast<size_t>(it - is_good.begin());
}

std::string check_liveness(Graph& graph, bool is_quiet) {
  std::sort(graph.edges.begin(), graph.edges.end());
  const std::pair<const char*, bool> checks[] = {
      {"L1: the stream can no longer complete without repair of what failed", false},
      {"L2: something is never freed", true}};
  for (const auto& [text, may_repair] : checks) {
    const size_t stuck = first_stuck(graph, may_repair ? 2 : 1, may_repair);
    if (stuck == SIZE_MAX) continue;
    if (!is_quiet) {
      std::printf("VIOLATED %s; the shortest way there:\n", text);
      graph.print_trace(static_cast<uint32_t>(stuck), "");
    }
    return text;
  }
  return "";
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(88172645463325252ull ^ (seed * 7919)) {}
  unsigned below(unsigned limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<unsigned>(state_ >> 11) % limit;
  }

 private:
  uint64_t state_;
};

struct Move {
  std::string label;
  State next;
};

// What may happen next in a random schedule; in calm weather no faults, and repairs come.
std::vector<Move> moves(const State& state, bool is_calm, Random& random, std::string& broken_by) {
  std::vector<Move> found;
  std::string broken;
  successors(state, [&](const std::string& label, State&& next) {
    const bool is_fault = label[0] == '!';
    if (is_calm && is_fault) return;
    if (!violation.empty()) {
      if (broken.empty() && (!is_fault || random.below(4) == 0)) {
        broken = violation;
        broken_by = label;
      }
      return;
    }
    bool is_taken = true;
    if (is_fault || (label[0] == '+' && !is_calm)) is_taken = random.below(6) == 0;
    else if (label.find("reopens") != std::string::npos) is_taken = random.below(3) == 0;
    if (is_taken) found.push_back({label, std::move(next)});
  });
  violation = broken;
  return found;
}

std::string walk_once(Random& random, std::vector<std::string>& trace, size_t& num_steps) {
  State state;
  const int storm = 20 + static_cast<int>(random.below(80));
  for (int step = 0; step < 3000; ++step) {
    std::string broken_by;
    const bool is_calm = step > storm;
    std::vector<Move> next = moves(state, is_calm, random, broken_by);
    if (!violation.empty()) {
      trace.push_back(broken_by);
      return violation;
    }
    if ((next.empty() || is_calm) && is_over(state) && is_clean(state)) return "";
    if (next.empty()) continue;
    Move& chosen = next[random.below(static_cast<unsigned>(next.size()))];
    trace.push_back(chosen.label);
    state = std::move(chosen.next);
    ++num_steps;
  }
  const bool is_any_alive = std::any_of(std::begin(state.nodes), std::end(state.nodes),
                                        [](const Node& node) { return node.life != kDead; });
  return is_any_alive ? "no end" : "";
}

}  // namespace

Outcome explore(size_t max_states, bool is_quiet) {
  Graph graph;
  std::vector<std::pair<uint32_t, State>> frontier, next_frontier;
  bool is_new = false;
  graph.add(State(), 0, is_new);
  frontier.push_back({0, State()});
  int depth = 0;
  for (; !frontier.empty() && graph.parent.size() <= max_states; ++depth) {
    for (auto& [id, state] : frontier) {
      std::string broken, broken_by;
      successors(state, [&, from = id](const std::string& label, State&& next) {
        ++graph.num_transitions;
        if (!violation.empty()) {
          if (broken.empty()) broken = violation, broken_by = label;
          return;
        }
        bool is_first = false;
        const uint32_t to = graph.add(next, from, is_first);
        if (is_first) next_frontier.push_back({to, std::move(next)});
        if (label[0] != '!') graph.edges.push_back({to, (from << 1) | (label[0] == '+')});
      });
      if (!broken.empty()) {
        if (!is_quiet) {
          std::printf("VIOLATED %s; after %zu states, the shortest way there:\n", broken.c_str(), graph.parent.size());
          graph.print_trace(id, broken_by);
        }
        return {broken, graph.parent.size()};
      }
    }
    frontier.swap(next_frontier);
    next_frontier.clear();
  }
  const bool is_whole = frontier.empty();
  if (!is_quiet) {
    std::printf("%zu states, %zu transitions, depth %d%s\n", graph.parent.size(), graph.num_transitions, depth,
                is_whole ? "" : " (stopped at the limit: safety only)");
  }
  return {is_whole ? check_liveness(graph, is_quiet) : "", graph.parent.size()};
}

Outcome walk(long num_schedules, uint64_t seed, bool is_quiet) {
  Random random(seed);
  size_t num_steps = 0;
  for (long i = 0; i < num_schedules; ++i) {
    std::vector<std::string> trace;
    const std::string broken = walk_once(random, trace, num_steps);
    if (broken.empty()) continue;
    if (!is_quiet) {
      std::printf("VIOLATED %s, in schedule %ld of seed %llu:\n", broken.c_str(), i,
                  static_cast<unsigned long long>(seed));
      for (const std::string& label : trace) std::printf("    %s\n", label.c_str());
    }
    return {broken, num_steps};
  }
  if (!is_quiet) std::printf("%ld random schedules, %zu steps\n", num_schedules, num_steps);
  return {"", num_steps};
}

}  // namespace protocol_model
