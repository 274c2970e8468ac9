#include "compute/tensor/quant_block.h"

#include <cstring>

#include "base/check.h"
#include "compute/tensor/float16.h"

namespace tandem::tensor {
namespace {

// The 16 levels of IQ4_NL and IQ4_XS.
constexpr int8_t kNonLinearLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float f16_at(const uint8_t* p) {
  uint16_t half;
  memcpy(&half, p, 2);
  return f32_from_f16(half);
}

void set_one_scale(float scale, QuantBlock32* out) { out->scale[0] = out->scale[1] = scale; }
void set_one_min(float min, QuantBlock32* out) { out->min[0] = out->min[1] = min; }

// 16 bytes: the first 16 weights in the low nibbles, the others in the high ones.
void split_nibbles(const uint8_t* packed, uint8_t* level) {
  for (int i = 0; i < 16; ++i) {
    level[i] = packed[i] & 0x0F;
    level[i + 16] = packed[i] >> 4;
  }
}

// Adds `fifth << 4` from a 32-bit mask, weight i in bit i.
void add_fifth_bits(const uint8_t* mask_bytes, uint8_t* level) {
  uint32_t mask;
  memcpy(&mask, mask_bytes, 4);
  for (int i = 0; i < 32; ++i) level[i] = static_cast<uint8_t>(level[i] | (((mask >> i) & 1u) << 4));
}

void map_non_linear(uint8_t* level) {
  for (int i = 0; i < 32; ++i) level[i] = static_cast<uint8_t>(kNonLinearLevels[level[i]] + 128);
}

void decode_q4_0(const uint8_t* p, QuantBlock32* out) {
  set_one_scale(f16_at(p), out);
  split_nibbles(p + 2, out->level);
}

void decode_q4_1(const uint8_t* p, QuantBlock32* out) {
  set_one_scale(f16_at(p), out);
  set_one_min(f16_at(p + 2), out);
  split_nibbles(p + 4, out->level);
}

void decode_q5_0(const uint8_t* p, QuantBlock32* out) {
  set_one_scale(f16_at(p), out);
  split_nibbles(p + 6, out->level);
  add_fifth_bits(p + 2, out->level);
  for (uint8_t& level : out->level) level = static_cast<uint8_t>(level - 16 + 128);
}

void decode_q5_1(const uint8_t* p, QuantBlock32* out) {
  set_one_scale(f16_at(p), out);
  set_one_min(f16_at(p + 2), out);
  split_nibbles(p + 8, out->level);
  add_fifth_bits(p + 4, out->level);
}

void decode_q8_0(const uint8_t* p, QuantBlock32* out) {
  set_one_scale(f16_at(p), out);
  for (int i = 0; i < 32; ++i) out->level[i] = static_cast<uint8_t>(p[2 + i] ^ 0x80u);  // int8 + 128
}

void decode_iq4_nl(const uint8_t* p, QuantBlock32* out) {
  decode_q4_0(p, out);
  map_non_linear(out->level);
}

// The 256-weight types below: `p` is the super-block, `b` = 0..7 the run of 32 inside it.

// 64 bytes, four runs in each 32: run b takes two bits of each byte.
void take_pairs_of_bits(const uint8_t* packed, int b, uint8_t* level) {
  for (int i = 0; i < 32; ++i) level[i] = (packed[b / 4 * 32 + i] >> (2 * (b % 4))) & 3;
}

void decode_q2_k(const uint8_t* p, int b, QuantBlock32* out) {
  const uint8_t* scales = p;
  const float d = f16_at(p + 80);
  const float dmin = f16_at(p + 82);
  for (int s = 0; s < 2; ++s) {
    const uint8_t both = scales[2 * b + s];
    out->scale[s] = d * static_cast<float>(both & 0x0F);
    out->min[s] = -(dmin * static_cast<float>(both >> 4));
  }
  take_pairs_of_bits(p + 16, b, out->level);
}

// 16 six-bit scales in 12 bytes: low nibbles of 0..7, then of 8..15; the two high bits follow in four bytes.
int q3_k_scale(const uint8_t* packed, int i) {
  const int low = (packed[i % 8] >> (4 * (i / 8))) & 0x0F;
  const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
  return (low | (high << 4)) - 32;
}

void decode_q3_k(const uint8_t* p, int b, QuantBlock32* out) {
  const float d = f16_at(p + 108);
  for (int s = 0; s < 2; ++s) out->scale[s] = d * static_cast<float>(q3_k_scale(p + 96, 2 * b + s));
  take_pairs_of_bits(p + 32, b, out->level);
  // The weight is q - 4 when the mask bit is clear and q when it is set; stored here plus 8.
  for (int i = 0; i < 32; ++i) out->level[i] = static_cast<uint8_t>(out->level[i] + 4 + (((p[i] >> b) & 1) << 2));
}

// Q4_K, Q5_K: eight six-bit scales and minima in 12 bytes.
void set_k_scale_min(const uint8_t* p, int b, QuantBlock32* out) {
  const uint8_t* packed = p + 4;
  int scale = 0;
  int min = 0;
  if (b < 4) {
    scale = packed[b] & 0x3F;
    min = packed[4 + b] & 0x3F;
  } else {
    scale = (packed[4 + b] & 0x0F) | ((packed[b - 4] >> 2) & 0x30);
    min = (packed[4 + b] >> 4) | ((packed[b] >> 2) & 0x30);
  }
  set_one_scale(f16_at(p) * static_cast<float>(scale), out);
  set_one_min(-(f16_at(p + 2) * static_cast<float>(min)), out);
}

void decode_q4_k(const uint8_t* p, int b, QuantBlock32* out) {
  set_k_scale_min(p, b, out);
  const uint8_t* packed = p + 16 + b / 2 * 32;
  for (int i = 0; i < 32; ++i) out->level[i] = (packed[i] >> (4 * (b % 2))) & 0x0F;
}

void decode_q5_k(const uint8_t* p, int b, QuantBlock32* out) {
  set_k_scale_min(p, b, out);
  const uint8_t* high = p + 16;
  const uint8_t* packed = p + 48 + b / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    const int low = (packed[i] >> (4 * (b % 2))) & 0x0F;
    out->level[i] = static_cast<uint8_t>(low | (((high[i] >> b) & 1) << 4));
  }
}

void decode_q6_k(const uint8_t* p, int b, QuantBlock32* out) {
  const float d = f16_at(p + 208);
  for (int s = 0; s < 2; ++s) {
    int8_t scale;
    memcpy(&scale, p + 192 + 2 * b + s, 1);
    out->scale[s] = d * static_cast<float>(scale);
  }
  const uint8_t* low = p + b / 4 * 64 + b % 2 * 32;
  const uint8_t* high = p + 128 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    const int q = ((low[i] >> (4 * (b % 4 / 2))) & 0x0F) | (((high[i] >> (2 * (b % 4))) & 3) << 4);
    out->level[i] = static_cast<uint8_t>(q - 32 + 128);
  }
}

