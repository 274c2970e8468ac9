#include "compute/kernels/kv_write.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "compute/kernels/denormals_off.h"
#include "compute/kernels/linear_samples.h"
#include "compute/tensor/float16.h"

namespace tandem::kernels {
namespace {

using tensor::bf16_from_f32;
using tensor::f16_from_f32;
using tensor::f32_from_bf16;
using tensor::f32_from_f16;

std::vector<float> random_floats(uint64_t seed, uint32_t n, float limit) {
  SampleRandom random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = (2.0f * random.unit() - 1.0f) * limit;
  return x;
}

// What numerics 6 stores for x, computed block by block without the tile's layout.
std::vector<float> stored_int8(const std::vector<float>& x) {
  std::vector<float> stored(x.size());
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (size_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = f32_from_f16(f16_from_f32(largest / 127.0f));
    for (size_t i = begin; i < begin + 32; ++i) {
      const float q = scale == 0 ? 0 : std::nearbyint(x[i] * (1.0f / scale));
      stored[i] = std::clamp(q, -127.0f, 127.0f) * scale;
    }
  }
  return stored;
}

std::vector<float> stored_bf16(std::vector<float> x) {
  for (float& value : x) value = f32_from_bf16(bf16_from_f32(value));
  return x;
}

}  // namespace

TEST_CASE("which head sizes a KV type has, and how big its tiles are") {
  CHECK(tk_kv_is_supported(TK_KV_BF16, 64));
  CHECK(tk_kv_is_supported(TK_KV_BF16, 80));
  CHECK_FALSE(tk_kv_is_supported(TK_KV_BF16, 63));
  CHECK_FALSE(tk_kv_is_supported(TK_KV_INT8, 80));
  CHECK(tk_kv_is_supported(TK_KV_INT8, 96));
  CHECK_FALSE(tk_kv_is_supported(TK_KV_F32, 0));
  CHECK_FALSE(tk_kv_is_supported(TK_KV_F32, 2048));
  CHECK_FALSE(tk_kv_is_supported(3, 64));
  CHECK(tk_kv_tile_bytes(TK_KV_BF16, 64) == 16 * 2 * 64 * 2);
  CHECK(tk_kv_tile_bytes(TK_KV_F32, 64) == 16 * 2 * 64 * 4);
  CHECK(tk_kv_tile_bytes(TK_KV_INT8, 64) == 16 * 2 * (64 + 2 * 2));
}

TEST_CASE("rows come back as the contract rounds them, and slots do not touch each other") {
  const DenormalsOff denormals_off;
  for (tk_kv_kind kind : {TK_KV_BF16, TK_KV_F32, TK_KV_INT8}) {
    for (uint32_t dim : {32u, 64u, 80u, 128u}) {
      if (!tk_kv_is_supported(kind, dim)) continue;
      const uint32_t bytes = tk_kv_tile_bytes(kind, dim);
      std::vector<uint8_t> tile(bytes + 64, 0xFF);
      for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t slot = (i * 5 + 3) % 16;
        const std::vector<float> k = random_floats(slot, dim, 4);
        const std::vector<float> v = random_floats(slot + 16, dim, 9);
        CHECK(kv_write(kind, dim, k.data(), v.data(), tile.data(), slot));
      }
      CHECK(std::all_of(tile.begin() + bytes, tile.end(), [](uint8_t byte) { return byte == 0xFF; }));
      for (uint32_t slot = 0; slot < 16; ++slot) {
        std::vector<float> k(dim), v(dim);
        kv_read(kind, dim, tile.data(), slot, k.data(), v.data());
        const std::vector<float> k_in = random_floats(slot, dim, 4);
        const std::vector<float> v_in = random_floats(slot + 16, dim, 9);
        INFO("kind ", int(kind), " dim ", dim, " slot ", slot);
        CHECK(k == (kind == TK_KV_F32 ? k_in : kind == TK_KV_BF16 ? stored_bf16(k_in) : stored_int8(k_in)));
        CHECK(v == (kind == TK_KV_F32 ? v_in : kind == TK_KV_BF16 ? stored_bf16(v_in) : stored_int8(v_in)));
      }
    }
  }
}

TEST_CASE("a slot's packed bytes are all of it and nothing of its neighbours") {
  for (const auto& [kind, dim] : {std::pair{TK_KV_BF16, 80u}, {TK_KV_F32, 64u}, {TK_KV_INT8, 96u}}) {
    CAPTURE(kind);
    const uint32_t tile_bytes = tk_kv_tile_bytes(kind, dim), slot_bytes = tile_bytes / 16;
    std::vector<uint8_t> tile(tile_bytes), copy(tile_bytes, 0xAA), before, packed(slot_bytes);
    for (uint32_t slot = 0; slot < 16; ++slot) {
      REQUIRE(kv_write(kind, dim, random_floats(slot, dim, 3).data(), random_floats(100 + slot, dim, 3).data(),
                       tile.data(), slot));
    }
    for (const uint32_t slot : {5u, 0u, 15u, 4u, 1u, 2u, 3u, 6u, 7u, 8u, 9u, 10u, 11u, 12u, 13u, 14u}) {
      before = copy;
      kv_slot_out(kind, dim, tile.data(), slot, packed.data());
      kv_slot_in(kind, dim, copy.data(), slot, packed.data());
      const auto num_changed = static_cast<uint32_t>(std::inner_product(
          copy.begin(), copy.end(), before.begin(), 0, std::plus<>(), [](uint8_t a, uint8_t b) { return a != b; }));
      CHECK(num_changed <= slot_bytes);
    }
    CHECK(copy == tile);  // 16 slots, each with its sixteenth of the bytes, are the whole tile
  }
}

