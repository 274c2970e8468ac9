// What a plan promises beyond its results: no allocation once it runs, faults that stay with their rows, a word about
// wrong ops.

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "compute/device/device.h"
#include "plugins/cpu/allocation_count_for_test.h"
#include "plugins/cpu/cpu_plugin.h"

namespace tandem::cpu {
namespace {

template <class T>
T need(Result<T> result) {
  REQUIRE_MESSAGE(static_cast<bool>(result), (result ? "" : result.error().message));
  return std::move(result).value();
}

device::Device open_cpu(uint32_t num_threads) {
  const device::Plugin plugin = need(device::Plugin::from_entry(tandem_plugin_cpu));
  return need(device::Device::open(plugin, 0, {num_threads, 0, ""}));
}

constexpr uint32_t kHeads = 4, kKvHeads = 2, kHeadDim = 32, kHidden = kHeads * kHeadDim, kVocab = 50;
constexpr uint32_t kMaxTokens = 96, kMaxPositions = 600, kNumBlocks = 80;

// One attention layer from token ids to a row of kHidden per token: embed, norm + quantise, q/k/v, rope + KV write,
// attention, output linear with residual. Every kind of op that a model's step is made of.
class SmallLayer {
 public:
  explicit SmallLayer(uint32_t num_threads)
      : device_(open_cpu(num_threads)), stream_(need(device_.create_stream())), plan_(make_plan()) {}

  // Embedding row of a token, to be spoiled.
  float* embedding(uint32_t token) { return table_.data() + size_t{token} * kHidden; }

  Status launch(const std::vector<td_sequence>& sequences, const std::vector<int32_t>& tokens) {
    return plan_.launch(stream_, bindings_of(sequences, tokens, arena_, out));
  }
  // Op by op, and a whole launch of `others` between any two, which has its own arena and output.
  Status launch_parts(const std::vector<td_sequence>& sequences, const std::vector<int32_t>& tokens,
                      const std::vector<td_sequence>& others, const std::vector<int32_t>& other_tokens) {
    const td_bindings bindings = bindings_of(sequences, tokens, arena_, out);
    const td_bindings nested = bindings_of(others, other_tokens, other_arena_, other_out);
    for (uint32_t op = 0; op < ops_.size(); ++op) {
      TRY(plan_.launch_part(stream_, op, op + 1, bindings));
      TRY(plan_.launch(stream_, nested));
    }
    return plan_.launch_part(stream_, static_cast<uint32_t>(ops_.size()), static_cast<uint32_t>(ops_.size()), bindings);
  }
  Status launch_part(uint32_t begin_op, uint32_t end_op) {
    return plan_.launch_part(stream_, begin_op, end_op, bindings_of({}, {}, arena_, out));
  }

  td_bindings bindings_of(const std::vector<td_sequence>& sequences, const std::vector<int32_t>& tokens,
                          const device::Buffer& arena, std::vector<float>& result) {
    td_bindings bindings{};
    bindings.arena = arena.address();
    bindings.kv = kv_.address();
    bindings.external[0] = result.data();
    bindings.num_tokens = static_cast<uint32_t>(tokens.size());
    bindings.num_sequences = static_cast<uint32_t>(sequences.size());
    bindings.token_ids = tokens.data();
    bindings.sequences = sequences.data();
    bindings.row_faults = faults.data();
    return bindings;
  }

  std::vector<float> out = std::vector<float>(size_t{kMaxTokens} * kHidden);
  std::vector<float> other_out = std::vector<float>(size_t{kMaxTokens} * kHidden);
  std::vector<uint8_t> faults = std::vector<uint8_t>(kMaxTokens);

