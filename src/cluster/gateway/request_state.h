#pragma once
// A client's request as the state that travels with it between nodes. Pure.

#include "cluster/handoff/messages.h"
#include "serve/engine/generator.h"

namespace tandem::gateway {

// kInvalidArgument: can never run here, and why. Its length is the admission gate's to check.
Status check_request(const sched::Request& request, const engine::GeneratorLimits& limits);

// `request` has passed the check and fits max_model_len. A choice generates no further than that.
handoff::RequestState state_of(sched::Request request, const std::string& model, uint32_t max_model_len);

}  // namespace tandem::gateway
