#include <immintrin.h>

#include "compute/kernels/argmax_isa.h"

namespace tandem::kernels {

// n < 2^31.
tk_argmax tk_argmax_avx2(uint32_t n, const float* values) {
  const float infinity = __builtin_inff();
  const __m256 infinities = _mm256_set1_ps(infinity);
  __m256 best_values = _mm256_set1_ps(-infinity);
  __m256i best_indices = _mm256_setzero_si256();
  __m256i indices = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 invalid = _mm256_setzero_ps();
  uint32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(values + i);
    const __m256 is_greater = _mm256_cmp_ps(v, best_values, _CMP_GT_OQ);
    invalid = _mm256_or_ps(invalid, _mm256_cmp_ps(v, infinities, _CMP_NLT_UQ));
    best_values = _mm256_blendv_ps(best_values, v, is_greater);
    best_indices = _mm256_blendv_epi8(best_indices, indices, _mm256_castps_si256(is_greater));
    indices = _mm256_add_epi32(indices, _mm256_set1_epi32(8));
  }
  float lane_values[8];
  uint32_t lane_indices[8];
  _mm256_storeu_ps(lane_values, best_values);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lane_indices), best_indices);
  tk_argmax best = {0, -infinity, _mm256_movemask_ps(invalid) == 0};
  for (int lane = 0; lane < 8; ++lane) {
    const bool is_tie = lane_values[lane] == best.value && lane_indices[lane] < best.index;
    if (!(lane_values[lane] > best.value || is_tie)) continue;
    best.index = lane_indices[lane];
    best.value = lane_values[lane];
  }
  for (; i < n; ++i) {
    if (!(values[i] < infinity)) best.is_valid = false;
    if (values[i] > best.value) {
      best.index = i;
      best.value = values[i];
    }
  }
  if (best.value == -infinity) best.is_valid = false;
  return best;
}

}  // namespace tandem::kernels