 private:
  uint32_t add_weight(td_weight_use use, std::vector<float>& values, uint32_t n, uint32_t k, bool is_quantised) {
    values.resize(size_t{n} * k);
    for (float& value : values) {
      seed_ = seed_ * 1664525 + 1013904223;
      value = static_cast<float>(seed_ >> 8) / 16777216.0f - 0.5f;
    }
    parts_.push_back(std::make_unique<td_weight_part>(td_weight_part{TD_DTYPE_F32, n, values.data()}));
    td_weight weight{};
    weight.desc.use = use;
    weight.desc.num_parts = 1;
    weight.desc.parts = parts_.back().get();
    weight.desc.n = n;
    weight.desc.k = k;
    weight.desc.segments = 1;
    weight.desc.activation = is_quantised ? TD_Q8 : TD_F32;
    weight.desc.quantization = is_quantised ? TD_QUANTIZE_W8 : TD_QUANTIZE_NONE;
    if (use == TD_WEIGHT_ROWS) {
      weight.address = values.data();  // read in place, so that a test can change it
    } else {
      weight.size_bytes = need(device_.weight_pack_size(weight.desc));
      buffers_.push_back(need(device_.alloc(weight.size_bytes)));
      REQUIRE(static_cast<bool>(device_.weight_pack(weight.desc, buffers_.back().address())));
      weight.address = buffers_.back().address();
    }
    weights_.push_back(weight);
    return static_cast<uint32_t>(weights_.size() - 1);
  }

  td_operand arena(td_format format, uint32_t columns) {
    td_operand operand{};
    operand.space = TD_ARENA;
    operand.format = format;
    operand.columns = operand.columns_total = columns;
    operand.row_bytes = device_.row_bytes(format, columns);
    operand.offset = arena_bytes_;
    arena_bytes_ += (kMaxTokens * operand.row_bytes + 63) / 64 * 64;
    return operand;
  }

  void add_op(td_op_kind kind, std::initializer_list<td_operand> in, td_operand out_operand,
              std::initializer_list<uint32_t> weights) {
    td_op op{};
    op.kind = kind;
    std::copy(in.begin(), in.end(), op.in);
    op.out[0] = out_operand;
    std::fill_n(op.weight, TD_MAX_OPERANDS, TD_NO_WEIGHT);
    std::copy(weights.begin(), weights.end(), op.weight);
    op.num_heads = kHeads, op.num_kv_heads = kKvHeads, op.head_dim = op.rotary_dim = kHeadDim;
    op.eps = 1e-5f, op.scale = 0.17f;
    ops_.push_back(op);
  }

  device::DevicePlan make_plan() {
    constexpr uint32_t kQkv = kHidden + 2 * kKvHeads * kHeadDim;
    const uint32_t embed = add_weight(TD_WEIGHT_ROWS, table_, kVocab, kHidden, false);
    const uint32_t norm = add_weight(TD_WEIGHT_VECTOR, norm_, kHidden, 1, false);
    const uint32_t qkv_weight = add_weight(TD_WEIGHT_LINEAR, qkv_, kQkv, kHidden, true);
    const uint32_t rope = add_weight(TD_WEIGHT_VECTOR, rope_, kMaxPositions, kHeadDim, false);
    const uint32_t o_weight = add_weight(TD_WEIGHT_LINEAR, o_, kHidden, kHidden, true);
    const td_operand x = arena(TD_F32, kHidden), normed = arena(TD_Q8, kHidden), qkv = arena(TD_F32, kQkv);
    const td_operand context = arena(TD_Q8, kHidden);
    td_operand q = qkv, k = qkv, v = qkv;
    q.columns = kHidden;
    k.columns = v.columns = kKvHeads * kHeadDim;
    k.column_begin = kHidden;
    v.column_begin = kHidden + k.columns;
    td_operand result{};
    result.space = TD_EXTERNAL;
    result.columns = result.columns_total = kHidden;
    result.row_bytes = device_.row_bytes(TD_F32, kHidden);
    add_op(TD_OP_EMBED, {}, x, {embed});
    add_op(TD_OP_RMS_NORM, {x}, normed, {norm});
    add_op(TD_OP_LINEAR, {normed}, qkv, {qkv_weight});
    add_op(TD_OP_ROPE_KV_WRITE, {q, k, v}, q, {rope});
    add_op(TD_OP_ATTENTION, {q}, context, {});
    add_op(TD_OP_LINEAR, {context, x}, result, {o_weight});

    td_plan_desc desc{};
    desc.ops = ops_.data(), desc.num_ops = static_cast<uint32_t>(ops_.size());
    desc.weights = weights_.data(), desc.num_weights = static_cast<uint32_t>(weights_.size());
    desc.arena_bytes = arena_bytes_;
    desc.max_tokens = kMaxTokens, desc.max_outputs = 1, desc.max_sequences = 8, desc.max_positions = kMaxPositions;
    desc.kv = {TD_KV_BF16, 16, 1, kKvHeads, kHeadDim, 0, 0, 0, 0};
    REQUIRE(static_cast<bool>(device_.fill_kv_layout(desc.kv)));
    arena_ = need(device_.alloc(arena_bytes_));
    other_arena_ = need(device_.alloc(arena_bytes_));
    kv_ = need(device_.alloc(kNumBlocks * desc.kv.block_stride));
    return need(device_.create_plan(desc));
  }

