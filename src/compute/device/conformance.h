#pragma once
// Conformance: whether a device computes what another one does. A list of small cases, of every op, format, weight type
// and KV type, runs on both; then the first is offered bindings out of range, which it must refuse with a reason.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "compute/device/device.h"

namespace tandem::device {

struct ConformanceFailure {
  std::string case_name;
  std::string text;  // what differs where, or the device's error
};

struct ConformanceReport {
  uint32_t num_cases = 0;
  std::vector<ConformanceFailure> failures;
};

// Results must be equal bit for bit when both devices say batch_invariant, else within `tolerance` times one more than
// the oracle's magnitude. Fails only when the oracle itself cannot run a case.
Result<ConformanceReport> check_conformance(Device& device, Device& oracle, float tolerance = 2e-3f);

}  // namespace tandem::device
