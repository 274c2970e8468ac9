// protocol_model [--slice | --walks N [--seed S]] [--faults N] [--tokens N] [--parts N] [--adopt] [--set-mirror]
//                [--credits] [--without RULE] [--max-states N]
// Explores every interleaving (or N random schedules) and exits with 1 when an invariant is broken. --slice is what
// ctest runs: small sizes, and each rule left out once to see its invariant break.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "model.h"

namespace protocol_model {
namespace {

struct Rule {
  const char* name;
  bool LeftOut::* flag;
  const char* breaks;  // how the violation begins; null: needs more faults or schedules than the slice has
  bool is_quick = false;  // random schedules find it
  bool needs_credits = false;
  bool LeftOut::* with = nullptr;
};

constexpr Rule kRules[] = {
    {"fenced_writes", &LeftOut::fenced_writes, "I3", true},
    {"acks", &LeftOut::acks, "L1"},
    {"repeated_first", &LeftOut::repeated_first, "no end", true},
    {"new_attempt", &LeftOut::new_attempt, "I1", true},
    {"gate", &LeftOut::gate, "I2", true},
    {"bad_pairs", &LeftOut::bad_pairs, "attempts"},
    {"token_fence", &LeftOut::token_fence, "I1", true},
    {"lease", &LeftOut::lease, "no end", true},
    {"connection_ids", &LeftOut::connection_ids, "L1"},
    {"ordered_stream", &LeftOut::ordered_stream, "no end", true},
    {"credits_first_only", &LeftOut::credits_first_only, "attempts", true, true},
    {"mirror_fence", &LeftOut::mirror_fence, nullptr},
    {"content_match", &LeftOut::content_match, nullptr},
    {"quarantine", &LeftOut::quarantine, nullptr, false, false, &LeftOut::fenced_writes},
};

bool leave_out(const char* name) {
  for (const Rule& rule : kRules) {
    if (std::strcmp(rule.name, name) != 0) continue;
    options.without.*rule.flag = true;
    if (rule.with) options.without.*rule.with = true;
    return true;
  }
  return false;
}

// Every interleaving of a small size holds; and without any one rule something breaks.
int run_slice(size_t max_states) {
  options.num_tokens = 2;
  options.num_parts = 1;
  options.holder_adopts = true;
  int num_faults = 0;
  const Outcome whole = explore(max_states, false);
  num_faults += !whole.violated.empty();
  for (const Rule& rule : kRules) {
    if (!rule.breaks) continue;
    options.without = {};
    options.without.*rule.flag = true;
    options.credits = rule.needs_credits;
    const Outcome outcome = rule.is_quick ? walk(20'000, 1, true) : explore(max_states, true);
    const bool is_caught = outcome.violated.rfind(rule.breaks, 0) == 0;
    std::printf("%s without %s: %s (%zu %s)\n", is_caught ? "ok  " : "FAIL", rule.name,
                outcome.violated.empty() ? "nothing breaks" : outcome.violated.c_str(), outcome.size,
                rule.is_quick ? "random steps" : "states");
    num_faults += !is_caught;
  }
  return num_faults ? 1 : 0;
}

int usage() {
  std::fprintf(stderr, "protocol_model [--slice | --walks N [--seed S]] [--faults N] [--tokens 1-%d] [--parts 1-4]\n"
               "  [--adopt] [--set-mirror] [--credits] [--max-states N] [--without RULE]; rules:", kMaxTokens);
  for (const Rule& rule : kRules) std::fprintf(stderr, " %s", rule.name);
  std::fprintf(stderr, "\n");
  return 2;
}

int run(int argc, char** argv) {
  bool is_slice = false;
  long num_walks = 0;
  uint64_t seed = 1;
  size_t max_states = 40'000'000;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--slice") is_slice = true;
    else if (flag == "--adopt") options.holder_adopts = true;
    else if (flag == "--set-mirror") options.set_mirror = true;
    else if (flag == "--credits") options.credits = true;
    else if (i + 1 == argc) return usage();
    else if (flag == "--faults") options.max_faults = std::atoi(argv[++i]);
    else if (flag == "--tokens") options.num_tokens = std::atoi(argv[++i]);
    else if (flag == "--parts") options.num_parts = std::atoi(argv[++i]);
    else if (flag == "--walks") num_walks = std::atol(argv[++i]);
    else if (flag == "--seed") seed = std::strtoull(argv[++i], nullptr, 10);
    else if (flag == "--max-states") max_states = std::strtoull(argv[++i], nullptr, 10);
    else if (flag != "--without" || !leave_out(argv[++i])) return usage();
  }
  const bool is_sized = options.num_tokens >= 1 && options.num_tokens <= kMaxTokens && options.num_parts >= 1 &&
                        options.num_parts <= 4;
  if (!is_sized) return usage();
  if (is_slice) return run_slice(max_states);
  const Outcome outcome = num_walks > 0 ? walk(num_walks, seed, false) : explore(max_states, false);
  if (outcome.violated.empty()) std::printf("all invariants hold\n");
  return outcome.violated.empty() ? 0 : 1;
}

}  // namespace
}  // namespace protocol_model

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  return protocol_model::run(argc, argv);
}
