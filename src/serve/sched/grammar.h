#pragma once
// Grammar: what a client wants its answers to fit, as data. Compiled where tokens are sampled (serve/text has the
// compiler); it travels as its source, for a compiled state cannot be serialised.

#include <cstdint>
#include <string>

namespace tandem::sched {

enum class GrammarKind : uint8_t {
  kJsonSchema,
  kRegex,
  kLark,
  kChoice,  // a JSON array of strings
};

struct Grammar {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string source;

  bool operator==(const Grammar&) const = default;
};

}  // namespace tandem::sched
