#include "compute/device/conformance_case_maker.h"

#include <string.h>

#include <algorithm>

#include "compute/tensor/float16.h"

namespace tandem::device {
namespace {

using tensor::DType;

// Where a block of each quantised type keeps its f16 scale, and its f16 minimum or -1.
struct ScalePlaces {
  int scale = 0;
  int minimum = -1;
};

ScalePlaces scale_places(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return {0, 2};
    case DType::kQ2_K: return {80, 82};
    case DType::kQ3_K: return {108, -1};
    case DType::kQ6_K: return {208, -1};
    default: return {0, -1};
  }
}

}  // namespace

const std::vector<FileType>& file_types() {
  static const std::vector<FileType> types = {
      {TD_DTYPE_F32, DType::kF32},       {TD_DTYPE_F16, DType::kF16},     {TD_DTYPE_BF16, DType::kBF16},
      {TD_DTYPE_Q4_0, DType::kQ4_0},     {TD_DTYPE_Q4_1, DType::kQ4_1},   {TD_DTYPE_Q5_0, DType::kQ5_0},
      {TD_DTYPE_Q5_1, DType::kQ5_1},     {TD_DTYPE_Q8_0, DType::kQ8_0},   {TD_DTYPE_Q2_K, DType::kQ2_K},
      {TD_DTYPE_Q3_K, DType::kQ3_K},     {TD_DTYPE_Q4_K, DType::kQ4_K},   {TD_DTYPE_Q5_K, DType::kQ5_K},
      {TD_DTYPE_Q6_K, DType::kQ6_K},     {TD_DTYPE_IQ4_NL, DType::kIQ4_NL}, {TD_DTYPE_IQ4_XS, DType::kIQ4_XS}};
  return types;
}

td_operand CaseMaker::input(uint32_t slot, uint32_t columns) {
  case_.input_columns[slot] = columns;
  td_operand made{};
  made.space = TD_EXTERNAL;
  made.slot = slot;
  made.columns = made.columns_total = columns;
  return made;
}

td_operand CaseMaker::arena(td_format format, uint32_t columns) {
  td_operand made{};
  made.space = TD_ARENA;
  made.format = format;
  made.slot = num_arena_values_++;
  made.columns = made.columns_total = columns;
  return made;
}

td_operand CaseMaker::output(uint32_t columns, td_format format, td_rows rows) {
  td_operand made{};
  made.space = TD_EXTERNAL;
  made.format = format;
  made.rows = rows;
  made.slot = kOutputSlot;
  made.columns = made.columns_total = columns;
  case_.output = made;
  return made;
}

td_operand CaseMaker::slice(td_operand of, uint32_t begin, uint32_t columns) {
  of.column_begin = begin;
  of.columns = columns;
  return of;
}

std::vector<uint8_t> CaseMaker::rows(const FileType& type, uint64_t num_elements) {
  std::vector<uint8_t> bytes(tensor::row_bytes(type.tensor_dtype, num_elements));
  if (!tensor::is_quantised(type.tensor_dtype)) {
    for (uint64_t i = 0; i < num_elements; ++i) {
      const float value = unit();
      const uint16_t half =
          type.tensor_dtype == DType::kF16 ? tensor::f16_from_f32(value) : tensor::bf16_from_f32(value);
      if (type.tensor_dtype == DType::kF32) memcpy(bytes.data() + 4 * i, &value, 4);
      else memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
  }
  // All levels and block scales at random; the f16 fields finite and small.
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_() >> 24);
  const ScalePlaces places = scale_places(type.tensor_dtype);
  const uint32_t block = tensor::block_bytes(type.tensor_dtype);
  for (size_t begin = 0; begin < bytes.size(); begin += block) {
    for (const int place : {places.scale, places.minimum}) {
      if (place < 0) continue;
      const uint16_t half = tensor::f16_from_f32(unit() * 0.02f);
      memcpy(bytes.data() + begin + place, &half, sizeof half);
    }
  }
  return bytes;
}

uint32_t CaseMaker::table(const FileType& type, uint32_t n, uint32_t k) {
  CaseWeight weight;
  weight.desc.use = TD_WEIGHT_ROWS;
  weight.desc.num_parts = 1;
  weight.desc.n = n;
  weight.desc.k = k;
  weight.desc.segments = 1;
  weight.parts.push_back({type.dtype, n, rows(type, uint64_t{n} * k)});
  case_.weights.push_back(std::move(weight));
  return static_cast<uint32_t>(case_.weights.size() - 1);
}

uint32_t CaseMaker::vector(uint32_t n, uint32_t k) {
  const uint32_t index = table({TD_DTYPE_F32, DType::kF32}, n, k);
  case_.weights[index].desc.use = TD_WEIGHT_VECTOR;
  return index;
}

uint32_t CaseMaker::linear(const FileType& type, const LinearShape& shape, std::initializer_list<uint32_t> part_rows) {
  CaseWeight weight;
  weight.desc.use = TD_WEIGHT_LINEAR;
  weight.desc.num_parts = static_cast<uint32_t>(part_rows.size());
  weight.desc.n = shape.n;
  weight.desc.k = shape.k;
  weight.desc.segments = shape.segments;
  weight.desc.activation = shape.activation;
  weight.desc.quantization = shape.quantization;
  for (const uint32_t num_rows : part_rows) {
    weight.parts.push_back({type.dtype, num_rows, rows(type, uint64_t{num_rows} * shape.k)});
  }
  case_.weights.push_back(std::move(weight));
  return static_cast<uint32_t>(case_.weights.size() - 1);
}

uint32_t CaseMaker::gated(const FileType& type, LinearShape shape) {
  const uint32_t half = shape.n;
  shape.n *= 2;
  const uint32_t index = linear(type, shape, {half, half});
  case_.weights[index].desc.interleave = 1;
  return index;
}

td_op& CaseMaker::op(td_op_kind kind, std::initializer_list<td_operand> in, td_operand out,
                     std::initializer_list<uint32_t> weights) {
  td_op made{};
  made.kind = kind;
  std::copy(in.begin(), in.end(), made.in);
  made.out[0] = out;
  std::fill_n(made.weight, TD_MAX_OPERANDS, TD_NO_WEIGHT);
  std::copy(weights.begin(), weights.end(), made.weight);
  made.eps = 1e-5f;
  case_.ops.push_back(made);
  return case_.ops.back();
}

CaseStep& CaseMaker::step(uint32_t num_tokens) {
  CaseStep made;
  made.num_tokens = num_tokens;
  for (uint32_t slot = 0; slot < kNumInputSlots; ++slot) {
    made.inputs[slot].resize(uint64_t{num_tokens} * case_.input_columns[slot]);
    for (float& value : made.inputs[slot]) value = 3.0f * unit();
  }
  made.token_ids.assign(num_tokens, 0);
  case_.steps.push_back(std::move(made));
  case_.max_tokens = std::max(case_.max_tokens, num_tokens);
  return case_.steps.back();
}

}  // namespace tandem::device
