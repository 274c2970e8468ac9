#pragma once
// Attention for AVX-512, shared by the files with and without the bf16 instruction; `Bf16` says how a pair is
// multiplied:
//   static __m512 add(__m512 acc, __m512i a, __m512i b)   acc += odd(a) * odd(b), then += even(a) * even(b)
//   static __m256i round(__m512 x)                        bf16 of x >= 0, finite and not denormal
// Sixteen keys, or sixteen dims of a pair of keys, are one register. Up to six (row, head) share each load of K and V.

#include "compute/kernels/attention_isa.h"
#include "compute/kernels/exp2_avx512_isa.h"
#include "compute/kernels/lanes16_isa.h"
#include "compute/kernels/simd_isa.h"

#define TK_UNROLL _Pragma("GCC unroll 8")

namespace tandem::kernels {
namespace {

constexpr uint32_t kMaxUnits = 6;

struct Unit {  // one (row, head)
  tk_key_range keys;
  const uint8_t* query;
  float* partial;
};

// What one batch of units works on.
struct Batch {
  const uint8_t* tiles[TK_CHUNK_TILES];  // those of `keys`
  tk_key_range keys;                     // that any unit sees
  const tk_keys_ahead* ahead;            // null also for all but the first batch of a chunk
  Unit units[kMaxUnits];
  alignas(64) float scores[kMaxUnits][TK_CHUNK_KEYS];      // then the weights p, except for the bf16 kind
  alignas(64) uint16_t weights[kMaxUnits][TK_CHUNK_KEYS];  // bf16: p; int8: p' of one block of 32 dims
};

TANDEM_INLINE __m512i load_i512(const void* p) { return _mm512_loadu_si512(p); }

TANDEM_INLINE __m512i broadcast_word(const void* p) {
  int32_t word;
  memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}

TANDEM_INLINE __m512i rounded_to_bf16(__m512 x) {  // x finite; the low halves are 0
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), tie);
  return _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
}

TANDEM_INLINE __m256i high_halves(__m512i v) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)); }

TANDEM_INLINE void store_bf16(uint16_t* out, __m512i rounded) {
  const __m256i halves = high_halves(rounded);
  memcpy(out, &halves, 32);
}

TANDEM_INLINE __m512 load_f16(const uint8_t* p) {
  __m256i halves;
  memcpy(&halves, p, 32);
  return _mm512_cvtph_ps(halves);
}

// Scores of T tiles from t on; past `last` the last one again, whose scores are then written twice.
template <uint32_t Kind, class Bf16, uint32_t N, uint32_t T>
TANDEM_INLINE void score_tiles(Batch& batch, uint32_t dim, uint32_t t, uint32_t last) {
  const uint8_t* data[T];
  TK_UNROLL for (uint32_t i = 0; i < T; ++i) data[i] = batch.tiles[t + i < last ? t + i : last];
  __m512 acc[N][T];
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
    TK_UNROLL for (uint32_t i = 0; i < T; ++i) acc[u][i] = _mm512_setzero_ps();
  }
  const uint32_t num_steps = Kind == TK_KV_BF16 ? dim / 2 : dim;  // lines of a tile's K, and of its V
  const uint32_t v_offset = tk_kv_v_offset(Kind, dim);
  const bool is_fetching = batch.ahead != nullptr;
  for (uint32_t step = 0; step < num_steps; ++step) {
    if (is_fetching) {
      TK_UNROLL for (uint32_t i = 0; i < T; ++i) tk_fetch_line(data[i] + v_offset, 64 * step);
    }
    __m512i k[T];
    TK_UNROLL for (uint32_t i = 0; i < T; ++i) k[i] = load_i512(data[i] + 64 * step);
    TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
      const __m512i q = broadcast_word(batch.units[u].query + 4 * step);
      TK_UNROLL for (uint32_t i = 0; i < T; ++i) {
        if constexpr (Kind == TK_KV_BF16) {
          acc[u][i] = Bf16::add(acc[u][i], k[i], q);
        } else {
          acc[u][i] = _mm512_fmadd_ps(_mm512_castsi512_ps(q), _mm512_castsi512_ps(k[i]), acc[u][i]);
        }
      }
    }
  }
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) TK_UNROLL for (uint32_t i = 0; i < T; ++i) {
    _mm512_storeu_ps(&batch.scores[u][16 * (t + i < last ? t + i : last)], acc[u][i]);
  }
}