TEST_CASE("the panels stand where kernels expect them") {
  std::vector<uint8_t> tile(tk_kv_tile_bytes(TK_KV_BF16, 64));
  std::vector<float> k(64, 0.0f), v(64, 0.0f);
  k[10] = 1.0f;
  v[11] = 2.0f;
  REQUIRE(kv_write(TK_KV_BF16, 64, k.data(), v.data(), tile.data(), 7));
  uint16_t word;
  std::memcpy(&word, tile.data() + 10 / 2 * 64 + 7 * 4, 2);
  CHECK(word == 0x3F80);
  std::memcpy(&word, tile.data() + 2048 + 3 * 256 + 11 * 4 + 2, 2);
  CHECK(word == 0x4000);

  std::vector<uint8_t> narrow(tk_kv_tile_bytes(TK_KV_INT8, 64));
  k[40] = 127.0f;
  REQUIRE(kv_write(TK_KV_INT8, 64, k.data(), v.data(), narrow.data(), 7));
  CHECK(narrow[40 / 4 * 64 + 7 * 4] == 127);
  std::memcpy(&word, narrow.data() + 64 * 32 + 1 * 32 + 7 * 2, 2);
  CHECK(word == 0x3C00);
}

TEST_CASE("values at the edge of int8 blocks") {
  const DenormalsOff denormals_off;
  std::vector<uint8_t> tile(tk_kv_tile_bytes(TK_KV_INT8, 32));
  std::vector<float> x(32), k(32), v(32);
  for (float limit : {0.0f, 1e-38f, 1e-30f, 3e-6f, 5e-4f, 1.0f, 8e6f}) {
    x = random_floats(5, 32, 1.0f);
    for (float& value : x) value *= limit;
    x[3] = -limit;
    CHECK(kv_write(TK_KV_INT8, 32, x.data(), x.data(), tile.data(), 0));
    kv_read(TK_KV_INT8, 32, tile.data(), 0, k.data(), v.data());
    CHECK(k == stored_int8(x));
    CHECK(v == k);
  }
  x[3] = 1e7f;  // its scale is no f16
  CHECK_FALSE(kv_write(TK_KV_INT8, 32, x.data(), v.data(), tile.data(), 0));
}

TEST_CASE("what is not finite once stored is refused") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (tk_kv_kind kind : {TK_KV_BF16, TK_KV_F32, TK_KV_INT8}) {
    std::vector<uint8_t> tile(tk_kv_tile_bytes(kind, 64));
    const std::vector<float> good(64, 1.0f);
    for (float value : {nan, infinity, -infinity}) {
      std::vector<float> bad = good;
      bad[63] = value;
      CHECK_FALSE(kv_write(kind, 64, bad.data(), good.data(), tile.data(), 1));
      CHECK_FALSE(kv_write(kind, 64, good.data(), bad.data(), tile.data(), 1));
    }
    CHECK(kv_write(kind, 64, good.data(), good.data(), tile.data(), 1));
  }
  std::vector<float> large(64, 3.4e38f);  // rounds to infinity in bf16
  std::vector<uint8_t> tile(tk_kv_tile_bytes(TK_KV_F32, 64));
  CHECK(kv_write(TK_KV_F32, 64, large.data(), large.data(), tile.data(), 0));
  CHECK_FALSE(kv_write(TK_KV_BF16, 64, large.data(), large.data(), tile.data(), 0));
}

TEST_CASE("queries: scaled, then rounded or quantised per 32 dims with sums") {
  const DenormalsOff denormals_off;
  const float scale = query_scale(0.125f);
  CHECK(scale == 0.125f * 1.44269504f);
  const std::vector<float> q = random_floats(8, 64, 5.0f);
  std::vector<uint16_t> rounded(64);
  REQUIRE(prepare_query(TK_KV_BF16, 64, scale, q.data(), rounded.data()));
  for (int d = 0; d < 64; ++d) CHECK(rounded[d] == bf16_from_f32(q[d] * scale));
  std::vector<uint8_t> prepared(tk_query_bytes(TK_KV_INT8, 64));
  REQUIRE(prepare_query(TK_KV_INT8, 64, scale, q.data(), prepared.data()));
  for (int block = 0; block < 2; ++block) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(q[block * 32 + i] * scale));
    int sum = 0;
    for (int i = 0; i < 32; ++i) {
      const auto stored = static_cast<int8_t>(prepared[block * 32 + i]);
      CHECK(stored == static_cast<int>(std::nearbyint(q[block * 32 + i] * scale * (127.0f / largest))));
      sum += stored;
    }
    float stored_scale;
    int32_t stored_sum;
    std::memcpy(&stored_scale, prepared.data() + 64 + 4 * block, 4);
    std::memcpy(&stored_sum, prepared.data() + 64 + 8 + 4 * block, 4);
    CHECK(stored_scale == largest / 127.0f);
    CHECK(stored_sum == sum);
  }
}

}  // namespace tandem::kernels
