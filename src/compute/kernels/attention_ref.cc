#include <cmath>
#include <cstring>

#include "compute/kernels/attention_isa.h"
#include "compute/kernels/exp2_isa.h"
#include "compute/kernels/lanes16_isa.h"
#include "compute/tensor/float16.h"

namespace tandem::kernels {
namespace {

template <typename T>
T at(const uint8_t* base, uint64_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof(T));
  return value;
}

float bf16_at(const uint8_t* base, uint64_t index) { return tensor::f32_from_bf16(at<uint16_t>(base, index)); }
float f16_at(const uint8_t* base, uint64_t index) { return tensor::f32_from_f16(at<uint16_t>(base, index)); }
float rounded_to_bf16(float x) { return tensor::f32_from_bf16(tensor::bf16_from_f32(x)); }

// s of one key: the chain of numerics 3 over pairs of dims (odd first), of f32 over dims, or of 2 over blocks of 32.
float score(uint32_t kind, uint32_t dim, const uint8_t* tile, uint32_t slot, const uint8_t* query) {
  float acc = 0.0f;
  if (kind == TK_KV_BF16) {
    for (uint32_t d = 0; d < dim; d += 2) {
      const uint32_t key = d / 2 * 32 + slot * 2;
      acc = __builtin_fmaf(bf16_at(query, d + 1), bf16_at(tile, key + 1), acc);
      acc = __builtin_fmaf(bf16_at(query, d), bf16_at(tile, key), acc);
    }
  } else if (kind == TK_KV_F32) {
    for (uint32_t d = 0; d < dim; ++d) acc = __builtin_fmaf(at<float>(query, d), at<float>(tile, d * 16 + slot), acc);
  } else {
    for (uint32_t block = 0; block < dim / TK_SCALE_BLOCK; ++block) {
      int32_t dot = 0;
      for (uint32_t d = block * TK_SCALE_BLOCK; d < (block + 1) * TK_SCALE_BLOCK; ++d) {
        dot += at<int8_t>(query, d) * at<int8_t>(tile, d / 4 * 64 + slot * 4 + d % 4);
      }
      const float k_scale = f16_at(tile + tk_kv_k_scales_offset(dim), block * 16 + slot);
      acc = __builtin_fmaf(static_cast<float>(dot), k_scale * at<float>(query + dim, block), acc);
    }
  }
  return acc;
}

// One step of the chain over keys: o[d] = fma(V, p, o[d]).
void add_value(uint32_t kind, uint32_t dim, const uint8_t* tile, uint32_t slot, float p, float* o) {
  const uint8_t* values = tile + tk_kv_v_offset(kind, dim);
  for (uint32_t d = 0; d < dim; ++d) {
    const uint32_t pair = slot / 2 * dim * 2 + d * 2 + slot % 2;
    if (kind == TK_KV_BF16) {
      o[d] = __builtin_fmaf(bf16_at(values, pair), p, o[d]);
    } else if (kind == TK_KV_F32) {
      o[d] = __builtin_fmaf(at<float>(values, slot * dim + d), p, o[d]);
    } else {
      const float v_scale = f16_at(tile + tk_kv_v_scales_offset(dim), d / TK_SCALE_BLOCK * 16 + slot);
      o[d] = __builtin_fmaf(static_cast<float>(at<int8_t>(values, pair)), rounded_to_bf16(p * v_scale), o[d]);
    }
  }
}

void row_chunk(const tk_attention* a, uint32_t chunk, uint32_t row, uint32_t head, float* partial) {
  const float infinity = __builtin_inff();
  const tk_key_range keys = tk_visible_keys(a, chunk, row);
  const uint8_t* query = tk_query(a, row, head);
  float p[TK_CHUNK_KEYS] = {};
  float m = -infinity;
  bool is_bad = false;
  for (uint32_t j = keys.begin; j < keys.end; ++j) {
    p[j] = score(a->kind, a->head_dim, tk_kv_tile(a, chunk, j / 16), j % 16, query);
    if (p[j] > m) m = p[j];
    if (!(p[j] < infinity)) is_bad = true;
  }
  float lanes[16] = {};
  for (uint32_t j = keys.begin; j < keys.end; ++j) {
    const float e = tk_exp2(p[j] - m);
    p[j] = a->kind == TK_KV_F32 ? e : rounded_to_bf16(e);
    lanes[j % 16] = lanes[j % 16] + p[j];
  }
  partial[TK_PARTIAL_M] = is_bad ? infinity : m;
  partial[TK_PARTIAL_L] = is_bad ? __builtin_nanf("") : tk_join_lanes16(lanes);
  float* o = partial + TK_PARTIAL_O;
  for (uint32_t d = 0; d < a->head_dim; ++d) o[d] = 0.0f;
  // bf16 products are summed in pairs of keys, the odd one first; a masked half is left out.
  for (uint32_t pair = keys.begin / 2; pair < (keys.end + 1) / 2; ++pair) {
    const uint32_t even = 2 * pair;
    const uint32_t odd = even + 1;
    const uint32_t order[2] = {a->kind == TK_KV_F32 ? even : odd, a->kind == TK_KV_F32 ? odd : even};
    for (uint32_t j : order) {
      if (j < keys.begin || j >= keys.end) continue;
      add_value(a->kind, a->head_dim, tk_kv_tile(a, chunk, j / 16), j % 16, p[j], o);
    }
  }
}

}  // namespace

void tk_attention_chunk_ref(const tk_attention* attention, uint32_t chunk, uint32_t row_begin, uint32_t row_end,
                            const tk_keys_ahead* /*ahead*/, float* partials) {
  for (uint32_t row = row_begin; row < row_end; ++row) {
    for (uint32_t head = 0; head < attention->group; ++head) {
      row_chunk(attention, chunk, row, head, partials);
      partials += tk_partial_floats(attention->head_dim);
    }
  }
}

void tk_attention_merge_ref(uint32_t head_dim, uint32_t count, float* into, const float* next) {
  for (; count > 0; --count, into += tk_partial_floats(head_dim), next += tk_partial_floats(head_dim)) {
    const float m = next[TK_PARTIAL_M];
    if (m == -__builtin_inff()) continue;
    const float merged = into[TK_PARTIAL_M] > m ? into[TK_PARTIAL_M] : m;
    const float x = tk_exp2(into[TK_PARTIAL_M] - merged);
    const float y = tk_exp2(m - merged);
    into[TK_PARTIAL_M] = merged;
    into[TK_PARTIAL_L] = __builtin_fmaf(into[TK_PARTIAL_L], x, next[TK_PARTIAL_L] * y);
    for (uint32_t d = TK_PARTIAL_O; d < TK_PARTIAL_O + head_dim; ++d) into[d] = __builtin_fmaf(into[d], x, next[d] * y);
  }
}

bool tk_attention_finish_ref(uint32_t head_dim, const float* partial, float* out) {
  const float r = 1.0f / partial[TK_PARTIAL_L];
  bool is_finite = true;
  for (uint32_t d = 0; d < head_dim; ++d) {
    // + 0 turns -0 into +0: a masked key adds +0 or nothing, by the grouping of rows, and only a zero's sign can tell.
    out[d] = partial[TK_PARTIAL_O + d] * r + 0.0f;
    is_finite &= std::fabs(out[d]) < __builtin_inff();
  }
  return is_finite;
}

}  // namespace tandem::kernels
