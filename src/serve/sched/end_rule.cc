#include "serve/sched/end_rule.h"

#include <algorithm>

namespace tandem::sched {

std::vector<TokenId> EndRule::banned_after(size_t num_output) const {
  std::vector<TokenId> tokens = banned;
  if (num_output < min_tokens) tokens.insert(tokens.end(), stop_ids.begin(), stop_ids.end());
  return tokens;
}

std::optional<Finish> EndRule::finish_of(TokenId token, size_t num_output, StopRule* stop_rule,
                                         const TokenMask* mask) const {
  const bool is_over = mask != nullptr && mask->is_over();
  const bool may_stop = num_output >= min_tokens || is_over;
  const bool is_stop_string = stop_rule != nullptr && stop_rule->push(token, may_stop);
  if (may_stop && std::ranges::binary_search(stop_ids, token)) return Finish{FinishReason::kStop, token, false};
  if (may_stop && is_stop_string) return Finish{FinishReason::kStop, std::nullopt, true};
  if (is_over) return Finish{FinishReason::kStop, std::nullopt, false};
  if (num_output >= max_tokens) return Finish{FinishReason::kLength, std::nullopt, false};
  return std::nullopt;
}

std::vector<TokenId> sorted_stop_ids(std::vector<TokenId> ids, const std::vector<TokenId>& eos_ids, bool ignore_eos) {
  if (!ignore_eos) ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

}  // namespace tandem::sched
