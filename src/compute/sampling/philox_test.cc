#include "compute/sampling/philox.h"

#include <doctest/doctest.h>

namespace tandem::sampling {
namespace {

using Block = std::array<uint32_t, 4>;

TEST_CASE("philox4x32-10 gives the published answers") {
  // Random123, tests/kat_vectors, the three lines "philox4x32 10".
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("the uniform number is the upper 24 bits of word 0 under (position, choice) and the seed's two words") {
  CHECK(uniform_at(0, 0, 0) == static_cast<float>(0x6627e8) / 16777216.0f);
  const uint32_t word = philox4x32_10({7, 3, 0, 0}, {0x89abcdef, 0x01234567})[0];
  CHECK(uniform_at(0x0123456789abcdef, 7, 3) == static_cast<float>(word >> 8) / 16777216.0f);
  CHECK(uniform_at(1, 2, 3) != uniform_at(1, 3, 2));
}

}  // namespace
}  // namespace tandem::sampling
