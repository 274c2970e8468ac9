#pragma once
// Weights as files have them to the panels that linear kernels read (linear_isa.h). Packing keeps every bit: a row
// unpacked from its panel equals the file's own dequantisation, except where `quantization` or bf16 activations ask for
// rounding. Pure functions on the caller's memory, any thread.

#include <cstdint>
#include <vector>

#include "compute/kernels/linear_isa.h"
#include "compute/tensor/dtype.h"

namespace tandem::kernels {

enum class Activations : uint8_t { kF32, kBf16, kInt8 };

// kW8, kW4: rows of F32, F16 and BF16 are first quantised, by the rules of Q8_0 and Q4_0. Other types ignore it.
enum class Quantization : uint8_t { kNone, kW8, kW4 };

struct PackTarget {
  Activations activations = Activations::kF32;
  Quantization quantization = Quantization::kNone;
};

struct PanelLayout {
  tk_panel_format format;
  Quantization quantization = Quantization::kNone;
};

// How a weight of `k` columns is packed. Int8 activations: block types become W8 or W4, float types F32 unless they are
// quantised (a k that is no multiple of 32 cannot be). Bf16 activations: BF16, each weight rounded once. F32: F32.
PanelLayout layout_for(tensor::DType dtype, uint32_t k, PackTarget target);

bool same_format(const tk_panel_format& a, const tk_panel_format& b);

inline uint64_t num_panels(uint64_t n) { return (n + TK_PANEL_ROWS - 1) / TK_PANEL_ROWS; }
inline uint64_t packed_bytes(const PanelLayout& layout, uint64_t n, uint32_t k) {
  return num_panels(n) * tk_panel_bytes(&layout.format, k);
}

// A run of consecutive rows in file form; `rows` is borrowed and needs no alignment.
struct WeightPart {
  tensor::DType dtype;
  const void* rows;
  uint64_t num_rows;
};

// The rows to pack, in packed order.
class WeightRows {
 public:
  // The parts one after the other (q, k, v).
  static WeightRows concatenated(std::vector<WeightPart> parts, uint32_t k);
  // Two parts of equal size by turns of 32 rows, so that panel 2p is of the first (gate) and 2p + 1 of the second (up).
  // Each part's last panel is filled up with zero rows of its own.
  static WeightRows interleaved(WeightPart gate, WeightPart up, uint32_t k);

  struct Row {
    tensor::DType dtype;
    const uint8_t* bytes;  // null: a zero row
  };
  Row row(uint64_t index) const;
  uint64_t num_rows() const { return num_rows_; }  // the n to pack: for `interleaved` a multiple of 64
  uint32_t k() const { return k_; }

 private:
  WeightRows(std::vector<WeightPart> parts, bool is_interleaved, uint32_t k);

  std::vector<WeightPart> parts_;
  bool is_interleaved_;
  uint32_t k_;
  uint64_t num_rows_;
};

// Writes panels panel_begin .. panel_end - 1 to their place in `packed`, which is where panel 0 begins. Disjoint ranges
// may run in parallel. All rows must have `layout` as theirs.
void pack_panels(const PanelLayout& layout, const WeightRows& rows, uint64_t panel_begin, uint64_t panel_end,
                 uint8_t* packed);

// All panels of one part.
void pack_rows(const PanelLayout& layout, const WeightPart& part, uint32_t k, uint8_t* packed);

// Row `row` of a packed weight of `k` columns, dequantised; `out` gets k floats.
void unpack_row(const PanelLayout& layout, const uint8_t* packed, uint32_t k, uint64_t row, float* out);

}  // namespace tandem::kernels