  uint32_t seed_ = 1;
  uint64_t arena_bytes_ = 0;
  std::vector<float> table_, norm_, qkv_, rope_, o_;
  std::vector<std::unique_ptr<td_weight_part>> parts_;
  std::vector<td_weight> weights_;
  std::vector<td_op> ops_;
  device::Device device_;
  std::vector<device::Buffer> buffers_;
  device::Buffer arena_, other_arena_, kv_;
  device::Stream stream_;
  device::DevicePlan plan_;
};

std::vector<uint32_t> blocks_from(uint32_t first, uint32_t count) {
  std::vector<uint32_t> blocks;
  for (uint32_t i = 0; i < count; ++i) blocks.push_back(first + i);
  return blocks;
}

std::vector<int32_t> tokens_of(uint32_t count, uint32_t start) {
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>((start + i * 7) % 40));
  return tokens;
}

TEST_CASE("allocations are counted") {
  const uint64_t before = num_allocations();
  const std::vector<int> one(1000, 1);
  CHECK(one[999] == 1);
  CHECK(num_allocations() == before + 1);
}

TEST_CASE("parts of a plan, with other launches in between, give the bits of one launch") {
  const std::vector<uint32_t> a = blocks_from(0, 38), b = blocks_from(38, 38);
  const std::vector<std::vector<td_sequence>> steps = {
      {{0, 96, 0, 38, a.data()}}, {{0, 30, 96, 38, a.data()}}, {{0, 1, 126, 38, a.data()}}};
  const std::vector<std::vector<td_sequence>> others = {
      {{0, 64, 0, 38, b.data()}}, {{0, 1, 64, 38, b.data()}}, {{0, 3, 65, 38, b.data()}}};
  for (const uint32_t num_threads : {1u, 3u}) {
    SmallLayer whole(num_threads), parts(num_threads);
    const auto rows = [](const std::vector<float>& all, const std::vector<int32_t>& tokens) {
      return std::vector<float>(all.begin(), all.begin() + static_cast<ptrdiff_t>(tokens.size() * kHidden));
    };
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto tokens = tokens_of(steps[i].back().num_rows, 3), more = tokens_of(others[i].back().num_rows, 5);
      REQUIRE(static_cast<bool>(whole.launch(steps[i], tokens)));
      const std::vector<float> expected = rows(whole.out, tokens);
      REQUIRE(static_cast<bool>(whole.launch(others[i], more)));
      REQUIRE(static_cast<bool>(parts.launch_parts(steps[i], tokens, others[i], more)));
      CHECK(rows(parts.out, tokens) == expected);
      CHECK(rows(parts.other_out, more) == rows(whole.out, more));
    }
  }
}

