#pragma once
// CaseMaker: writes a conformance case. Private to conformance*.cc.

#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compute/device/conformance_case.h"
#include "compute/tensor/dtype.h"

namespace tandem::device {

struct FileType {
  td_dtype dtype;
  tensor::DType tensor_dtype;
};
// Every type of weight files.
const std::vector<FileType>& file_types();

// How a case wants a linear's weight.
struct LinearShape {
  uint32_t n = 0, k = 0;
  uint32_t segments = 1;
  td_format activation = TD_F32;
  td_quantization quantization = TD_QUANTIZE_NONE;
};

class CaseMaker {
 public:
  CaseMaker(std::string name, uint32_t seed) : random_(seed) {
    case_.name = std::move(name);
    case_.max_tokens = 80;
  }

  td_operand input(uint32_t slot, uint32_t columns);
  td_operand arena(td_format format, uint32_t columns);
  td_operand output(uint32_t columns, td_format format = TD_F32, td_rows rows = TD_ROWS_TOKENS);
  static td_operand slice(td_operand of, uint32_t begin, uint32_t columns);

  uint32_t vector(uint32_t n, uint32_t k = 1);  // an f32 vector or table
  uint32_t table(const FileType& type, uint32_t n, uint32_t k);
  // A linear of one part for each of `rows`.
  uint32_t linear(const FileType& type, const LinearShape& shape, std::initializer_list<uint32_t> rows);
  uint32_t gated(const FileType& type, LinearShape shape);  // gate and up of n rows each

  // The last op's attributes can be set through the reference until the next call.
  td_op& op(td_op_kind kind, std::initializer_list<td_operand> in, td_operand out,
            std::initializer_list<uint32_t> weights = {});
  // Adds a launch of so many tokens, with random inputs; it has no sequences yet.
  CaseStep& step(uint32_t num_tokens);

  ConformanceCase& editable() { return case_; }
  ConformanceCase take() { return std::move(case_); }
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }

 private:
  float unit() { return static_cast<float>(static_cast<double>(random_()) / 4294967296.0 * 2 - 1); }  // [-1, 1)
  std::vector<uint8_t> rows(const FileType& type, uint64_t num_elements);

  ConformanceCase case_;
  std::mt19937 random_;
  uint32_t num_arena_values_ = 0;
};

}  // namespace tandem::device