void decode_iq4_xs(const uint8_t* p, int b, QuantBlock32* out) {
  uint16_t high;
  memcpy(&high, p + 2, 2);
  const int low = (p[4 + b / 2] >> (4 * (b % 2))) & 0x0F;
  const int scale = (low | (((high >> (2 * b)) & 3) << 4)) - 32;
  set_one_scale(f16_at(p) * static_cast<float>(scale), out);
  split_nibbles(p + 8 + 16 * b, out->level);
  map_non_linear(out->level);
}

}  // namespace

QuantTraits quant_traits(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0: return {4, 8, 1, false, true};
    case DType::kQ4_1: return {4, 0, 1, true, true};
    case DType::kQ5_0: return {8, 128, 1, false, true};
    case DType::kQ5_1: return {8, 0, 1, true, true};
    case DType::kQ8_0: return {8, 128, 1, false, true};
    case DType::kQ2_K: return {4, 0, 2, true, false};
    case DType::kQ3_K: return {4, 8, 2, false, false};
    case DType::kQ4_K: return {4, 0, 1, true, false};
    case DType::kQ5_K: return {8, 0, 1, true, false};
    case DType::kQ6_K: return {8, 128, 2, false, false};
    case DType::kIQ4_NL: return {8, 128, 1, false, true};
    case DType::kIQ4_XS: return {8, 128, 1, false, false};
    default: break;
  }
  TANDEM_CHECK(false && "not a quantised type");
  return {};
}

void decode_block32(DType dtype, const void* row, uint64_t block32_index, QuantBlock32* out) {
  const QuantTraits traits = quant_traits(dtype);
  out->bits = traits.bits;
  out->zero_point = traits.zero_point;
  out->num_scales = traits.num_scales;
  out->has_min = traits.has_min;
  set_one_min(0.0f, out);

  const uint64_t runs_per_block = block_elements(dtype) / 32;
  const auto* p = static_cast<const uint8_t*>(row) + block32_index / runs_per_block * block_bytes(dtype);
  const int b = static_cast<int>(block32_index % runs_per_block);
  switch (dtype) {
    case DType::kQ4_0: return decode_q4_0(p, out);
    case DType::kQ4_1: return decode_q4_1(p, out);
    case DType::kQ5_0: return decode_q5_0(p, out);
    case DType::kQ5_1: return decode_q5_1(p, out);
    case DType::kQ8_0: return decode_q8_0(p, out);
    case DType::kQ2_K: return decode_q2_k(p, b, out);
    case DType::kQ3_K: return decode_q3_k(p, b, out);
    case DType::kQ4_K: return decode_q4_k(p, b, out);
    case DType::kQ5_K: return decode_q5_k(p, b, out);
    case DType::kQ6_K: return decode_q6_k(p, b, out);
    case DType::kIQ4_NL: return decode_iq4_nl(p, out);
    case DType::kIQ4_XS: return decode_iq4_xs(p, b, out);
    default: break;
  }
}

}  // namespace tandem::tensor
