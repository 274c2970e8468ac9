#include "compute/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "compute/kernels/attention_variants_for_test.h"
#include "compute/kernels/denormals_off.h"
#include "compute/kernels/kv_write.h"
#include <doctest/doctest.h>

namespace tandem::kernels {
namespace {

constexpr tk_kv_kind kKinds[] = {TK_KV_BF16, TK_KV_F32, TK_KV_INT8};

struct Shape {
  tk_kv_kind kind;
  uint32_t head_dim;
  uint32_t group;
  uint32_t window = 0;
  uint32_t tiles_per_block = 1;
  uint32_t num_positions = 300;  // keys; as many rows of queries
};

// One sequence's KV for one head, in blocks scattered over memory whose every other byte is stale (0xFF: NaN in all
// formats), and its prepared queries.
class Sequence {
 public:
  explicit Sequence(const Shape& shape, uint32_t seed = 1) : shape_(shape), state_(seed) {
    const uint32_t block_tokens = 16 * shape.tiles_per_block;
    const uint32_t num_blocks = (shape.num_positions + block_tokens - 1) / block_tokens;
    stride_ = uint64_t{tk_kv_tile_bytes(shape.kind, shape.head_dim)} * shape.tiles_per_block + 64;
    memory_.assign(stride_ * (2 * num_blocks + 1), 0xFF);
    uint32_t step = 7;
    while (std::gcd(num_blocks, step) != 1) step += 1;
    for (uint32_t i = 0; i < num_blocks; ++i) blocks_.push_back((i * step + 3) % num_blocks * 2 + 1);
    const uint32_t query_bytes = tk_query_bytes(shape.kind, shape.head_dim);
    queries_.resize(size_t{query_bytes} * shape.group * shape.num_positions);
    const float scale = query_scale(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
    for (uint32_t position = 0; position < shape.num_positions; ++position) {
      keys_.push_back(random_vector());
      values_.push_back(random_vector());
      REQUIRE(kv_write(shape.kind, shape.head_dim, keys_.back().data(), values_.back().data(), tile(position),
                       position % 16));
      for (uint32_t head = 0; head < shape.group; ++head) {
        raw_queries_.push_back(random_vector());
        uint8_t* out = queries_.data() + (size_t{position} * shape.group + head) * query_bytes;
        REQUIRE(prepare_query(shape.kind, shape.head_dim, scale, raw_queries_.back().data(), out));
      }
    }
  }

  uint8_t* tile(uint32_t position) {
    const uint32_t index = position / 16;
    return memory_.data() + blocks_[index / shape_.tiles_per_block] * stride_ +
           size_t{index % shape_.tiles_per_block} * tk_kv_tile_bytes(shape_.kind, shape_.head_dim);
  }

  // Rows from `first_position` on.
  tk_attention attention(uint32_t first_position) const {
    const uint64_t query_bytes = tk_query_bytes(shape_.kind, shape_.head_dim);
    tk_attention a = {};
    a.kind = shape_.kind;
    a.head_dim = shape_.head_dim;
    a.group = shape_.group;
    a.tiles_per_block = shape_.tiles_per_block;
    a.first_position = first_position;
    a.window = shape_.window;
    a.blocks = blocks_.data();
    a.kv = memory_.data();
    a.block_stride = stride_;
    a.head_stride = query_bytes;
    a.row_stride = query_bytes * shape_.group;
    a.queries = queries_.data() + first_position * a.row_stride;
    return a;
  }

  const Shape& shape() const { return shape_; }
  const std::vector<float>& key(uint32_t position) const { return keys_[position]; }
  const std::vector<float>& value(uint32_t position) const { return values_[position]; }
  const std::vector<float>& query(uint32_t position, uint32_t head) const {
    return raw_queries_[size_t{position} * shape_.group + head];
  }
  // Makes every block that holds only keys before `position` stale again, and its id one that is far outside.
  void forget_blocks_before(uint32_t position) {
    for (uint32_t i = 0; (i + 1) * 16 * shape_.tiles_per_block <= position; ++i) blocks_[i] = 0x7FFFFFFF;
  }

 private:
  std::vector<float> random_vector() {
    std::vector<float> x(shape_.head_dim);
    for (float& value : x) {
      state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
      value = (static_cast<float>(state_ >> 40) / (1 << 23) - 1.0f) * 2.5f;
    }
    return x;
  }

  Shape shape_;
  uint64_t state_;
  uint64_t stride_ = 0;
  std::vector<uint8_t> memory_;
  std::vector<uint32_t> blocks_;
  std::vector<uint8_t> queries_;
  std::vector<std::vector<float>> keys_, values_, raw_queries_;
};

// Rows `first` .. `first` + `count` - 1 in one call; [row][head][dim].
std::vector<float> attend(const AttentionKernels& kernels, const Sequence& sequence, uint32_t first, uint32_t count) {
  const Shape& shape = sequence.shape();
  const tk_attention a = sequence.attention(first);
  std::vector<float> scratch(attention_scratch_floats(shape.head_dim, shape.group, count));
  std::vector<float> out(size_t{count} * shape.group * shape.head_dim);
  const AttentionOutput output = {out.data(), uint64_t{shape.group} * shape.head_dim, shape.head_dim};
  CHECK(attention_rows(kernels, a, {0, count}, scratch.data(), output) == count);
  return out;
}

// Softmax attention of one row and head in double, over the unrounded inputs.
std::vector<double> exact_attention(const Sequence& sequence, uint32_t position, uint32_t head) {
  const Shape& shape = sequence.shape();
  const uint32_t begin = shape.window != 0 && position + 1 > shape.window ? position + 1 - shape.window : 0;
  std::vector<double> scores;
  for (uint32_t j = begin; j <= position; ++j) {
    double dot = 0;
    for (uint32_t d = 0; d < shape.head_dim; ++d) dot += double{sequence.query(position, head)[d]} * sequence.key(j)[d];
    scores.push_back(dot / std::sqrt(double(shape.head_dim)));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& s : scores) total += s = std::exp(s - largest);
  std::vector<double> out(shape.head_dim);
  for (uint32_t j = begin; j <= position; ++j) {
    for (uint32_t d = 0; d < shape.head_dim; ++d) out[d] += scores[j - begin] / total * sequence.value(j)[d];
  }
  return out;
}

bool have_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string describe(const Shape& s, const char* variant) {
  return std::string(variant) + " kind " + std::to_string(s.kind) + " dim " + std::to_string(s.head_dim) + " group " +
         std::to_string(s.group) + " window " + std::to_string(s.window) + " m " + std::to_string(s.tiles_per_block);
}

// Every variant in tiles of 16, 64 and odd sizes, against the scalar reference row by row.
void check_all_ways(const Shape& shape) {
  const Sequence sequence(shape);
  const AttentionKernels& reference = attention_kernels(Isa::kScalar);
  for (uint32_t first : {0u, 245u}) {
    if (first >= shape.num_positions) continue;
    const uint32_t count = std::min(24u, shape.num_positions - first);
    std::vector<float> expected;
    for (uint32_t row = 0; row < count; ++row) {
      const std::vector<float> one = attend(reference, sequence, first + row, 1);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    for (const AttentionVariant& variant : attention_variants()) {
      if (variant.kernels.chunk == reference.chunk) continue;
      for (uint32_t tile : {1u, 7u, 16u, 64u}) {
        std::vector<float> actual;
        for (uint32_t row = 0; row < count; row += tile) {
          const std::vector<float> part = attend(variant.kernels, sequence, first + row, std::min(tile, count - row));
          actual.insert(actual.end(), part.begin(), part.end());
        }
        INFO(describe(shape, variant.name), " first ", first, " tile ", tile);
        CHECK(have_same_bits(actual, expected));
      }
    }
  }
}

}  // namespace

TEST_CASE("every instruction set and every tiling gives the bits of the reference") {
  const DenormalsOff denormals_off;
  for (tk_kv_kind kind : kKinds) {
    for (uint32_t head_dim : {32u, 64u, 80u, 128u}) {
      if (!tk_kv_is_supported(kind, head_dim)) continue;
      for (uint32_t group : {1u, 2u, 3u, 4u, 8u}) check_all_ways({kind, head_dim, group});
    }
    check_all_ways({kind, 64, 5, 0, 3});
    check_all_ways({kind, 64, 6, 0, 2});
    check_all_ways({kind, 64, 7, 0, 4});
    for (uint32_t window : {1u, 16u, 64u, 300u}) {
      check_all_ways({kind, 32, 2, window, 2});
      check_all_ways({kind, 64, 3, window});
    }
  }
  check_all_ways({TK_KV_BF16, 36, 3});  // fills no vector
  check_all_ways({TK_KV_F32, 22, 2, 5});
  check_all_ways({TK_KV_BF16, 256, 2});
}

TEST_CASE("positions around the borders of chunks") {
  const DenormalsOff denormals_off;
  for (tk_kv_kind kind : kKinds) {
    for (uint32_t window : {0u, 300u}) {
      const Sequence sequence({kind, 64, 3, window, 1, 1001});
      for (uint32_t position : {0u, 1u, 15u, 16u, 255u, 256u, 257u, 511u, 512u, 1000u}) {
        const std::vector<float> expected = attend(attention_kernels(Isa::kScalar), sequence, position, 1);
        for (const AttentionVariant& variant : attention_variants()) {
          INFO(variant.name, " kind ", int(kind), " window ", window, " position ", position);
          CHECK(have_same_bits(attend(variant.kernels, sequence, position, 1), expected));
          // In the middle of a tile of rows, with neighbours on both sides.
          const uint32_t first = position >= 9 ? position - 9 : 0;
          const uint32_t count = std::min(20u, 1001 - first);
          const std::vector<float> rows = attend(variant.kernels, sequence, first, count);
          const auto begin = rows.begin() + (position - first) * 3 * 64;
          CHECK(have_same_bits(std::vector<float>(begin, begin + 3 * 64), expected));
        }
      }
    }
  }
}

TEST_CASE("chunks computed apart and merged left to right are the same bits") {
  const DenormalsOff denormals_off;
  const Sequence sequence({TK_KV_BF16, 64, 4, 0, 1, 1001});
  const tk_attention a = sequence.attention(1000);
  const std::vector<float> expected = attend(attention_kernels(Isa::kScalar), sequence, 1000, 1);
  for (const AttentionVariant& variant : attention_variants()) {
    const uint32_t size = tk_partial_floats(64);
    std::vector<float> chunks(4 * 4 * size);
    for (uint32_t chunk : {2u, 0u, 3u, 1u}) {
      variant.kernels.chunk(&a, chunk, 0, 1, nullptr, chunks.data() + chunk * 4 * size);
    }
    std::vector<float> merged(4 * size);
    reset_partials(64, 4, merged.data());
    for (uint32_t chunk = 0; chunk < 4; ++chunk) {
      variant.kernels.merge(64, 4, merged.data(), chunks.data() + chunk * 4 * size);
    }
    std::vector<float> out(4 * 64);
    for (uint32_t head = 0; head < 4; ++head) {
      CHECK(variant.kernels.finish(64, merged.data() + head * size, out.data() + head * 64));
    }
    INFO(variant.name);
    CHECK(have_same_bits(out, expected));
  }
}

TEST_CASE("keys ahead are the tiles that the rows, then the next rows read") {
  const Sequence sequence({TK_KV_BF16, 64, 3, 0, 3, 1001});
  const Sequence windowed({TK_KV_BF16, 64, 3, 300, 1, 1001});
  const tk_attention a = sequence.attention(600);  // tiles 0 .. 37, and of the next 700 - 300 .. 701
  const tk_attention b = windowed.attention(700);
  const tk_keys_ahead within = keys_ahead(a, 0, {0, 1}, {});
  const tk_keys_ahead across = keys_ahead(a, 1, {0, 1}, {&b, {0, 2}});
  const tk_keys_ahead beyond = keys_ahead(a, 2, {0, 1}, {&b, {0, 2}});
  const tk_keys_ahead at_end = keys_ahead(a, 2, {0, 1}, {});
  const tk_keys_ahead chunk = keys_of_chunk(b, 1, {0, 2});
  const uint32_t first = (700 + 1 - 300) / 16;
  for (uint32_t t = 0; t < TK_CHUNK_TILES; ++t) {
    CHECK(within.keys[t] == tk_kv_tile(&a, 1, t));
    CHECK(across.keys[t] == (t < 38 - 32 ? tk_kv_tile(&a, 2, t) : tk_kv_tile(&b, 0, first + t - 6)));
    const uint32_t tile = first + (48 - 38) + t;
    CHECK(beyond.keys[t] == (tile <= 701 / 16 ? tk_kv_tile(&b, 0, tile) : nullptr));
    CHECK(at_end.keys[t] == nullptr);
    CHECK(chunk.keys[t] == (16 + t >= first ? tk_kv_tile(&b, 1, t) : nullptr));
  }
}

TEST_CASE("blocks behind a sliding window are never read") {
  const DenormalsOff denormals_off;
  for (tk_kv_kind kind : kKinds) {
    Sequence sequence({kind, 64, 3, 64, 2, 600});
    const std::vector<float> expected = attend(attention_kernels(Isa::kScalar), sequence, 500, 20);
    sequence.forget_blocks_before(500 + 1 - 64);
    for (const AttentionVariant& variant : attention_variants()) {
      CHECK(have_same_bits(attend(variant.kernels, sequence, 500, 20), expected));
    }
  }
}

TEST_CASE("slots around the visible keys may hold anything") {
  const DenormalsOff denormals_off;
  const float stale[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f};
  for (tk_kv_kind kind : kKinds) {
    for (uint32_t position : {100u, 301u}) {  // the window then begins at an odd and at an even key
      Sequence sequence({kind, 64, 3, 32, 1, 320});
      const std::vector<float> expected = attend(attention_kernels(Isa::kScalar), sequence, position, 2);
      for (float value : stale) {
        const std::vector<float> row(64, value);
        for (uint32_t i = 0; i < 10; ++i) {
          (void)kv_write(kind, 64, row.data(), row.data(), sequence.tile(position - 32 - i), (position - 32 - i) % 16);
          (void)kv_write(kind, 64, row.data(), row.data(), sequence.tile(position + 2 + i), (position + 2 + i) % 16);
        }
        for (const AttentionVariant& variant : attention_variants()) {
          INFO(variant.name, " kind ", int(kind), " position ", position, " stale ", value);
          CHECK(have_same_bits(attend(variant.kernels, sequence, position, 2), expected));
        }
      }
    }
  }
}

TEST_CASE("the reference against softmax attention in double") {
  const DenormalsOff denormals_off;
  // What the rounding of K, V, q and p allows; outputs are of the order of 0.1 to 2.5.
  const double bounds[] = {0.02, 4e-6, 0.05};
  for (tk_kv_kind kind : kKinds) {
    double worst = 0;
    for (uint32_t window : {0u, 64u}) {
      const Sequence sequence({kind, 64, 2, window, 1, 700});
      for (uint32_t position : {0u, 3u, 100u, 256u, 699u}) {
        const std::vector<float> actual = attend(attention_kernels(Isa::kScalar), sequence, position, 1);
        for (uint32_t head = 0; head < 2; ++head) {
          const std::vector<double> expected = exact_attention(sequence, position, head);
          for (uint32_t d = 0; d < 64; ++d) worst = std::max(worst, std::abs(actual[head * 64 + d] - expected[d]));
        }
      }
    }
    MESSAGE("kind ", int(kind), ": largest error ", worst);
    CHECK(worst < bounds[kind]);
    CHECK(worst > 0);
  }
}

TEST_CASE("what is not finite is reported for its row and stays there") {
  const DenormalsOff denormals_off;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (tk_kv_kind kind : kKinds) {
    for (bool is_key : {true, false}) {
      Sequence sequence({kind, 64, 2, 0, 1, 600});
      std::vector<float> k = sequence.key(290);
      std::vector<float> v = sequence.value(290);
      (is_key ? k : v)[7] = kind == TK_KV_INT8 ? infinity : nan;
      CHECK_FALSE(kv_write(kind, 64, k.data(), v.data(), sequence.tile(290), 290 % 16));
      for (const AttentionVariant& variant : attention_variants()) {
        std::vector<float> scratch(attention_scratch_floats(64, 2, 32));
        std::vector<float> out(32 * 2 * 64);
        const AttentionOutput output = {out.data(), 128, 64};
        const tk_attention a = sequence.attention(280);
        INFO(variant.name, " kind ", int(kind), " key ", is_key);
        // Up to five rows before it share its registers.
        const uint32_t first_bad = attention_rows(variant.kernels, a, {0, 32}, scratch.data(), output);
        CHECK(first_bad <= 10);
        CHECK(first_bad > 4);
        const tk_attention before = sequence.attention(250);
        CHECK(attention_rows(variant.kernels, before, {0, 32}, scratch.data(), output) == 32);
        const tk_attention far = sequence.attention(560);
        CHECK(attention_rows(variant.kernels, far, {0, 4}, scratch.data(), output) == 0);
      }
    }
  }
}

TEST_CASE("a score that is not a number is reported even where it is all that a chunk has") {
  const DenormalsOff denormals_off;
  const std::vector<float> nans(64, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> zeros(64, 0.0f);
  for (tk_kv_kind kind : {TK_KV_BF16, TK_KV_F32}) {
    Sequence sequence({kind, 64, 1, 0, 1, 300});
    CHECK_FALSE(kv_write(kind, 64, nans.data(), zeros.data(), sequence.tile(256), 0));
    for (const AttentionVariant& variant : attention_variants()) {
      std::vector<float> scratch(attention_scratch_floats(64, 1, 1));
      std::vector<float> out(64);
      INFO(variant.name);
      const tk_attention a = sequence.attention(256);
      CHECK(attention_rows(variant.kernels, a, {0, 1}, scratch.data(), {out.data(), 64, 64}) == 0);
    }
  }
}

TEST_CASE("prepared queries report what is not finite") {
  std::vector<uint8_t> out(4 * 64);
  std::vector<float> q(64, 1.0f);
  for (tk_kv_kind kind : kKinds) {
    CHECK(prepare_query(kind, 64, 0.125f, q.data(), out.data()));
    q[63] = std::numeric_limits<float>::quiet_NaN();
    CHECK_FALSE(prepare_query(kind, 64, 0.125f, q.data(), out.data()));
    q[63] = 3.4e38f;
    CHECK(prepare_query(kind, 64, 0.125f, q.data(), out.data()));
    CHECK_FALSE(prepare_query(kind, 64, 2.0f, q.data(), out.data()));
    q[63] = 1.0f;
  }
}

}  // namespace tandem::kernels