TEST_CASE("a part that the plan does not have is refused") {
  SmallLayer layer(1);
  CHECK(static_cast<bool>(layer.launch_part(6, 6)));
  CHECK(!layer.launch_part(3, 2));
  CHECK(!layer.launch_part(0, 7));
}

TEST_CASE("a launch allocates nothing, whatever it holds and however many threads run it") {
  const std::vector<uint32_t> a = blocks_from(0, 38), b = blocks_from(38, 6);
  for (const uint32_t num_threads : {1u, 2u, 3u, 4u}) {
    CAPTURE(num_threads);
    SmallLayer layer(num_threads);
    // Made before counting: prefill, one row against a long context (cut by chunks), several sequences, nothing.
    const std::vector<std::vector<td_sequence>> steps = {
        {{0, 96, 0, 38, a.data()}},
        {{0, 1, 590, 38, a.data()}},
        {{0, 1, 96, 38, a.data()}, {1, 80, 0, 6, b.data()}, {81, 1, 400, 38, a.data()}},
        {{0, 4, 300, 38, a.data()}, {4, 5, 80, 6, b.data()}},
        {},
    };
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& step : steps) {
      tokens.push_back(tokens_of(step.empty() ? 0 : step.back().row_begin + step.back().num_rows, 3));
    }
    const uint64_t before = num_allocations();
    bool is_done = true;
    for (int round = 0; round < 5; ++round) {
      for (size_t i = 0; i < steps.size(); ++i) is_done &= static_cast<bool>(layer.launch(steps[i], tokens[i]));
    }
    const uint64_t during = num_allocations() - before;
    CHECK(is_done);
    CHECK(during == 0);
  }
}

TEST_CASE("a value that is not finite marks its own sequence and changes no bit of the others") {
  const std::vector<uint32_t> a = blocks_from(0, 4), b = blocks_from(10, 4), c = blocks_from(20, 4);
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const uint32_t num_threads : {1u, 3u}) {
      SmallLayer layer(num_threads);
      const std::vector<td_sequence> sequences = {
          {0, 5, 0, 4, a.data()}, {5, 7, 0, 4, b.data()}, {12, 40, 0, 4, c.data()}};
      std::vector<int32_t> tokens = tokens_of(52, 5);
      tokens[8] = 45;  // in the middle of b
      REQUIRE(static_cast<bool>(layer.launch(sequences, tokens)));
      for (const uint8_t fault : layer.faults) CHECK(fault == 0);
      const std::vector<float> clean = layer.out;
      layer.embedding(45)[3] = poison;
      REQUIRE(static_cast<bool>(layer.launch(sequences, tokens)));
      CHECK(layer.faults[8] == 1);
      for (uint32_t row = 0; row < 52; ++row) {
        const bool is_of_b = row >= 5 && row < 12;
        // Rows of b before the poisoned one do not see it.
        const bool is_hit = row >= 8 && row < 12;
        CAPTURE(row);
        if (!is_of_b) CHECK(layer.faults[row] == 0);
        if (is_hit) continue;
        for (uint32_t i = 0; i < kHidden; ++i) {
          const size_t at = size_t{row} * kHidden + i;
          REQUIRE(std::bit_cast<uint32_t>(layer.out[at]) == std::bit_cast<uint32_t>(clean[at]));
        }
      }
    }
  }
}

