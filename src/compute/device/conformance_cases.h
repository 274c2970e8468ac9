#pragma once
// The conformance list. Private to conformance*.cc.

#include <vector>

#include "compute/device/conformance_case.h"

namespace tandem::device {

// Pseudo-random contents, the same every time.
std::vector<ConformanceCase> conformance_cases();

}  // namespace tandem::device
