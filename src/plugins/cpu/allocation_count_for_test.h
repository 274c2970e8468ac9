#pragma once
// How often this test program has allocated by operator new (allocation_count_test.cc replaces it). Any thread.

#include <cstdint>

namespace tandem::cpu {

uint64_t num_allocations();

}  // namespace tandem::cpu
