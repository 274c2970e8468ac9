#pragma once
// How much memory this process may still take, cgroup limits (v1 and v2) counted.

#include <cstdint>
#include <string>

namespace tandem::runner {

// Bytes; 0 when nothing can be read. `root` stands before /proc and /sys, for tests.
uint64_t available_memory_bytes(const std::string& root = {});

}  // namespace tandem::runner
