#include "compute/kernels/kv_write.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "compute/kernels/exp2_isa.h"
#include "compute/tensor/float16.h"

namespace tandem::kernels {
namespace {

using tensor::bf16_from_f32;
using tensor::f16_from_f32;
using tensor::f32_from_bf16;
using tensor::f32_from_f16;

// Byte offsets of one element in a tile, by layout.
struct Slot {
  uint32_t dim;  // of the head
  uint32_t slot;

  uint32_t k_pair(uint32_t d) const { return d / 2 * 32 + slot * 2 + d % 2; }            // [dim / 2][16][2]
  uint32_t k_quad(uint32_t d) const { return d / 4 * 64 + slot * 4 + d % 4; }            // [dim / 4][16][4]
  uint32_t k_single(uint32_t d) const { return d * 16 + slot; }                          // [dim][16]
  uint32_t v_pair(uint32_t d) const { return slot / 2 * dim * 2 + d * 2 + slot % 2; }    // [8][dim][2]
  uint32_t v_single(uint32_t d) const { return slot * dim + d; }                         // [16][dim]
};

template <typename T>
T load(const void* base, uint32_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(base) + size_t{index} * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(void* base, uint32_t index, T value) {
  std::memcpy(static_cast<uint8_t*>(base) + size_t{index} * sizeof(T), &value, sizeof(T));
}

constexpr int32_t kRoundsToInfinity = 0x7F7F8000;  // as bf16: what is as large or larger, as bits of a magnitude

bool is_finite(float x) { return std::fabs(x) < __builtin_inff(); }

float max_magnitude(const float* x, uint32_t n) {
  float largest = 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
}

bool are_finite(const float* x, uint32_t n) {
  bool is_good = true;
  for (uint32_t i = 0; i < n; ++i) is_good &= is_finite(x[i]);
  return is_good;
}

// clamp before rint is the same as after it: the bounds are integers. NaN (0 * inf) becomes -127 as in vector code.
int8_t quantise(float x, float inverse) {
  float scaled = x * inverse;
  scaled = scaled > -127.0f ? scaled : -127.0f;
  scaled = scaled < 127.0f ? scaled : 127.0f;
  return static_cast<int8_t>(static_cast<int32_t>(tk_rint(scaled)));
}

// x * factor as bf16_from_f32 rounds it; false when one is not finite then. In a form that g++ makes vectors of.
bool round_to_bf16(const float* x, float factor, uint32_t n, uint16_t* out) {
  int32_t is_bad = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const float value = x[i] * factor;
    out[i] = bf16_from_f32(value);
    is_bad |= static_cast<int32_t>((std::bit_cast<int32_t>(value) & 0x7FFFFFFF) >= kRoundsToInfinity);
  }
  return is_bad == 0;
}

bool write_bf16(Slot at, const float* k, const float* v, uint8_t* tile) {
  uint8_t* values = tile + tk_kv_v_offset(TK_KV_BF16, at.dim);
  uint16_t keys[TK_MAX_HEAD_DIM], own_values[TK_MAX_HEAD_DIM];
  const bool is_good = round_to_bf16(k, 1.0f, at.dim, keys) & round_to_bf16(v, 1.0f, at.dim, own_values);
  for (uint32_t d = 0; d < at.dim; d += 2) store(tile, at.k_pair(d) / 2, load<uint32_t>(keys, d / 2));
  for (uint32_t d = 0; d < at.dim; ++d) store(values, at.v_pair(d), own_values[d]);
  return is_good;
}

bool write_f32(Slot at, const float* k, const float* v, uint8_t* tile) {
  uint8_t* values = tile + tk_kv_v_offset(TK_KV_F32, at.dim);
  for (uint32_t d = 0; d < at.dim; ++d) {
    store<float>(tile, at.k_single(d), k[d]);
    store<float>(values, at.v_single(d), v[d]);
  }
  return are_finite(k, at.dim) && are_finite(v, at.dim);
}

bool write_int8(Slot at, const float* k, const float* v, uint8_t* tile) {
  const uint32_t dim = at.dim;
  uint8_t* values = tile + tk_kv_v_offset(TK_KV_INT8, dim);
  bool is_good = are_finite(k, dim) && are_finite(v, dim);
  for (uint32_t block = 0; block < dim / TK_SCALE_BLOCK; ++block) {
    const uint32_t begin = block * TK_SCALE_BLOCK;
    const uint16_t k_scale = f16_from_f32(max_magnitude(k + begin, TK_SCALE_BLOCK) / 127.0f);
    const uint16_t v_scale = f16_from_f32(max_magnitude(v + begin, TK_SCALE_BLOCK) / 127.0f);
    store<uint16_t>(tile + tk_kv_k_scales_offset(dim), block * 16 + at.slot, k_scale);
    store<uint16_t>(tile + tk_kv_v_scales_offset(dim), block * 16 + at.slot, v_scale);
    const float k_stored = f32_from_f16(k_scale);
    const float v_stored = f32_from_f16(v_scale);
    is_good &= is_finite(k_stored) && is_finite(v_stored);
    const float k_inverse = k_stored == 0.0f ? 0.0f : 1.0f / k_stored;
    const float v_inverse = v_stored == 0.0f ? 0.0f : 1.0f / v_stored;
    for (uint32_t d = begin; d < begin + TK_SCALE_BLOCK; ++d) {
      store<int8_t>(tile, at.k_quad(d), quantise(k[d], k_inverse));
      store<int8_t>(values, at.v_pair(d), quantise(v[d], v_inverse));
    }
  }
  return is_good;
}

void prepare_int8(const float* scaled, uint32_t dim, uint8_t* out) {
  const uint32_t num_blocks = dim / TK_SCALE_BLOCK;
  for (uint32_t block = 0; block < num_blocks; ++block) {
    const float* x = scaled + block * TK_SCALE_BLOCK;
    const float largest = max_magnitude(x, TK_SCALE_BLOCK);
    const float inverse = largest == 0.0f ? 0.0f : 127.0f / largest;
    int32_t sum = 0;
    for (uint32_t i = 0; i < TK_SCALE_BLOCK; ++i) {
      const int8_t q = quantise(x[i], inverse);
      sum += q;
      store<int8_t>(out, block * TK_SCALE_BLOCK + i, q);
    }
    store<float>(out + dim, block, largest / 127.0f);
    store<int32_t>(out + dim, num_blocks + block, sum);
  }
}

}  // namespace

bool kv_write(tk_kv_kind kind, uint32_t head_dim, const float* k, const float* v, void* tile, uint32_t slot) {
  TANDEM_CHECK(tk_kv_is_supported(kind, head_dim) && slot < TK_TILE_TOKENS);
  const Slot at = {head_dim, slot};
  auto* bytes = static_cast<uint8_t*>(tile);
  switch (kind) {
    case TK_KV_BF16: return write_bf16(at, k, v, bytes);
    case TK_KV_F32: return write_f32(at, k, v, bytes);
    case TK_KV_INT8: return write_int8(at, k, v, bytes);
  }
  return false;
}

void kv_read(tk_kv_kind kind, uint32_t head_dim, const void* tile, uint32_t slot, float* k, float* v) {
  TANDEM_CHECK(tk_kv_is_supported(kind, head_dim) && slot < TK_TILE_TOKENS);
  const Slot at = {head_dim, slot};
  const auto* keys = static_cast<const uint8_t*>(tile);
  const uint8_t* values = keys + tk_kv_v_offset(kind, head_dim);
  for (uint32_t d = 0; d < head_dim; ++d) {
    const uint32_t scale = d / TK_SCALE_BLOCK * 16 + slot;
    switch (kind) {
      case TK_KV_BF16:
        k[d] = f32_from_bf16(load<uint16_t>(keys, at.k_pair(d)));
        v[d] = f32_from_bf16(load<uint16_t>(values, at.v_pair(d)));
        break;
      case TK_KV_F32:
        k[d] = load<float>(keys, at.k_single(d));
        v[d] = load<float>(values, at.v_single(d));
        break;
      case TK_KV_INT8:
        k[d] = load<int8_t>(keys, at.k_quad(d)) *
               f32_from_f16(load<uint16_t>(keys + tk_kv_k_scales_offset(head_dim), scale));
        v[d] = load<int8_t>(values, at.v_pair(d)) *
               f32_from_f16(load<uint16_t>(keys + tk_kv_v_scales_offset(head_dim), scale));
        break;
    }
  }
}

namespace {

// Calls copy(offset in the tile, offset in the packed slot) for each element of the slot's keys, values and scales.
template <typename T, typename Offset, typename Copy>
void visit(uint32_t count, uint32_t tile_offset, uint32_t& packed, const Offset& offset_of, const Copy& copy) {
  for (uint32_t i = 0; i < count; ++i, packed += sizeof(T)) {
    copy.template operator()<T>(tile_offset + offset_of(i) * sizeof(T), packed);
  }
}

template <typename Copy>
void visit_slot(tk_kv_kind kind, Slot at, const Copy& copy) {
  const uint32_t dim = at.dim, values = tk_kv_v_offset(kind, dim);
  uint32_t packed = 0;
  switch (kind) {
    case TK_KV_BF16:
      visit<uint16_t>(dim, 0, packed, [&](uint32_t d) { return at.k_pair(d); }, copy);
      visit<uint16_t>(dim, values, packed, [&](uint32_t d) { return at.v_pair(d); }, copy);
      return;
    case TK_KV_F32:
      visit<uint32_t>(dim, 0, packed, [&](uint32_t d) { return at.k_single(d); }, copy);
      visit<uint32_t>(dim, values, packed, [&](uint32_t d) { return at.v_single(d); }, copy);
      return;
    case TK_KV_INT8: {
      const auto scale = [&](uint32_t block) { return block * 16 + at.slot; };
      visit<uint8_t>(dim, 0, packed, [&](uint32_t d) { return at.k_quad(d); }, copy);
      visit<uint8_t>(dim, values, packed, [&](uint32_t d) { return at.v_pair(d); }, copy);
      visit<uint16_t>(dim / TK_SCALE_BLOCK, tk_kv_k_scales_offset(dim), packed, scale, copy);
      visit<uint16_t>(dim / TK_SCALE_BLOCK, tk_kv_v_scales_offset(dim), packed, scale, copy);
    }
  }
}

}  // namespace

void kv_slot_out(tk_kv_kind kind, uint32_t head_dim, const void* tile, uint32_t slot, void* to) {
  TANDEM_CHECK(tk_kv_is_supported(kind, head_dim) && slot < TK_TILE_TOKENS);
  visit_slot(kind, {head_dim, slot}, [&]<typename T>(size_t at, size_t packed) {
    std::memcpy(static_cast<uint8_t*>(to) + packed, static_cast<const uint8_t*>(tile) + at, sizeof(T));
  });
}

void kv_slot_in(tk_kv_kind kind, uint32_t head_dim, void* tile, uint32_t slot, const void* from) {
  TANDEM_CHECK(tk_kv_is_supported(kind, head_dim) && slot < TK_TILE_TOKENS);
  visit_slot(kind, {head_dim, slot}, [&]<typename T>(size_t at, size_t packed) {
    std::memcpy(static_cast<uint8_t*>(tile) + at, static_cast<const uint8_t*>(from) + packed, sizeof(T));
  });
}

float query_scale(float softmax_scale) { return softmax_scale * TK_LOG2E; }

bool prepare_query(tk_kv_kind kind, uint32_t head_dim, float query_scale, const float* q, void* out) {
  TANDEM_CHECK(tk_kv_is_supported(kind, head_dim));
  if (kind == TK_KV_BF16) return round_to_bf16(q, query_scale, head_dim, static_cast<uint16_t*>(out));
  float scaled[TK_MAX_HEAD_DIM];
  for (uint32_t d = 0; d < head_dim; ++d) scaled[d] = q[d] * query_scale;
  if (kind == TK_KV_F32) std::memcpy(out, scaled, head_dim * sizeof(float));
  else prepare_int8(scaled, head_dim, static_cast<uint8_t*>(out));
  return are_finite(scaled, head_dim);
}

}  // namespace tandem::kernels
