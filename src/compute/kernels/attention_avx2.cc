#include <immintrin.h>
#include <stdint.h>

#include "compute/kernels/attention_isa.h"
#include "compute/kernels/exp2_avx2_isa.h"
#include "compute/kernels/lanes16_isa.h"

// Six (row, head) at a time share each load of K and V: 6 x 2 accumulators, the registers of AVX2. bf16 is two fma on
// shifted halves, so the odd element of a pair is the word with its low half cleared, the even one the word shifted up.

// Left alone, g++ gathers the loads of all units and puts sums into the registers of factors; then it runs out of
// registers and spills accumulators in the inner loops. Hence this barrier, and the instruction by name.
#define TK_KEEP_LOADS_HERE asm volatile("" ::: "memory")
#define TK_FMA_INTO(acc, a, b) asm("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b))

#define TK_UNROLL _Pragma("GCC unroll 8")
#define TK_INLINE inline __attribute__((always_inline))

namespace tandem::kernels {
namespace {

constexpr uint32_t kMaxUnits = 6;

struct Unit {  // one (row, head)
  tk_key_range keys;
  const uint8_t* query;
  float* partial;
};

// What one batch of units works on. `scores` becomes the weights p in place.
struct Batch {
  const uint8_t* tiles[TK_CHUNK_TILES];  // those of `keys`
  tk_key_range keys;                     // that any unit sees
  const tk_keys_ahead* ahead;            // null also for all but the first batch of a chunk
  Unit units[kMaxUnits];
  alignas(32) float scores[kMaxUnits][TK_CHUNK_KEYS];
  alignas(32) float query[kMaxUnits][TK_MAX_HEAD_DIM];           // bf16 kind: widened
  alignas(32) float scaled_weights[kMaxUnits][TK_CHUNK_KEYS];    // int8 kind: p' of one block of 32 dims
};

TK_INLINE __m256i load_i(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

TK_INLINE __m256 odd_halves(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

TK_INLINE __m256 even_halves(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }

TK_INLINE __m256 rounded_to_bf16(__m256 x) {  // x finite
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i tie = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), tie);
  return _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

// Tiles t .. t + T - 1 of the batch; past `last` the last one again, whose scores are then written twice.
template <uint32_t T>
struct TileSet {
  const uint8_t* data[T];
  uint32_t index[T];
};

template <uint32_t T>
TK_INLINE TileSet<T> tile_set(const Batch& batch, uint32_t t, uint32_t last) {
  TileSet<T> set;
  TK_UNROLL for (uint32_t i = 0; i < T; ++i) {
    set.index[i] = t + i < last ? t + i : last;
    set.data[i] = batch.tiles[set.index[i]];
  }
  return set;
}

// acc[u][v] += q[u] * x[v]: the smaller side is held in registers, the larger one is loaded as it comes.
template <uint32_t N, uint32_t V, class LoadQ, class LoadX>
TK_INLINE void add_products(__m256 (&acc)[N][V], LoadQ load_q, LoadX load_x) {
  if constexpr (N < V) {
    __m256 q[N];
    TK_UNROLL for (uint32_t u = 0; u < N; ++u) q[u] = load_q(u);
    TK_UNROLL for (uint32_t v = 0; v < V; ++v) {
      TK_KEEP_LOADS_HERE;
      const __m256 x = load_x(v);
      TK_UNROLL for (uint32_t u = 0; u < N; ++u) TK_FMA_INTO(acc[u][v], q[u], x);
    }
  } else {
    __m256 x[V];
    TK_UNROLL for (uint32_t v = 0; v < V; ++v) x[v] = load_x(v);
    TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
      TK_KEEP_LOADS_HERE;
      const __m256 q = load_q(u);
      TK_UNROLL for (uint32_t v = 0; v < V; ++v) TK_FMA_INTO(acc[u][v], q, x[v]);
    }
  }
  TK_KEEP_LOADS_HERE;
}

template <uint32_t N, uint32_t V>
TK_INLINE void clear(__m256 (&acc)[N][V]) {
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
    TK_UNROLL for (uint32_t v = 0; v < V; ++v) acc[u][v] = _mm256_setzero_ps();
  }
}

template <uint32_t Kind, uint32_t N, uint32_t T>
TK_INLINE void score_tiles(Batch& batch, uint32_t dim, const TileSet<T>& tiles) {
  __m256 acc[N][2 * T];
  clear(acc);
  const auto fetch_values = [&](uint32_t step) __attribute__((always_inline)) {
    if (batch.ahead == nullptr) return;
    TK_UNROLL for (uint32_t i = 0; i < T; ++i) tk_fetch_line(tiles.data[i], tk_kv_v_offset(Kind, dim) + 64 * step);
  };
  const auto load_k = [&](uint32_t v, uint32_t step) __attribute__((always_inline)) {
    return load_i(tiles.data[v / 2] + 64 * step + 32 * (v % 2));
  };
  if constexpr (Kind == TK_KV_BF16) {
    for (uint32_t d = 0; d < dim; d += 2) {
      fetch_values(d / 2);
      const auto q_at = [&](uint32_t i) __attribute__((always_inline)) {
        return [&batch, i](uint32_t u) __attribute__((always_inline)) {
          return _mm256_broadcast_ss(&batch.query[u][i]);
        };
      };
      add_products<N, 2 * T>(acc, q_at(d + 1), [&](uint32_t v) __attribute__((always_inline)) {
        return odd_halves(load_k(v, d / 2));
      });
      add_products<N, 2 * T>(acc, q_at(d), [&](uint32_t v) __attribute__((always_inline)) {
        return even_halves(load_k(v, d / 2));
      });
    }
  } else {
    for (uint32_t d = 0; d < dim; ++d) {
      fetch_values(d);
      add_products<N, 2 * T>(
          acc,
          [&](uint32_t u) __attribute__((always_inline)) {
            return _mm256_broadcast_ss(reinterpret_cast<const float*>(batch.units[u].query) + d);
          },
          [&](uint32_t v) __attribute__((always_inline)) { return _mm256_castsi256_ps(load_k(v, d)); });
    }
  }
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
    TK_UNROLL for (uint32_t v = 0; v < 2 * T; ++v) {
      _mm256_store_ps(&batch.scores[u][16 * tiles.index[v / 2] + 8 * (v % 2)], acc[u][v]);
    }
  }
}