// One tile, one block of 32 dims. The instruction wants one factor unsigned: k + 128, made by flipping the sign bit;
// the sum starts at -128 * sum(q).
template <uint32_t N>
TANDEM_INLINE void score_int8_block(Batch& batch, uint32_t dim, uint32_t tile, uint32_t block) {
  const uint8_t* keys = batch.tiles[tile] + block * TK_SCALE_BLOCK * 16;
  if (batch.ahead != nullptr) tk_fetch_int8_values(dim, batch.tiles[tile], block);
  __m512i dot[N];
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
    int32_t sum;
    memcpy(&sum, batch.units[u].query + dim + 4 * (dim / TK_SCALE_BLOCK + block), 4);
    dot[u] = _mm512_set1_epi32(-128 * sum);
  }
  TK_UNROLL for (uint32_t quad = 0; quad < TK_SCALE_BLOCK / 4; ++quad) {
    const __m512i k = _mm512_xor_si512(load_i512(keys + 64 * quad), _mm512_set1_epi32(static_cast<int>(0x80808080u)));
    TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
      const __m512i q = broadcast_word(batch.units[u].query + block * TK_SCALE_BLOCK + 4 * quad);
      TK_DPBUSD(dot[u], k, q);
    }
  }
  const __m512 k_scale = load_f16(batch.tiles[tile] + tk_kv_k_scales_offset(dim) + block * 32);
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
    const __m512 q_scale = _mm512_castsi512_ps(broadcast_word(batch.units[u].query + dim + 4 * block));
    float* score = &batch.scores[u][16 * tile];
    const __m512 before = block == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(score);
    _mm512_storeu_ps(score, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[u]), _mm512_mul_ps(k_scale, q_scale), before));
  }
}

template <uint32_t Kind, class Bf16, uint32_t N>
TANDEM_INLINE void compute_scores(Batch& batch, uint32_t dim) {
  const uint32_t first = batch.keys.begin / 16;
  const uint32_t last = (batch.keys.end - 1) / 16;
  if constexpr (Kind == TK_KV_INT8) {
    for (uint32_t t = first; t <= last; ++t) {
      for (uint32_t block = 0; block < dim / TK_SCALE_BLOCK; ++block) score_int8_block<N>(batch, dim, t, block);
    }
  } else {
    constexpr uint32_t kTiles = N == 1 ? 8 : N >= 5 ? 2 : 4;
    for (uint32_t t = first; t <= last; t += kTiles) score_tiles<Kind, Bf16, N, kTiles>(batch, dim, t, last);
  }
}

