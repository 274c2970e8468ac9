#pragma once
// Philox4x32-10, a counter-based random generator: the number is a pure function of key and counter, so batch
// neighbours, restarts and hand-overs cannot change it.
// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011; docs/numerics.md 8.

#include <array>
#include <cstdint>

namespace tandem::sampling {

// One block: ten rounds over a counter of four words with a key of two.
inline std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// The number in [0, 1) that chooses the token at `position` (the index of the token being chosen) of choice
// `choice`: key = seed, low word first; counter = (position, choice, 0, 0); the upper 24 bits of word 0.
inline float uniform_at(uint64_t seed, uint32_t position, uint32_t choice) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const uint32_t word = philox4x32_10({position, choice, 0, 0}, key)[0];
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

}  // namespace tandem::sampling