// One tile, one block of 32 dims: the exact integer sum, then one fma onto the score so far. |k| * sign(q, k) keeps the
// 16-bit sums of maddubs below saturation.
template <uint32_t N>
TK_INLINE void score_int8_block(Batch& batch, uint32_t dim, uint32_t tile, uint32_t block) {
  const uint8_t* keys = batch.tiles[tile] + block * TK_SCALE_BLOCK * 16;
  const uint8_t* scales = batch.tiles[tile] + tk_kv_k_scales_offset(dim) + block * 32;
  if (batch.ahead != nullptr) tk_fetch_int8_values(dim, batch.tiles[tile], block);
  __m256i dot[N][2];
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) dot[u][0] = dot[u][1] = _mm256_setzero_si256();
  const __m256i ones = _mm256_set1_epi16(1);
  for (uint32_t quad = 0; quad < TK_SCALE_BLOCK / 4; ++quad) {
    TK_UNROLL for (uint32_t v = 0; v < 2; ++v) {
      const __m256i k = load_i(keys + 64 * quad + 32 * v);
      const __m256i magnitude = _mm256_abs_epi8(k);
      TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
        int32_t word;
        __builtin_memcpy(&word, batch.units[u].query + block * TK_SCALE_BLOCK + 4 * quad, 4);
        const __m256i q = _mm256_sign_epi8(_mm256_set1_epi32(word), k);
        dot[u][v] = _mm256_add_epi32(dot[u][v], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, q), ones));
      }
    }
  }
  TK_UNROLL for (uint32_t v = 0; v < 2; ++v) {
    const __m256 k_scale = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * v)));
    TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
      const __m256 q_scale = _mm256_broadcast_ss(reinterpret_cast<const float*>(batch.units[u].query + dim) + block);
      float* score = &batch.scores[u][16 * tile + 8 * v];
      const __m256 before = block == 0 ? _mm256_setzero_ps() : _mm256_load_ps(score);
      _mm256_store_ps(score, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[u][v]), _mm256_mul_ps(k_scale, q_scale), before));
    }
  }
}

template <uint32_t Kind, uint32_t N>
TK_INLINE void compute_scores(Batch& batch, uint32_t dim) {
  constexpr uint32_t kTiles = N == 1 ? 4 : N <= 3 ? 2 : 1;
  const uint32_t first = batch.keys.begin / 16;
  const uint32_t last = (batch.keys.end - 1) / 16;
  if constexpr (Kind == TK_KV_INT8) {
    for (uint32_t t = first; t <= last; ++t) {
      for (uint32_t block = 0; block < dim / TK_SCALE_BLOCK; ++block) score_int8_block<N>(batch, dim, t, block);
    }
    return;
  }
  for (uint32_t t = first; t <= last; t += kTiles) {
    const TileSet<kTiles> tiles = tile_set<kTiles>(batch, t, last);
    score_tiles<Kind, N, kTiles>(batch, dim, tiles);
  }
}

