#include <bit>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "compute/kernels/attention.h"
#include "compute/kernels/denormals_off.h"
#include "compute/kernels/element_kernels.h"
#include "compute/kernels/fingerprint.h"
#include "compute/kernels/kv_write.h"
#include "compute/kernels/linear_samples.h"
#include "compute/kernels/log_sum_exp.h"

namespace tandem::kernels {
namespace {

constexpr uint32_t kNumPositions = 300;  // two chunks, the second one partly filled
constexpr uint32_t kGroup = 3;
constexpr uint32_t kNumRows = 5;

std::vector<float> random_floats(SampleRandom& random, size_t n, float limit) {
  std::vector<float> x(n);
  for (float& value : x) value = (2.0f * random.unit() - 1.0f) * limit;
  return x;
}

void feed(Hasher& hasher, const std::vector<float>& x) { hasher.update(x.data(), x.size() * sizeof(float)); }

// Stored K and V, prepared queries and outputs of the last rows of one sequence.
void digest_attention(const AttentionKernels& kernels, tk_kv_kind kind, uint32_t head_dim, uint32_t window,
                      Hasher& hasher) {
  SampleRandom random(kind + 1);
  const uint64_t tile_bytes = tk_kv_tile_bytes(kind, head_dim);
  const uint32_t num_tiles = (kNumPositions + 15) / 16;
  std::vector<uint8_t> memory(tile_bytes * num_tiles);
  std::vector<uint32_t> blocks;
  for (uint32_t tile = 0; tile < num_tiles; ++tile) blocks.push_back(num_tiles - 1 - tile);
  for (uint32_t position = 0; position < kNumPositions; ++position) {
    const std::vector<float> k = random_floats(random, head_dim, 3.0f);
    const std::vector<float> v = random_floats(random, head_dim, 2.0f);
    uint8_t* tile = memory.data() + tile_bytes * blocks[position / 16];
    TANDEM_CHECK(kv_write(kind, head_dim, k.data(), v.data(), tile, position % 16));
  }
  const uint64_t query_bytes = tk_query_bytes(kind, head_dim);
  std::vector<uint8_t> queries(query_bytes * kGroup * kNumRows);
  for (uint32_t i = 0; i < kGroup * kNumRows; ++i) {
    const std::vector<float> q = random_floats(random, head_dim, 3.0f);
    TANDEM_CHECK(prepare_query(kind, head_dim, query_scale(0.125f), q.data(), queries.data() + i * query_bytes));
  }
  hasher.update(memory.data(), memory.size());
  hasher.update(queries.data(), queries.size());

  tk_attention attention = {};
  attention.kind = kind;
  attention.head_dim = head_dim;
  attention.group = kGroup;
  attention.tiles_per_block = 1;
  attention.first_position = kNumPositions - kNumRows;
  attention.window = window;
  attention.blocks = blocks.data();
  attention.kv = memory.data();
  attention.block_stride = tile_bytes;
  attention.queries = queries.data();
  attention.row_stride = query_bytes * kGroup;
  attention.head_stride = query_bytes;
  std::vector<float> out(size_t{kNumRows} * kGroup * head_dim);
  std::vector<float> scratch(attention_scratch_floats(head_dim, kGroup, kNumRows));
  const AttentionOutput output = {out.data(), uint64_t{kGroup} * head_dim, head_dim};
  TANDEM_CHECK(attention_rows(kernels, attention, {0, kNumRows}, scratch.data(), output) == kNumRows);
  feed(hasher, out);
}

// Sizes that leave a rest in every vector width.
void digest_rows(const ElementKernels& kernels, Hasher& hasher) {
  SampleRandom random(99);
  for (uint32_t n : {576u, 77u, 5u}) {
    const std::vector<float> x = random_floats(random, n, 90.0f);
    const std::vector<float> weight = random_floats(random, n, 2.0f);
    std::vector<float> out(n);
    kernels.rms_norm(n, 1e-5f, x.data(), weight.data(), out.data());
    feed(hasher, out);
    kernels.silu_mul(n, x.data(), weight.data(), out.data());
    feed(hasher, out);
    const tk_argmax best = kernels.argmax(n, x.data());
    const float sums[] = {log_sum_exp(kernels, n, x.data()), best.value, static_cast<float>(best.index)};
    hasher.update(sums, sizeof sums);
  }
}

void digest_rope(const ElementKernels& kernels, Hasher& hasher) {
  SampleRandom random(7);
  for (uint32_t rotary_dim : {64u, 22u}) {
    const std::vector<float> table = random_floats(random, rotary_dim, 1.0f);
    for (uint32_t pairing : {TK_ROPE_ADJACENT, TK_ROPE_HALVES}) {
      const tk_rope shape = {64, rotary_dim, pairing};
      const std::vector<float> x = random_floats(random, 64, 4.0f);
      std::vector<float> out(64);
      kernels.rope(&shape, table.data(), x.data(), out.data());
      feed(hasher, out);
    }
  }
}

}  // namespace

std::string attention_digest(Isa isa) {
  const DenormalsOff denormals_off;
  Hasher hasher;
  const AttentionKernels& kernels = attention_kernels(isa);
  for (tk_kv_kind kind : {TK_KV_BF16, TK_KV_F32, TK_KV_INT8}) {
    digest_attention(kernels, kind, 64, 0, hasher);
    digest_attention(kernels, kind, 32, 270, hasher);
  }
  digest_attention(kernels, TK_KV_BF16, 36, 0, hasher);
  digest_rows(element_kernels(isa), hasher);
  digest_rope(element_kernels(isa), hasher);
  return hasher.hex();
}

}  // namespace tandem::kernels