TEST_CASE("a later step of a poisoned context is marked too; its blocks do no harm once written anew") {
  const std::vector<uint32_t> a = blocks_from(0, 4);
  SmallLayer layer(2);
  std::vector<int32_t> tokens = tokens_of(20, 1);
  const std::vector<td_sequence> prefill = {{0, 20, 0, 4, a.data()}};
  REQUIRE(static_cast<bool>(layer.launch(prefill, tokens)));
  const std::vector<float> clean = layer.out;
  const float healthy = layer.embedding(45)[0];
  layer.embedding(45)[0] = std::numeric_limits<float>::quiet_NaN();
  tokens[2] = 45;
  REQUIRE(static_cast<bool>(layer.launch(prefill, tokens)));
  const std::vector<td_sequence> next = {{0, 1, 20, 4, a.data()}};
  layer.faults.assign(kMaxTokens, 0);
  REQUIRE(static_cast<bool>(layer.launch(next, {7})));
  CHECK(layer.faults[0] == 1);
  layer.embedding(45)[0] = healthy;
  tokens = tokens_of(20, 1);
  layer.faults.assign(kMaxTokens, 0);
  REQUIRE(static_cast<bool>(layer.launch(prefill, tokens)));
  CHECK(layer.faults[0] == 0);
  CHECK(std::equal(clean.begin(), clean.begin() + 20 * kHidden, layer.out.begin()));
}

TEST_CASE("ops without what they need are refused when the plan is made, with the op's number") {
  const device::Plugin plugin = need(device::Plugin::from_entry(tandem_plugin_cpu));
  device::Device device = need(device::Device::open(plugin, 0, {1, 0, ""}));
  const auto complaint = [&](const td_op& op) {
    td_plan_desc desc{};
    desc.ops = &op, desc.num_ops = 1, desc.max_tokens = 4, desc.arena_bytes = 64;
    auto plan = device.create_plan(desc);
    return plan ? std::string() : plan.error().message;
  };
  const auto operand = [](uint32_t space, uint32_t columns) {
    td_operand made{};
    made.space = space, made.columns = made.columns_total = columns, made.row_bytes = 4 * columns;
    return made;
  };
  td_op op{};
  op.kind = TD_OP_ADD;
  CHECK(complaint(op) == "op 0: input 0 is missing");
  op.in[0] = op.in[1] = operand(TD_EXTERNAL, 8);
  CHECK(complaint(op) == "op 0: the output is missing");
  op.out[0] = operand(TD_ARENA, 8);
  CHECK(complaint(op) == "op 0: an operand reaches beyond the arena");
  op.out[0] = operand(TD_EXTERNAL, 9);
  CHECK(complaint(op) == "op 0: input and output of a row op differ in columns");
  op.out[0] = operand(TD_EXTERNAL, 8);
  CHECK(complaint(op).empty());
  op.out[0].column_begin = 1;
  CHECK(complaint(op) == "op 0: an operand's columns reach beyond its rows");
  op.out[0] = operand(TD_EXTERNAL, 8);
  op.out[0].slot = 4;
  CHECK(complaint(op) == "op 0: an operand names an external slot that does not exist");
  op.out[0].slot = 0;
  op.out[0].row_bytes = 31;
  CHECK(complaint(op) == "op 0: an operand's rows are shorter than its columns");
  op.out[0].row_bytes = 32;
  op.kind = TD_OP_RMS_NORM;
  CHECK(complaint(op) == "op 0: weight 0 is missing");
  op.kind = 77;
  CHECK(complaint(op) == "op 0: unknown op 77");
}

