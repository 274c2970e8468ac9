#include "compute/device/conformance_cases.h"

#include <utility>

#include "compute/device/conformance_case_maker.h"

namespace tandem::device {
namespace {

using tensor::DType;

constexpr FileType kQ4 = {TD_DTYPE_Q4_0, DType::kQ4_0};
constexpr FileType kQ6 = {TD_DTYPE_Q6_K, DType::kQ6_K};
constexpr FileType kBF16 = {TD_DTYPE_BF16, DType::kBF16};
constexpr FileType kF32 = {TD_DTYPE_F32, DType::kF32};
constexpr td_format kFormats[] = {TD_F32, TD_BF16, TD_Q8};

const char* name_of(td_format format) { return format == TD_F32 ? "f32" : format == TD_BF16 ? "bf16" : "q8"; }

using Cases = std::vector<ConformanceCase>;

CaseMaker maker(const Cases& cases, std::string name) {
  return CaseMaker(std::move(name), 1000 + static_cast<uint32_t>(cases.size()));
}

// Rows in a form of the device's own are compared through a linear that reads them.
void compare_through_linear(CaseMaker& m, td_operand quantised) {
  const FileType type = quantised.format == TD_BF16 ? kBF16 : kQ4;
  LinearShape shape{48, quantised.columns};
  shape.activation = static_cast<td_format>(quantised.format);
  m.op(TD_OP_LINEAR, {quantised}, m.output(48), {m.linear(type, shape, {48})});
}

void add_row_steps(CaseMaker& m) {
  for (const uint32_t num_tokens : {1u, 7u}) m.step(num_tokens);
}

void add_embeddings(Cases& cases) {
  for (const FileType& type : file_types()) {
    CaseMaker m = maker(cases, std::string("embed ") + tensor::dtype_name(type.tensor_dtype));
    m.op(TD_OP_EMBED, {}, m.output(256), {m.table(type, 37, 256)});
    for (int32_t& id : m.step(9).token_ids) id = static_cast<int32_t>(m.below(37));
    m.editable().steps[0].token_ids[3] = 36;
    cases.push_back(m.take());
  }
}

void add_row_ops(Cases& cases) {
  for (const uint32_t columns : {1u, 33u, 64u, 576u}) {
    const std::string suffix = " of " + std::to_string(columns);
    CaseMaker norm = maker(cases, "rms_norm" + suffix);
    norm.op(TD_OP_RMS_NORM, {norm.input(0, columns)}, norm.output(columns), {norm.vector(columns)});
    add_row_steps(norm);
    cases.push_back(norm.take());
    for (const td_op_kind kind : {TD_OP_SILU_MUL, TD_OP_ADD}) {
      CaseMaker m = maker(cases, (kind == TD_OP_ADD ? "add" : "silu_mul") + suffix);
      m.op(kind, {m.input(0, columns), m.input(1, columns)}, m.output(columns));
      add_row_steps(m);
      cases.push_back(m.take());
    }
    CaseMaker best = maker(cases, "argmax" + suffix);
    best.op(TD_OP_ARGMAX, {best.input(0, columns)}, best.output(1, TD_I32));
    add_row_steps(best);
    std::vector<float>& ties = best.editable().steps[1].inputs[0];
    for (size_t i = 0; i < ties.size(); ++i) ties[i] = static_cast<float>(i % 3);
    cases.push_back(best.take());
  }
  for (const td_format format : {TD_BF16, TD_Q8}) {
    const std::string suffix = std::string(" to ") + name_of(format);
    CaseMaker norm = maker(cases, "rms_norm" + suffix);
    const td_operand normed = norm.arena(format, 256);
    norm.op(TD_OP_RMS_NORM, {norm.input(0, 256)}, normed, {norm.vector(256)});
    compare_through_linear(norm, normed);
    add_row_steps(norm);
    cases.push_back(norm.take());
    CaseMaker m = maker(cases, "quantize" + suffix);
    const td_operand quantised = m.arena(format, 256);
    m.op(TD_OP_QUANTIZE, {m.input(0, 256)}, quantised);
    compare_through_linear(m, quantised);
    add_row_steps(m);
    m.step(5).inputs[0].assign(size_t{5} * 256, 0.0f);
    cases.push_back(m.take());
  }
  CaseMaker gather = maker(cases, "gather_rows");
  gather.op(TD_OP_GATHER_ROWS, {gather.input(0, 40)}, gather.output(40, TD_F32, TD_ROWS_OUTPUTS));
  gather.step(9).output_rows = {8, 0, 3, 3};
  cases.push_back(gather.take());
}

void add_slices(Cases& cases) {
  // Views as the passes make them: q, k and v are columns of one value.
  CaseMaker m = maker(cases, "columns of wider rows");
  const td_operand x = m.input(0, 64), qkv = m.arena(TD_F32, 160);
  LinearShape shape{96, 64};
  m.op(TD_OP_LINEAR, {x}, CaseMaker::slice(qkv, 0, 96), {m.linear(kQ4, shape, {64, 32})});
  shape.n = 64;
  m.op(TD_OP_LINEAR, {x}, CaseMaker::slice(qkv, 96, 64), {m.linear(kF32, shape, {64})});
  const td_operand sum = m.arena(TD_F32, 64);
  m.op(TD_OP_ADD, {CaseMaker::slice(qkv, 32, 64), CaseMaker::slice(qkv, 96, 64)}, sum);
  m.op(TD_OP_LINEAR, {CaseMaker::slice(qkv, 7, 64), sum}, m.output(64), {m.linear(kF32, {64, 64}, {64})});
  add_row_steps(m);
  cases.push_back(m.take());
}

td_operand as_input(CaseMaker& m, td_operand x, td_format format) {
  if (format == TD_F32) return x;
  const td_operand quantised = m.arena(format, x.columns);
  m.op(TD_OP_QUANTIZE, {x}, quantised);
  return quantised;
}

void add_linears(Cases& cases) {
  for (const FileType& type : file_types()) {
    for (const td_format format : kFormats) {
      if (format == TD_Q8 && !tensor::is_quantised(type.tensor_dtype)) continue;
      for (const uint32_t n : {1u, 70u}) {
        CaseMaker m = maker(cases, std::string("linear ") + tensor::dtype_name(type.tensor_dtype) + " by " +
                                       name_of(format) + " to " + std::to_string(n));
        LinearShape shape{n, 256};
        shape.activation = format;
        shape.segments = n == 1 ? 1 : 4;
        m.op(TD_OP_LINEAR, {as_input(m, m.input(0, 256), format)}, m.output(n), {m.linear(type, shape, {n})});
        for (const uint32_t num_tokens : {1u, 3u, 67u}) m.step(num_tokens);
        cases.push_back(m.take());
      }
    }
  }
  for (const td_quantization quantization : {TD_QUANTIZE_W8, TD_QUANTIZE_W4}) {
    for (const FileType& type : {kBF16, kF32}) {
      CaseMaker m = maker(cases, std::string("linear ") + tensor::dtype_name(type.tensor_dtype) + " packed to w" +
                                     (quantization == TD_QUANTIZE_W8 ? "8" : "4"));
      LinearShape shape{40, 96, 1, TD_Q8, quantization};
      m.op(TD_OP_LINEAR, {as_input(m, m.input(0, 96), TD_Q8)}, m.output(40), {m.linear(type, shape, {40})});
      add_row_steps(m);
      cases.push_back(m.take());
    }
  }
  for (const uint32_t k : {1u, 33u, 40u}) {
    for (const td_format format : {TD_F32, TD_BF16}) {
      CaseMaker m = maker(cases, std::string("linear of ") + std::to_string(k) + " by " + name_of(format));
      LinearShape shape{5, k};
      shape.activation = format;
      m.op(TD_OP_LINEAR, {as_input(m, m.input(0, k), format)}, m.output(5), {m.linear(kBF16, shape, {5})});
      add_row_steps(m);
      cases.push_back(m.take());
    }
  }
}

void add_epilogues(Cases& cases) {
  for (const td_format in_format : kFormats) {
    for (const uint32_t segments : {1u, 2u, 16u}) {
      CaseMaker m = maker(cases, std::string("linear with bias and residual, ") + name_of(in_format) + ", " +
                                     std::to_string(segments) + " segments");
      LinearShape shape{70, 512, segments, in_format};
      const uint32_t matrix = m.linear(kQ4, shape, {33, 37});
      m.op(TD_OP_LINEAR, {as_input(m, m.input(0, 512), in_format), m.input(1, 70)}, m.output(70),
           {matrix, m.vector(70)});
      for (const uint32_t num_tokens : {2u, 70u}) m.step(num_tokens);
      cases.push_back(m.take());
    }
    for (const td_format out_format : kFormats) {
      CaseMaker m = maker(cases, std::string("gated linear, ") + name_of(in_format) + " to " + name_of(out_format));
      LinearShape shape{out_format == TD_F32 ? 70u : 96u, 256, 1, in_format};
      const td_operand x = as_input(m, m.input(0, 256), in_format);
      const uint32_t matrix = m.gated(kQ6, shape);
      const td_operand out = out_format == TD_F32 ? m.output(shape.n) : m.arena(out_format, shape.n);
      m.op(TD_OP_LINEAR, {x}, out, {matrix}).gated = 1;
      if (out_format != TD_F32) compare_through_linear(m, out);
      for (const uint32_t num_tokens : {1u, 66u}) m.step(num_tokens);
      cases.push_back(m.take());
    }
  }
}

constexpr uint32_t kHeads = 4, kKvHeads = 2;

void set_heads(td_op& op, uint32_t head_dim) {
  op.num_heads = kHeads;
  op.num_kv_heads = kKvHeads;
  op.head_dim = op.rotary_dim = head_dim;
  op.scale = 0.2f;
}

void add_rope(Cases& cases) {
  for (const uint32_t interleaved : {0u, 1u}) {
    for (const uint32_t rotary_dim : {32u, 12u}) {
      CaseMaker m = maker(cases, std::string("head_norm and rope, ") + (interleaved != 0 ? "adjacent" : "halves") +
                                     ", " + std::to_string(rotary_dim) + " of 32");
      m.editable().max_positions = 64;
      const td_operand normed = m.arena(TD_F32, kHeads * 32);
      set_heads(m.op(TD_OP_HEAD_NORM, {m.input(0, kHeads * 32)}, normed, {m.vector(32)}), 32);
      td_op& rope = m.op(TD_OP_ROPE, {normed}, m.output(kHeads * 32), {m.vector(64, rotary_dim)});
      set_heads(rope, 32);
      rope.rotary_dim = rotary_dim;
      rope.rope_interleaved = interleaved;
      // Blocks are not touched by rope, but every table must cover its positions.
      m.editable().kv.block_tokens = 64;
      m.step(9).sequences = {{4, 0, {0}}, {5, 59, {1}}};
      cases.push_back(m.take());
    }
  }
}

struct KvShape {
  td_kv_kind kind;
  uint32_t head_dim;
  uint32_t window = 0;
  td_format out_format = TD_F32;
  bool is_fused = false;  // TD_OP_ROPE_KV_WRITE
  bool has_norms = false;
};

// Steps that meet all ways through attention: a long prefill, one row against a long context (which may be cut by
// chunks of 256 keys), several sequences at once, a context continued in copied blocks, and a chunk in the middle. A
// window of less than the context hides whole chunks at its start.
void add_kv_steps(CaseMaker& m, bool is_long) {
  constexpr uint32_t kContextBlocks = 40, kFirstCopy = 92;
  std::vector<uint32_t> a, copy_table;
  std::vector<td_block_copy> copies;
  for (uint32_t i = 0; i < kContextBlocks; ++i) {
    a.push_back((3 + i * 7) % 83);  // scattered
    copy_table.push_back(kFirstCopy + i);
    copies.push_back({a[i], kFirstCopy + i});
  }
  const std::vector<uint32_t> b = {90, 91};
  m.step(300).sequences = {{300, 0, a}};
  uint32_t length = 300;
  if (is_long) {
    m.step(235).sequences = {{235, length, a}};
    length += 235;
  }
  m.step(1).sequences = {{1, length, a}};
  m.step(8).sequences = {{1, length + 1, a}, {6, 0, b}, {1, length + 2, a}};
  CaseStep& after_copy = m.step(3);
  after_copy.copies = copies;
  after_copy.sequences = {{2, length + 3, copy_table}, {1, 6, b}};
  m.step(40).sequences = {{33, length - 20, a}, {7, 7, b}};
}

void add_attention_case(Cases& cases, const KvShape& shape) {
  const char* kind = shape.kind == TD_KV_BF16 ? "bf16" : shape.kind == TD_KV_F32 ? "f32" : "int8";
  CaseMaker m = maker(cases, std::string(shape.is_fused ? "rope_kv_write" : "kv_write") +
                                 (shape.has_norms ? " with norms" : "") + " and attention, " + kind + " KV, heads of " +
                                 std::to_string(shape.head_dim) + ", window " + std::to_string(shape.window) + ", to " +
                                 name_of(shape.out_format));
  ConformanceCase& test_case = m.editable();
  test_case.kv.kind = shape.kind;
  test_case.kv.block_tokens = 16;
  test_case.kv.num_layers = 2;
  test_case.kv.num_kv_heads = kKvHeads;
  test_case.kv.head_dim = shape.head_dim;
  test_case.num_blocks = 132;
  test_case.max_positions = 640;
  const uint32_t q_columns = kHeads * shape.head_dim, kv_columns = kKvHeads * shape.head_dim;
  const td_operand q = m.input(0, q_columns), k = m.input(1, kv_columns), v = m.input(2, kv_columns);
  td_operand queries = q;
  if (shape.is_fused) {
    const uint32_t table = m.vector(test_case.max_positions, shape.head_dim);
    const uint32_t q_norm = shape.has_norms ? m.vector(shape.head_dim) : TD_NO_WEIGHT;
    const uint32_t k_norm = shape.has_norms ? m.vector(shape.head_dim) : TD_NO_WEIGHT;
    queries = m.arena(TD_F32, q_columns);
    td_op& write = m.op(TD_OP_ROPE_KV_WRITE, {q, k, v}, queries, {table, q_norm, k_norm});
    set_heads(write, shape.head_dim);
    write.layer = 1;
  } else {
    td_op& write = m.op(TD_OP_KV_WRITE, {k, v}, {});
    set_heads(write, shape.head_dim);
    write.layer = 1;
  }
  const td_operand out =
      shape.out_format == TD_F32 ? m.output(q_columns) : m.arena(shape.out_format, q_columns);
  td_op& attention = m.op(TD_OP_ATTENTION, {queries}, out);
  set_heads(attention, shape.head_dim);
  attention.layer = 1;
  attention.window = shape.window;
  if (shape.out_format != TD_F32) compare_through_linear(m, out);
  add_kv_steps(m, shape.window > 256);
  cases.push_back(m.take());
}

void add_attention(Cases& cases) {
  for (const td_kv_kind kind : {TD_KV_BF16, TD_KV_F32, TD_KV_INT8}) {
    for (const uint32_t window : {0u, 7u, 270u}) add_attention_case(cases, {kind, 32, window});
    for (const uint32_t head_dim : {64u, 128u}) add_attention_case(cases, {kind, head_dim});
    for (const td_format format : {TD_BF16, TD_Q8}) add_attention_case(cases, {kind, 64, 0, format});
    for (const bool has_norms : {false, true}) add_attention_case(cases, {kind, 64, 0, TD_F32, true, has_norms});
    if (kind != TD_KV_INT8) add_attention_case(cases, {kind, 80});
  }
}

}  // namespace

std::vector<ConformanceCase> conformance_cases() {
  Cases cases;
  add_embeddings(cases);
  add_row_ops(cases);
  add_slices(cases);
  add_linears(cases);
  add_epilogues(cases);
  add_rope(cases);
  add_attention(cases);
  return cases;
}

}  // namespace tandem::device
