// Any kind, source and tokens of a grammar: it is refused or compiled, and then its masks and commits agree: what the
// mask allows can be taken in, what it does not cannot, and a mask after replayed tokens is the same one.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "serve/sched/token_mask.h"
#include "serve/text/constraint.h"
#include "serve/text/small_tokenizer_for_test.h"

using namespace tandem;
using namespace tandem::text;

namespace {

constexpr size_t kMaxSource = 2048;
constexpr size_t kMaxTokens = 48;

struct Bench {
  Tokenizer tokenizer = must(Tokenizer::from_parts(byte_level_parts()));
  ConstraintEngine engine = must(ConstraintEngine::create(tokenizer, 300, {kEnd}));
};

// Bounded where a mask is slow: what one costs is bounded by the library, and a corpus of slow ones finds little.
void follow(Constraint& constraint, const Constraint& fresh, std::string_view choices, size_t num_words) {
  std::vector<uint32_t> mask(num_words), again(num_words);
  std::vector<TokenId> said;
  for (const char choice : choices.substr(0, kMaxTokens)) {
    if (!constraint.mask(mask.data(), mask.size())) return;
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < 300; ++id) {
      if (sched::is_allowed(mask, id)) allowed.push_back(id);
    }
    if (allowed.empty()) return;
    const TokenId token = allowed[static_cast<unsigned char>(choice) % allowed.size()];
    // No control token but the end, and nothing beyond the vocabulary.
    TANDEM_CHECK(token <= kHell || token == kEnd || token == kToolCall);
    if (!constraint.commit({token})) return;
    said.push_back(token);
    if (constraint.is_stopped()) return;
  }
  auto replayed = fresh.clone();
  if (!replayed || !replayed->commit(said)) return;
  if (!constraint.mask(mask.data(), mask.size()) || !replayed->mask(again.data(), again.size())) return;
  TANDEM_CHECK(mask == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const Bench bench;
  if (size < 2) return 0;
  const auto kind = static_cast<sched::GrammarKind>(bytes[0] % 4);
  std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view source = rest.substr(0, std::min(end, kMaxSource));
  const std::string_view choices = rest.substr(std::min(end + 1, rest.size()));
  auto compiled = bench.engine.compile(kind, source);
  if (!compiled) {
    TANDEM_CHECK(compiled.error().code == ErrorCode::kInvalidArgument && !compiled.error().message.empty());
    return 0;
  }
  auto working = compiled->clone();
  TANDEM_CHECK(static_cast<bool>(working));
  follow(*working, *compiled, choices, bench.engine.mask_words());
  return 0;
}