TANDEM_INLINE float max_of_lanes(__m512 v) {
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

TANDEM_INLINE float join_lanes16(__m512 v) {
  return tk_join_lanes16_avx2(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

// -inf for what one unit does not see of the batch's tiles.
TANDEM_INLINE void mask_scores(const Batch& batch, tk_key_range keys, float* s) {
  const float infinity = __builtin_inff();
  for (uint32_t j = batch.keys.begin / 16 * 16; j < keys.begin; ++j) s[j] = -infinity;
  for (uint32_t j = keys.end; j < (batch.keys.end + 15) / 16 * 16; ++j) s[j] = -infinity;
}

// Scores to weights for one unit; zero weights for the rest of the batch's tiles. Scores that are not finite make
// weights that nobody uses.
template <uint32_t Kind, class Bf16>
TANDEM_INLINE void compute_weights(const Batch& batch, const Unit& unit, float* s, uint16_t* weights) {
  const uint32_t all_begin = batch.keys.begin / 16 * 16;
  const uint32_t all_end = (batch.keys.end + 15) / 16 * 16;
  const float infinity = __builtin_inff();
  mask_scores(batch, unit.keys, s);

  __m512 maxima = _mm512_set1_ps(-infinity);
  uint32_t bad = 0;
  for (uint32_t j = all_begin; j < all_end; j += 16) {
    const __m512 v = _mm512_loadu_ps(s + j);
    maxima = _mm512_max_ps(v, maxima);  // a NaN in v leaves the maximum as it is
    bad |= static_cast<uint16_t>(~_mm512_cmp_ps_mask(v, _mm512_set1_ps(infinity), _CMP_LT_OQ));
  }
  const float m = max_of_lanes(maxima);

  __m512 sums = _mm512_setzero_ps();
  const __m512 ms = _mm512_set1_ps(m);
  for (uint32_t j = all_begin; j < all_end; j += 16) {
    __m512 p = tk_exp2_small_avx512(_mm512_sub_ps(_mm512_loadu_ps(s + j), ms));
    if constexpr (Kind == TK_KV_BF16) {
      const __m256i rounded = Bf16::round(p);
      memcpy(weights + j, &rounded, 32);
      p = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    } else {
      if constexpr (Kind == TK_KV_INT8) p = _mm512_castsi512_ps(rounded_to_bf16(p));
      _mm512_storeu_ps(s + j, p);
    }
    sums = _mm512_add_ps(sums, p);
  }
  unit.partial[TK_PARTIAL_M] = bad != 0 ? infinity : m;
  unit.partial[TK_PARTIAL_L] = bad != 0 ? __builtin_nanf("") : join_lanes16(sums);
}

// p' = bf16(p * scale of V) for one block of 32 dims; 0 where p is 0, whatever the scale of a masked key holds.
template <uint32_t N>
TANDEM_INLINE void scale_weights(Batch& batch, uint32_t dim, uint32_t block) {
  for (uint32_t t = batch.keys.begin / 16; t < (batch.keys.end + 15) / 16; ++t) {
    const __m512 scale = load_f16(batch.tiles[t] + tk_kv_v_scales_offset(dim) + block * 32);
    TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
      const __m512 p = _mm512_loadu_ps(&batch.scores[u][16 * t]);
      const __mmask16 is_used = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      store_bf16(&batch.weights[u][16 * t], rounded_to_bf16(_mm512_maskz_mov_ps(is_used, _mm512_mul_ps(p, scale))));
    }
  }
}

// Sixteen dims of a pair of keys, as pairs of bf16.
template <uint32_t Kind>
TANDEM_INLINE __m512i load_pairs(const uint8_t* row, uint32_t d) {
  if constexpr (Kind == TK_KV_BF16) {
    return load_i512(row + 4 * d);
  } else {
    __m256i bytes;
    memcpy(&bytes, row + 2 * d, 32);
    const __m512i words = _mm512_cvtepu16_epi32(bytes);
    const __m512 even = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24), 24));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 16), 24));
    return _mm512_or_si512(_mm512_castps_si512(odd), _mm512_srli_epi32(_mm512_castps_si512(even), 16));
  }
}

template <uint32_t N, uint32_t V>
struct Sums {
  __m512 acc[N][V];
};

// A masked half of a pair is cut out of V by `kept`.
template <uint32_t Kind, class Bf16, uint32_t N, uint32_t V>
TANDEM_INLINE void add_pair(const Batch& batch, uint32_t dim, uint32_t d, uint32_t pair, __m512i kept,
                            Sums<N, V>& sums) {
  constexpr uint32_t kPairBytes = Kind == TK_KV_BF16 ? 4 : 2;
  const uint8_t* row = batch.tiles[pair / 8] + tk_kv_v_offset(Kind, dim) + pair % 8 * dim * kPairBytes;
  if (batch.ahead != nullptr) tk_fetch_keys(Kind, dim, batch.ahead->keys[pair / 8], d, 16 * V, pair % 8);
  __m512i v[V];
  TK_UNROLL for (uint32_t i = 0; i < V; ++i) v[i] = _mm512_and_si512(load_pairs<Kind>(row, d + 16 * i), kept);
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
    const __m512i p = broadcast_word(&batch.weights[u][2 * pair]);
    TK_UNROLL for (uint32_t i = 0; i < V; ++i) sums.acc[u][i] = Bf16::add(sums.acc[u][i], v[i], p);
  }
}

