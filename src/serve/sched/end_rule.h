#pragma once
// EndRule: when a generated token ends its choice, and which tokens may not come next. One request's, for all its
// choices; whoever generates (the scheduler, a cluster node's engine) goes by it.

#include <cstdint>
#include <optional>
#include <vector>

#include "serve/sched/request.h"

namespace tandem::sched {

struct EndRule {
  std::vector<TokenId> stop_ids;  // sorted, each once
  std::vector<TokenId> banned;    // never sampled; the stop ids neither while fewer than min_tokens are out
  uint32_t min_tokens = 0;        // no stop before
  uint32_t max_tokens = 0;

  // What may not be sampled once `num_output` tokens are out.
  std::vector<TokenId> banned_after(size_t num_output) const;
  // What `token`, the num_output-th, ends its choice with. `stop_rule` may be null; it sees every token, also one that
  // stops by its id, so this is called once for each. `mask` may be null; it has taken the token in, and where it says
  // that nothing may follow, the choice ends, also before min_tokens.
  std::optional<Finish> finish_of(TokenId token, size_t num_output, StopRule* stop_rule, const TokenMask* mask) const;
};

// `ids` in any order, repeated or not. With a grammar the model's end tokens stop whatever ignore_eos says: they come
// only where the grammar lets the answer end.
std::vector<TokenId> sorted_stop_ids(std::vector<TokenId> ids, const std::vector<TokenId>& eos_ids, bool ignore_eos);

}  // namespace tandem::sched
