#pragma once
// StopRule: decides from the tokens alone whether a sequence's text has reached a stop string.
//
// Abstract here, implemented in serve/text, so that the scheduler needs no tokenizer. One per choice; engine thread.

#include "base/sampling_params.h"

namespace tandem::sched {

class StopRule {
 public:
  virtual ~StopRule() = default;
  // Called once for each generated token, in order. True: a stop string is complete after this token. While
  // `may_stop` is false (min_tokens not reached) the token is seen but nothing that ends in it stops.
  virtual bool push(TokenId token, bool may_stop) = 0;
};

}  // namespace tandem::sched
