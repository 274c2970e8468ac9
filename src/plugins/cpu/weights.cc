#include "plugins/cpu/weights.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "compute/tensor/dequantize.h"
#include "plugins/cpu/team.h"

namespace tandem::cpu {

using namespace kernels;  // C structs and constants with a prefix of their own
namespace {

using kernels::PanelLayout;
using kernels::WeightRows;
using tensor::DType;

constexpr uint64_t kPanelsPerGrab = 4;

kernels::PackTarget pack_target(const td_weight_desc& desc) {
  kernels::PackTarget target;
  target.activations = desc.activation == TD_Q8     ? kernels::Activations::kInt8
                       : desc.activation == TD_BF16 ? kernels::Activations::kBf16
                                                    : kernels::Activations::kF32;
  target.quantization = desc.quantization == TD_QUANTIZE_W8   ? kernels::Quantization::kW8
                        : desc.quantization == TD_QUANTIZE_W4 ? kernels::Quantization::kW4
                                                              : kernels::Quantization::kNone;
  return target;
}

// Rows of a linear as packed; `interleaved` pads each part to whole panels.
uint64_t num_packed_rows(const td_weight_desc& desc) {
  return desc.interleave != 0 ? 2 * kernels::num_panels(desc.n / 2) * TK_PANEL_ROWS : desc.n;
}

// What every weight must satisfy: parts that make up its rows, of types whose blocks fill them.
Status check_parts(const td_weight_desc& desc) {
  if (desc.num_parts == 0) return Error{ErrorCode::kInvalidArgument, "a weight without parts"};
  uint64_t rows = 0;
  for (uint32_t i = 0; i < desc.num_parts; ++i) {
    TRY_ASSIGN(const DType dtype, to_dtype(desc.parts[i].dtype));
    if (desc.k % tensor::block_elements(dtype) != 0) {
      return Error{ErrorCode::kInvalidArgument, "rows of " + std::to_string(desc.k) + " are no whole blocks of " +
                                                    tensor::dtype_name(dtype)};
    }
    if (desc.use == TD_WEIGHT_ROWS && desc.parts[i].dtype != desc.parts[0].dtype) {
      return Error{ErrorCode::kInvalidArgument, "the parts of a table need one type"};
    }
    rows += desc.parts[i].num_rows;
  }
  if (rows != desc.n) return Error{ErrorCode::kInvalidArgument, "a weight's parts do not have its number of rows"};
  return Done{};
}

// Whether the k sum can be cut into as many segments, each whole units of the panel kind.
bool has_valid_segments(const PanelLayout& layout, const td_weight_desc& desc) {
  const uint32_t segments = desc.segments;
  if (segments == 1) return true;
  if (segments == 0 || segments > 16 || (segments & (segments - 1)) != 0) return false;
  const uint32_t unit = layout.format.kind == TK_PANEL_F32 ? 1 : layout.format.kind == TK_PANEL_BF16 ? 2 : 32;
  return desc.k % (unit * segments) == 0;
}

class PackTask final : public TeamTask {
 public:
  PackTask(const PanelLayout& layout, const WeightRows& rows, uint8_t* packed)
      : layout_(layout), rows_(rows), packed_(packed), num_panels_(kernels::num_panels(rows.num_rows())) {}
  void work(uint32_t /*member*/) override {
    for (;;) {
      const uint64_t begin = next_.fetch_add(kPanelsPerGrab);
      if (begin >= num_panels_) return;
      kernels::pack_panels(layout_, rows_, begin, std::min(begin + kPanelsPerGrab, num_panels_), packed_);
    }
  }

