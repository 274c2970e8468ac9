#pragma once
// The part of sampling that changes logits: bias, penalties, bans, the mask of a grammar.

#include <span>

#include "base/result.h"
#include "compute/sampling/sampler.h"

namespace tandem::sampling {

// True when every logit stays as it is.
bool leaves_logits(const SamplingParams& params, const TokenHistory& history);

// Writes the changed logits to scratch.values. Repetition goes by the distinct tokens of prompt and output,
// frequency and presence by the output. Tokens of the history outside the vocabulary (a padded prompt) are skipped;
// a bias or ban on one is kInvalidArgument. What is banned or not allowed becomes -infinity, whatever its bias.
Status apply_penalties(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                       Scratch& scratch);

}  // namespace tandem::sampling
