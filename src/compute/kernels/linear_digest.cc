#include <vector>

#include "base/hash.h"
#include "compute/kernels/denormals_off.h"
#include "compute/kernels/fingerprint.h"
#include "compute/kernels/linear.h"
#include "compute/kernels/linear_samples.h"

namespace tandem::kernels {
namespace {

constexpr uint32_t kNumRows = 11;  // takes tiles of every height
constexpr uint32_t kColumns = 512;

void hash_rows(Hasher& hasher, const LinearKernels& kernels, const float* x, uint32_t k, uint8_t kind) {
  const uint64_t stride = tk_activation_row_bytes(kind, k);
  AlignedBytes out(stride * kNumRows);
  const tk_quantize quantize{x, 4ull * k, out.data(), stride, k, kind};
  kernels.quantize(&quantize, 0, kNumRows);
  hasher.update(out.data(), out.size());
}

void hash_format(Hasher& hasher, const LinearKernels& kernels, const tk_panel_format& format) {
  SampleRandom random(format.kind * 1000u + format.level_max);
  AlignedBytes panels = sample_panels(format, kColumns, 2, random);
  const std::vector<float> x = sample_rows(kNumRows, kColumns, random);
  const uint8_t kind = tk_rows_kind(format.kind);
  const uint64_t stride = tk_activation_row_bytes(kind, kColumns);
  AlignedBytes rows(stride * kNumRows);
  const tk_quantize quantize{x.data(), 4ull * kColumns, rows.data(), stride, kColumns, kind};
  kernels.quantize(&quantize, 0, kNumRows);

  tk_linear linear{panels.data(), tk_panel_bytes(&format, kColumns), rows.data(), stride, kColumns, 1, format};
  std::vector<float> gate(kNumRows * TK_PANEL_ROWS);
  std::vector<float> up(kNumRows * TK_PANEL_ROWS);
  const tk_tile gate_tile{gate.data(), TK_PANEL_ROWS, 0, kNumRows};
  const tk_tile up_tile{up.data(), TK_PANEL_ROWS, 0, kNumRows};
  for (uint32_t segments : {1u, 2u, 16u}) {
    linear.segments = segments;
    linear_panel(kernels, linear, 0, gate_tile);
    linear_panel(kernels, linear, 1, up_tile);
    hasher.update(gate.data(), gate.size() * 4);
    hasher.update(up.data(), up.size() * 4);
  }
  for (uint8_t out_kind : {TK_ROWS_F32, TK_ROWS_BF16, TK_ROWS_Q8}) {
    const uint64_t out_stride = tk_activation_row_bytes(out_kind, TK_PANEL_ROWS);
    AlignedBytes out(out_stride * kNumRows);
    const tk_epilogue gated{x.data(),   x.data() + 32, x.data() + 64, 4ull * kColumns,        out.data(),
                            out_stride, TK_PANEL_ROWS, out_kind,      TK_ACTIVATION_SILU_GATE};
    kernels.epilogue(&gated, &gate_tile, &up_tile, 0, TK_PANEL_ROWS);
    hasher.update(out.data(), out.size());
  }
}

}  // namespace

std::string linear_digest(Isa isa) {
  const DenormalsOff denormals_off;
  const LinearKernels& kernels = linear_kernels(isa);
  Hasher hasher;
  SampleRandom random(1);
  const std::vector<float> x = sample_rows(kNumRows, kColumns, random);
  for (uint8_t kind : {TK_ROWS_F32, TK_ROWS_BF16, TK_ROWS_Q8}) hash_rows(hasher, kernels, x.data(), kColumns, kind);
  for (const SampleFormat& sample : sample_formats()) hash_format(hasher, kernels, sample.format);
  return hasher.hex();
}

}  // namespace tandem::kernels