TK_INLINE float max_of_lanes(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// Scores to weights for one unit; zero weights for the rest of the batch's tiles.
template <uint32_t Kind>
void compute_weights(const Batch& batch, const Unit& unit, float* s) {
  const uint32_t all_begin = batch.keys.begin / 16 * 16;
  const uint32_t all_end = (batch.keys.end + 15) / 16 * 16;
  const float infinity = __builtin_inff();
  for (uint32_t j = all_begin; j < unit.keys.begin; ++j) s[j] = -infinity;
  for (uint32_t j = unit.keys.end; j < all_end; ++j) s[j] = -infinity;

  __m256 maxima = _mm256_set1_ps(-infinity);
  __m256 bad = _mm256_setzero_ps();
  for (uint32_t j = all_begin; j < all_end; j += 8) {
    const __m256 v = _mm256_load_ps(s + j);
    maxima = _mm256_max_ps(v, maxima);  // a NaN in v leaves the maximum as it is
    bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, _mm256_set1_ps(infinity), _CMP_NLT_UQ));
  }
  const float m = max_of_lanes(maxima);

  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  const __m256 ms = _mm256_set1_ps(m);
  for (uint32_t j = all_begin; j < all_end; j += 16) {
    __m256 p0 = tk_exp2_avx2(_mm256_sub_ps(_mm256_load_ps(s + j), ms));
    __m256 p1 = tk_exp2_avx2(_mm256_sub_ps(_mm256_load_ps(s + j + 8), ms));
    if (Kind != TK_KV_F32) {
      p0 = rounded_to_bf16(p0);
      p1 = rounded_to_bf16(p1);
    }
    _mm256_store_ps(s + j, p0);
    _mm256_store_ps(s + j + 8, p1);
    low = _mm256_add_ps(low, p0);
    high = _mm256_add_ps(high, p1);
  }
  const bool is_bad = _mm256_movemask_ps(bad) != 0;
  unit.partial[TK_PARTIAL_M] = is_bad ? infinity : m;
  unit.partial[TK_PARTIAL_L] = is_bad ? __builtin_nanf("") : tk_join_lanes16_avx2(low, high);
}

// p' = bf16(p * scale of V) for one block of 32 dims; what comes out for keys that no unit sees is not used.
template <uint32_t N>
TK_INLINE void scale_weights(Batch& batch, uint32_t dim, uint32_t block) {
  for (uint32_t t = batch.keys.begin / 16; t < (batch.keys.end + 15) / 16; ++t) {
    const uint8_t* scales = batch.tiles[t] + tk_kv_v_scales_offset(dim) + block * 32;
    TK_UNROLL for (uint32_t v = 0; v < 2; ++v) {
      const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * v)));
      TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
        const __m256 p = _mm256_load_ps(&batch.scores[u][16 * t + 8 * v]);
        _mm256_store_ps(&batch.scaled_weights[u][16 * t + 8 * v], rounded_to_bf16(_mm256_mul_ps(p, scale)));
      }
    }
  }
}

// Eight dims of the even or odd key of a pair.
template <uint32_t Kind>
TK_INLINE __m256 load_value(const uint8_t* pair_row, uint32_t dim, uint32_t d, bool is_even) {
  if constexpr (Kind == TK_KV_BF16) {
    const __m256i v = load_i(pair_row + 4 * d);
    return is_even ? even_halves(v) : odd_halves(v);
  } else if constexpr (Kind == TK_KV_F32) {
    return _mm256_castsi256_ps(load_i(pair_row + 4 * (is_even ? d : dim + d)));
  } else {
    const __m256i v = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pair_row + 2 * d)));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(is_even ? _mm256_slli_epi32(v, 24) : v, is_even ? 24 : 8));
  }
}

template <uint32_t Kind>
TK_INLINE const uint8_t* pair_row_of(const Batch& batch, uint32_t dim, uint32_t pair) {
  constexpr uint32_t kPairBytes = Kind == TK_KV_BF16 ? 4 : Kind == TK_KV_F32 ? 8 : 2;
  return batch.tiles[pair / 8] + tk_kv_v_offset(Kind, dim) + pair % 8 * dim * kPairBytes;
}