TEST_CASE("devices and instruction sets that are not there are refused by name") {
  const device::Plugin plugin = need(device::Plugin::from_entry(tandem_plugin_cpu));
  CHECK(device::Device::open(plugin, 1, {1, 0, ""}).error().message.find("number 0") != std::string::npos);
  CHECK(device::Device::open(plugin, 0, {1, 0, "sse9"}).error().message.find("'sse9'; there are scalar, avx2") !=
        std::string::npos);
  CHECK(device::Device::open(plugin, 0, {100'000, 0, ""}).error().message == "100000 threads are more than 1024");
  device::Device device = need(device::Device::open(plugin, 0, {2, 0, "scalar"}));
  CHECK(std::string(device.properties().name) == "cpu/scalar");
  CHECK(device.properties().num_threads == 2);
  CHECK(device.properties().memory_bytes > 0);
  CHECK(device.alloc(~uint64_t{0} - 10).error().code == ErrorCode::kExhausted);
  CHECK(static_cast<bool>(device.alloc(0)));
  td_kv_layout layout{};
  layout.kind = TD_KV_INT8, layout.block_tokens = 16, layout.num_layers = layout.num_kv_heads = 1, layout.head_dim = 80;
  CHECK(device.fill_kv_layout(layout).error().message.find("head_dim 80") != std::string::npos);
  layout.head_dim = 96, layout.block_tokens = 20;
  CHECK(device.fill_kv_layout(layout).error().message.find("multiple of 16") != std::string::npos);
}

TEST_CASE("weights that cannot be packed are refused with the reason") {
  const device::Plugin plugin = need(device::Plugin::from_entry(tandem_plugin_cpu));
  device::Device device = need(device::Device::open(plugin, 0, {1, 0, ""}));
  const td_weight_part parts[2] = {{TD_DTYPE_Q4_0, 8, nullptr}, {TD_DTYPE_Q6_K, 8, nullptr}};
  const auto complaint = [&](td_weight_use use, uint32_t num_parts, uint32_t n, uint32_t k, uint32_t segments = 1) {
    td_weight_desc desc{};
    desc.use = use, desc.num_parts = num_parts, desc.parts = parts, desc.n = n, desc.k = k;
    desc.segments = segments, desc.activation = TD_Q8;
    const auto size = device.weight_pack_size(desc);
    return size ? std::string() : size.error().message;
  };
  CHECK(complaint(TD_WEIGHT_LINEAR, 1, 8, 64).empty());
  CHECK(complaint(TD_WEIGHT_LINEAR, 0, 8, 64) == "a weight without parts");
  CHECK(complaint(TD_WEIGHT_ROWS, 0, 8, 64) == "a weight without parts");
  CHECK(complaint(TD_WEIGHT_LINEAR, 1, 9, 64) == "a weight's parts do not have its number of rows");
  CHECK(complaint(TD_WEIGHT_VECTOR, 1, 7, 64) == "a weight's parts do not have its number of rows");
  CHECK(complaint(TD_WEIGHT_LINEAR, 1, 8, 40) == "rows of 40 are no whole blocks of Q4_0");
  CHECK(complaint(TD_WEIGHT_LINEAR, 2, 16, 256) == "the parts of one weight need one packed format");
  CHECK(complaint(TD_WEIGHT_ROWS, 2, 16, 256) == "the parts of a table need one type");
  CHECK(complaint(TD_WEIGHT_LINEAR, 1, 8, 64, 2).empty());
  for (const uint32_t segments : {0u, 3u, 4u, 32u}) {
    CHECK(complaint(TD_WEIGHT_LINEAR, 1, 8, 64, segments) ==
          "rows of 64 cannot be cut into " + std::to_string(segments) + " segments");
  }
}

TEST_CASE("the plug-in as a module that is loaded by path is the one that is linked in") {
  const device::Plugin linked = need(device::Plugin::from_entry(tandem_plugin_cpu));
  const device::Plugin loaded = need(device::Plugin::load(TANDEM_CPU_MODULE, "cpu"));
  CHECK(&loaded.table() != &linked.table());
  device::Device a = need(device::Device::open(linked, 0, {1, 0, ""}));
  device::Device b = need(device::Device::open(loaded, 0, {1, 0, ""}));
  CHECK(a.fingerprint().value() == b.fingerprint().value());
  const auto wrong = device::Plugin::load(TANDEM_CPU_MODULE, "gpu");
  REQUIRE(!wrong);
  CHECK(wrong.error().code == ErrorCode::kInvalidArgument);
  CHECK(wrong.error().message.find("does not export tandem_plugin_gpu") != std::string::npos);
}

}  // namespace
}  // namespace tandem::cpu