// o[d .. d + 16 V) of N units over all keys of the batch.
template <uint32_t Kind, class Bf16, uint32_t N, uint32_t V>
TANDEM_INLINE void add_values(const Batch& batch, uint32_t dim, uint32_t d) {
  Sums<N, V> sums;
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) TK_UNROLL for (uint32_t i = 0; i < V; ++i) {
    sums.acc[u][i] = _mm512_setzero_ps();
  }
  if constexpr (Kind == TK_KV_F32) {
    for (uint32_t j = batch.keys.begin; j < batch.keys.end; ++j) {
      const uint8_t* row = batch.tiles[j / 16] + tk_kv_v_offset(Kind, dim) + uint64_t(j % 16) * dim * 4 + 4 * d;
      if (batch.ahead != nullptr && j % 2 == 0) {
        tk_fetch_keys(Kind, dim, batch.ahead->keys[j / 16], d, 16 * V, j % 16 / 2);
      }
      __m512 v[V];
      TK_UNROLL for (uint32_t i = 0; i < V; ++i) v[i] = _mm512_loadu_ps(row + 64 * i);
      TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
        const __m512 p = _mm512_set1_ps(batch.scores[u][j]);
        TK_UNROLL for (uint32_t i = 0; i < V; ++i) sums.acc[u][i] = _mm512_fmadd_ps(v[i], p, sums.acc[u][i]);
      }
    }
  } else {
    const __m512i all = _mm512_set1_epi32(-1);
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    const __m512i even = _mm512_set1_epi32(0xFFFF);
    uint32_t pair = batch.keys.begin / 2;
    if (batch.keys.begin % 2 != 0) add_pair<Kind, Bf16>(batch, dim, d, pair++, odd, sums);
    for (; pair < batch.keys.end / 2; ++pair) add_pair<Kind, Bf16>(batch, dim, d, pair, all, sums);
    if (batch.keys.end % 2 != 0) add_pair<Kind, Bf16>(batch, dim, d, pair, even, sums);
  }
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) TK_UNROLL for (uint32_t i = 0; i < V; ++i) {
    _mm512_storeu_ps(batch.units[u].partial + TK_PARTIAL_O + d + 16 * i, sums.acc[u][i]);
  }
}

// Up to fifteen dims that fill no vector; not for int8, whose dims come in blocks of 32.
template <uint32_t Kind>
void add_values_one_dim(const Batch& batch, uint32_t num_units, uint32_t dim, uint32_t d) {
  for (uint32_t u = 0; u < num_units; ++u) {
    float acc = 0.0f;
    for (uint32_t i = batch.keys.begin / 2 * 2; i < batch.keys.end + 1; ++i) {
      const uint32_t j = Kind == TK_KV_F32 ? i : i ^ 1;
      if (j < batch.keys.begin || j >= batch.keys.end) continue;
      const uint8_t* values = batch.tiles[j / 16] + tk_kv_v_offset(Kind, dim);
      float v = 0.0f;
      float p = 0.0f;
      if (Kind == TK_KV_F32) {
        memcpy(&v, values + 4 * (j % 16 * dim + d), 4);
        p = batch.scores[u][j];
      } else {
        memcpy(reinterpret_cast<char*>(&v) + 2, values + j % 16 / 2 * dim * 4 + 4 * d + 2 * (j % 2), 2);
        memcpy(reinterpret_cast<char*>(&p) + 2, &batch.weights[u][j], 2);
      }
      acc = __builtin_fmaf(v, p, acc);
    }
    batch.units[u].partial[TK_PARTIAL_O + d] = acc;
  }
}