// o[d .. d + 8 V) of N units over all keys of the batch.
template <uint32_t Kind, uint32_t N, uint32_t V>
TK_INLINE void add_values(const Batch& batch, uint32_t dim, uint32_t d) {
  const auto& weights = Kind == TK_KV_INT8 ? batch.scaled_weights : batch.scores;
  __m256 acc[N][V];
  clear(acc);
  const auto add_key = [&](const uint8_t* row, uint32_t pair, bool is_even) __attribute__((always_inline)) {
    add_products<N, V>(
        acc,
        [&](uint32_t u) __attribute__((always_inline)) {
          return _mm256_broadcast_ss(&weights[u][2 * pair + (is_even ? 0 : 1)]);
        },
        [&](uint32_t v) __attribute__((always_inline)) { return load_value<Kind>(row, dim, d + 8 * v, is_even); });
  };
  const auto add = [&](uint32_t pair, bool has_even, bool has_odd) __attribute__((always_inline)) {
    const uint8_t* row = pair_row_of<Kind>(batch, dim, pair);
    if (batch.ahead != nullptr && d == 0) tk_fetch_keys(Kind, dim, batch.ahead->keys[pair / 8], 0, dim, pair % 8);
    if (Kind == TK_KV_F32 && has_even) add_key(row, pair, true);
    if (has_odd) add_key(row, pair, false);
    if (Kind != TK_KV_F32 && has_even) add_key(row, pair, true);
  };
  uint32_t pair = batch.keys.begin / 2;
  if (batch.keys.begin % 2 != 0) add(pair++, false, true);
  for (; pair < batch.keys.end / 2; ++pair) add(pair, true, true);
  if (batch.keys.end % 2 != 0) add(pair, true, false);
  TK_UNROLL for (uint32_t u = 0; u < N; ++u) {
    TK_UNROLL for (uint32_t v = 0; v < V; ++v) {
      _mm256_storeu_ps(batch.units[u].partial + TK_PARTIAL_O + d + 8 * v, acc[u][v]);
    }
  }
}

// Up to seven dims that fill no vector.
template <uint32_t Kind>
void add_values_one_dim(const Batch& batch, uint32_t num_units, uint32_t dim, uint32_t d) {
  for (uint32_t u = 0; u < num_units; ++u) {
    float acc = 0.0f;
    for (uint32_t i = batch.keys.begin / 2 * 2; i < batch.keys.end + 1; ++i) {
      const uint32_t j = Kind == TK_KV_F32 ? i : i ^ 1;
      if (j < batch.keys.begin || j >= batch.keys.end) continue;
      const uint8_t* row = pair_row_of<Kind>(batch, dim, j / 2);
      float value = 0.0f;
      if (Kind == TK_KV_F32) {
        __builtin_memcpy(&value, row + 4 * (j % 2 * dim + d), 4);
      } else {
        __builtin_memcpy(reinterpret_cast<char*>(&value) + 2, row + 4 * d + 2 * (j % 2), 2);
      }
      acc = __builtin_fmaf(value, batch.scores[u][j], acc);
    }
    batch.units[u].partial[TK_PARTIAL_O + d] = acc;
  }
}

template <uint32_t Kind, uint32_t N>
TK_INLINE void compute_values(Batch& batch, uint32_t dim) {
  if constexpr (Kind == TK_KV_INT8) {
    constexpr uint32_t kVectors = N <= 3 ? 4 : 2;
    for (uint32_t block = 0; block < dim / TK_SCALE_BLOCK; ++block) {
      scale_weights<N>(batch, dim, block);
      for (uint32_t d = 0; d < TK_SCALE_BLOCK; d += 8 * kVectors) {
        add_values<Kind, N, kVectors>(batch, dim, block * TK_SCALE_BLOCK + d);
      }
    }
  } else {
    constexpr uint32_t kVectors = N == 1 ? 8 : N <= 3 ? 4 : 2;
    uint32_t d = 0;
    for (; d + 8 * kVectors <= dim; d += 8 * kVectors) add_values<Kind, N, kVectors>(batch, dim, d);
    if constexpr (kVectors > 4) {
      for (; d + 32 <= dim; d += 32) add_values<Kind, N, 4>(batch, dim, d);
    }
    if constexpr (kVectors > 2) {
      for (; d + 16 <= dim; d += 16) add_values<Kind, N, 2>(batch, dim, d);
    }
    for (; d + 8 <= dim; d += 8) add_values<Kind, N, 1>(batch, dim, d);
    for (; d < dim; ++d) add_values_one_dim<Kind>(batch, N, dim, d);
  }
}

