#pragma once
// How much memory this process may still take, cgroup limits (v1 and v2) counted.

#include <cstdint>

namespace tandem::runner {

// Bytes; 0 when nothing can be read.
uint64_t available_memory_bytes();

}  // namespace tandem::runner