 private:
  const PanelLayout& layout_;
  const WeightRows& rows_;
  uint8_t* packed_;
  const uint64_t num_panels_;
  std::atomic<uint64_t> next_{0};
};

Status pack_linear(const td_weight_desc& desc, void* host, Team& team) {
  TRY_ASSIGN(const PanelLayout layout, panel_layout(desc));
  std::vector<kernels::WeightPart> parts;
  for (uint32_t i = 0; i < desc.num_parts; ++i) {
    TRY_ASSIGN(const DType dtype, to_dtype(desc.parts[i].dtype));
    parts.push_back({dtype, desc.parts[i].rows, desc.parts[i].num_rows});
  }
  const WeightRows rows = desc.interleave != 0 ? WeightRows::interleaved(parts[0], parts[1], desc.k)
                                               : WeightRows::concatenated(std::move(parts), desc.k);
  PackTask task(layout, rows, static_cast<uint8_t*>(host));
  team.run(task);
  return Done{};
}

}  // namespace

Result<DType> to_dtype(uint32_t value) {
  switch (value) {
    case TD_DTYPE_F32: return DType::kF32;
    case TD_DTYPE_F16: return DType::kF16;
    case TD_DTYPE_BF16: return DType::kBF16;
    case TD_DTYPE_Q4_0: return DType::kQ4_0;
    case TD_DTYPE_Q4_1: return DType::kQ4_1;
    case TD_DTYPE_Q5_0: return DType::kQ5_0;
    case TD_DTYPE_Q5_1: return DType::kQ5_1;
    case TD_DTYPE_Q8_0: return DType::kQ8_0;
    case TD_DTYPE_Q2_K: return DType::kQ2_K;
    case TD_DTYPE_Q3_K: return DType::kQ3_K;
    case TD_DTYPE_Q4_K: return DType::kQ4_K;
    case TD_DTYPE_Q5_K: return DType::kQ5_K;
    case TD_DTYPE_Q6_K: return DType::kQ6_K;
    case TD_DTYPE_IQ4_NL: return DType::kIQ4_NL;
    case TD_DTYPE_IQ4_XS: return DType::kIQ4_XS;
    default: return Error{ErrorCode::kInvalidArgument, "weight type " + std::to_string(value) + " is unknown"};
  }
}

Result<PanelLayout> panel_layout(const td_weight_desc& desc) {
  TRY(check_parts(desc));
  if (desc.interleave != 0 && (desc.num_parts != 2 || desc.parts[0].num_rows != desc.parts[1].num_rows)) {
    return Error{ErrorCode::kInvalidArgument, "an interleaved weight needs two parts of equal size"};
  }
  TRY_ASSIGN(const DType first, to_dtype(desc.parts[0].dtype));
  const PanelLayout layout = kernels::layout_for(first, desc.k, pack_target(desc));
  if (!has_valid_segments(layout, desc)) {
    return Error{ErrorCode::kInvalidArgument, "rows of " + std::to_string(desc.k) + " cannot be cut into " +
                                                  std::to_string(desc.segments) + " segments"};
  }
  for (uint32_t i = 0; i < desc.num_parts; ++i) {
    TRY_ASSIGN(const DType dtype, to_dtype(desc.parts[i].dtype));
    if (!kernels::same_format(kernels::layout_for(dtype, desc.k, pack_target(desc)).format, layout.format)) {
      return Error{ErrorCode::kInvalidArgument, "the parts of one weight need one packed format"};
    }
  }
  return layout;
}

Result<uint64_t> packed_size(const td_weight_desc& desc) {
  if (desc.use == TD_WEIGHT_LINEAR) {
    TRY_ASSIGN(const PanelLayout layout, panel_layout(desc));
    return kernels::packed_bytes(layout, num_packed_rows(desc), desc.k);
  }
  TRY(check_parts(desc));
  if (desc.use == TD_WEIGHT_VECTOR) return uint64_t{desc.n} * desc.k * sizeof(float);
  TRY_ASSIGN(const DType dtype, to_dtype(desc.parts[0].dtype));
  return desc.n * tensor::row_bytes(dtype, desc.k);
}

Status pack(const td_weight_desc& desc, void* host, Team& team) {
  TRY(check_parts(desc));
  if (desc.use == TD_WEIGHT_LINEAR) return pack_linear(desc, host, team);
  auto* out = static_cast<uint8_t*>(host);
  for (uint32_t i = 0; i < desc.num_parts; ++i) {
    const td_weight_part& part = desc.parts[i];
    TRY_ASSIGN(const DType dtype, to_dtype(part.dtype));
    const uint64_t elements = uint64_t{part.num_rows} * desc.k;
    const uint64_t file_bytes = tensor::row_bytes(dtype, elements);
    if (desc.use == TD_WEIGHT_ROWS) {
      memcpy(out, part.rows, file_bytes);
      out += file_bytes;
    } else {
      tensor::dequantize_row(dtype, part.rows, elements, reinterpret_cast<float*>(out));
      out += elements * sizeof(float);
    }
  }
  return Done{};
}

}  // namespace tandem::cpu