template <uint32_t Kind, uint32_t N>
__attribute__((noinline)) void run_batch(Batch& batch, uint32_t dim) {
  if (Kind == TK_KV_BF16) {
    for (uint32_t u = 0; u < N; ++u) {
      for (uint32_t d = 0; d < dim; ++d) {
        uint16_t half;
        __builtin_memcpy(&half, batch.units[u].query + 2 * d, 2);
        const uint32_t word = static_cast<uint32_t>(half) << 16;
        __builtin_memcpy(&batch.query[u][d], &word, 4);
      }
    }
  }
  compute_scores<Kind, N>(batch, dim);
  for (uint32_t u = 0; u < N; ++u) compute_weights<Kind>(batch, batch.units[u], batch.scores[u]);
  compute_values<Kind, N>(batch, dim);
}

template <uint32_t Kind>
void run_units(Batch& batch, uint32_t num_units, uint32_t dim) {
  switch (num_units) {
    case 1: return run_batch<Kind, 1>(batch, dim);
    case 2: return run_batch<Kind, 2>(batch, dim);
    case 3: return run_batch<Kind, 3>(batch, dim);
    case 4: return run_batch<Kind, 4>(batch, dim);
    case 5: return run_batch<Kind, 5>(batch, dim);
    default: return run_batch<Kind, 6>(batch, dim);
  }
}

void run(const tk_attention* a, uint32_t chunk, Batch& batch, uint32_t num_units) {
  for (uint32_t t = batch.keys.begin / 16; t < (batch.keys.end + 15) / 16; ++t) {
    batch.tiles[t] = tk_kv_tile(a, chunk, t);
  }
  if (a->kind == TK_KV_BF16) run_units<TK_KV_BF16>(batch, num_units, a->head_dim);
  if (a->kind == TK_KV_F32) run_units<TK_KV_F32>(batch, num_units, a->head_dim);
  if (a->kind == TK_KV_INT8) run_units<TK_KV_INT8>(batch, num_units, a->head_dim);
}

}  // namespace

void tk_attention_chunk_avx2(const tk_attention* attention, uint32_t chunk, uint32_t row_begin, uint32_t row_end,
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
        run(attention, chunk, batch, num_units);
        batch.ahead = nullptr;
        num_units = 0;
      }
    }
  }
}

void tk_attention_merge_avx2(uint32_t head_dim, uint32_t count, float* into, const float* next) {
  for (; count > 0; --count, into += tk_partial_floats(head_dim), next += tk_partial_floats(head_dim)) {
    const float m = next[TK_PARTIAL_M];
    if (m == -__builtin_inff()) continue;
    const float merged = into[TK_PARTIAL_M] > m ? into[TK_PARTIAL_M] : m;
    const float x = tk_exp2(into[TK_PARTIAL_M] - merged);
    const float y = tk_exp2(m - merged);
    into[TK_PARTIAL_M] = merged;
    into[TK_PARTIAL_L] = __builtin_fmaf(into[TK_PARTIAL_L], x, next[TK_PARTIAL_L] * y);
    const __m256 xs = _mm256_set1_ps(x);
    const __m256 ys = _mm256_set1_ps(y);
    uint32_t d = TK_PARTIAL_O;
    for (; d + 8 <= TK_PARTIAL_O + head_dim; d += 8) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(next + d), ys);
      _mm256_storeu_ps(into + d, _mm256_fmadd_ps(_mm256_loadu_ps(into + d), xs, scaled));
    }
    for (; d < TK_PARTIAL_O + head_dim; ++d) into[d] = __builtin_fmaf(into[d], x, next[d] * y);
  }
}

bool tk_attention_finish_avx2(uint32_t head_dim, const float* partial, float* out) {
  const float r = 1.0f / partial[TK_PARTIAL_L];
  const __m256 rs = _mm256_set1_ps(r);
  const __m256 infinities = _mm256_set1_ps(__builtin_inff());
  const __m256 signs = _mm256_set1_ps(-0.0f);
  __m256 bad = _mm256_setzero_ps();
  uint32_t d = 0;
  for (; d + 8 <= head_dim; d += 8) {
    const __m256 product = _mm256_mul_ps(_mm256_loadu_ps(partial + TK_PARTIAL_O + d), rs);
    const __m256 y = _mm256_add_ps(product, _mm256_setzero_ps());  // -0 to +0, as the reference says
    bad = _mm256_or_ps(bad, _mm256_cmp_ps(_mm256_andnot_ps(signs, y), infinities, _CMP_NLT_UQ));
    _mm256_storeu_ps(out + d, y);
  }
  bool is_finite = _mm256_movemask_ps(bad) == 0;
  for (; d < head_dim; ++d) {
    out[d] = partial[TK_PARTIAL_O + d] * r + 0.0f;
    is_finite = is_finite && __builtin_fabsf(out[d]) < __builtin_inff();
  }
  return is_finite;
}

}  // namespace tandem::kernels