template <uint32_t Kind, class Bf16, uint32_t N>
__attribute__((noinline)) void run_batch(Batch& batch, uint32_t dim) {
  compute_scores<Kind, Bf16, N>(batch, dim);
  for (uint32_t u = 0; u < N; ++u) {
    compute_weights<Kind, Bf16>(batch, batch.units[u], batch.scores[u], batch.weights[u]);
  }
  if constexpr (Kind == TK_KV_INT8) {
    for (uint32_t block = 0; block < dim / TK_SCALE_BLOCK; ++block) {
      scale_weights<N>(batch, dim, block);
      add_values<Kind, Bf16, N, 2>(batch, dim, block * TK_SCALE_BLOCK);
    }
  } else {
    uint32_t d = 0;
    for (; d + 64 <= dim; d += 64) add_values<Kind, Bf16, N, 4>(batch, dim, d);
    for (; d + 32 <= dim; d += 32) add_values<Kind, Bf16, N, 2>(batch, dim, d);
    for (; d + 16 <= dim; d += 16) add_values<Kind, Bf16, N, 1>(batch, dim, d);
    for (; d < dim; ++d) add_values_one_dim<Kind>(batch, N, dim, d);
  }
}

template <uint32_t Kind, class Bf16>
void run_units(Batch& batch, uint32_t num_units, uint32_t dim) {
  switch (num_units) {
    case 1: return run_batch<Kind, Bf16, 1>(batch, dim);
    case 2: return run_batch<Kind, Bf16, 2>(batch, dim);
    case 3: return run_batch<Kind, Bf16, 3>(batch, dim);
    case 4: return run_batch<Kind, Bf16, 4>(batch, dim);
    case 5: return run_batch<Kind, Bf16, 5>(batch, dim);
    default: return run_batch<Kind, Bf16, 6>(batch, dim);
  }
}

template <class Bf16>
void run(const tk_attention* a, uint32_t chunk, Batch& batch, uint32_t num_units) {
  for (uint32_t t = batch.keys.begin / 16; t < (batch.keys.end + 15) / 16; ++t) {
    batch.tiles[t] = tk_kv_tile(a, chunk, t);
  }
  if (a->kind == TK_KV_BF16) run_units<TK_KV_BF16, Bf16>(batch, num_units, a->head_dim);
  if (a->kind == TK_KV_F32) run_units<TK_KV_F32, Bf16>(batch, num_units, a->head_dim);
  if (a->kind == TK_KV_INT8) run_units<TK_KV_INT8, Bf16>(batch, num_units, a->head_dim);
}

template <class Bf16>
void attention_chunk(const tk_attention* attention, uint32_t chunk, uint32_t row_begin, uint32_t row_end,
                     const tk_keys_ahead* ahead, float* partials) {
  Batch batch;
  batch.ahead = ahead;
  uint32_t num_units = 0;
  uint32_t units_left = (row_end - row_begin) * attention->group;
  uint32_t batch_size = 0;
  for (uint32_t row = row_begin; row < row_end; ++row) {
    const tk_key_range keys = tk_visible_keys(attention, chunk, row);
    for (uint32_t head = 0; head < attention->group; ++head, partials += tk_partial_floats(attention->head_dim)) {
      if (num_units == 0) batch_size = tk_batch_units(units_left);
      units_left -= 1;
      if (keys.begin == keys.end) {
        tk_set_empty_partial(attention->head_dim, partials);
      } else {
        if (num_units == 0) batch.keys = keys;
        if (keys.begin < batch.keys.begin) batch.keys.begin = keys.begin;
        if (keys.end > batch.keys.end) batch.keys.end = keys.end;
        batch.units[num_units++] = {keys, tk_query(attention, row, head), partials};
      }
      if (num_units == batch_size || (units_left == 0 && num_units > 0)) {
        run<Bf16>(attention, chunk, batch, num_units);
        batch.ahead = nullptr;
        num_units = 0;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
