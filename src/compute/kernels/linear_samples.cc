#include "compute/kernels/linear_samples.h"

#include <cstring>

#include "compute/kernels/pack_weights.h"
#include "compute/tensor/float16.h"

namespace tandem::kernels {
namespace {

// About a normal distribution, of standard deviation 1.
float bell(SampleRandom& random) {
  float sum = 0.0f;
  for (int i = 0; i < 12; ++i) sum = sum + random.unit();
  return sum - 6.0f;
}

float power_of_two(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

float sample_float(SampleRandom& random) {
  const uint32_t kind = random.below(64);
  if (kind == 0) return 0.0f;
  if (kind == 1) {  // a denormal
    const uint32_t bits = random.bits() & 0x807FFFFFu;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
  return bell(random) * power_of_two(static_cast<int>(random.below(24)) - 20);
}

void put_fields(const tk_panel_format& format, uint8_t* fields, SampleRandom& random) {
  for (uint32_t i = 0; i < 32u * format.num_scales; ++i) {
    float value = bell(random) * 0.01f;
    const uint32_t kind = random.below(32);
    if (kind == 0) value = 0.0f;
    if (kind == 1) value = bell(random) * 0x1p-16f;  // a denormal as f16
    if (format.scale_f32) {
      memcpy(fields + 4 * i, &value, 4);
    } else {
      const uint16_t half = tensor::f16_from_f32(value);
      memcpy(fields + 2 * i, &half, 2);
    }
  }
}

void fill_block(const tk_panel_format& format, uint8_t* block, SampleRandom& random) {
  const uint32_t range = format.level_max - format.level_min + 1u;
  const uint32_t num_bytes = tk_scales_offset(&format);
  for (uint32_t i = 0; i < num_bytes; ++i) {
    uint32_t level = format.level_min + random.below(range);
    if (random.below(16) == 0) level = random.below(2) != 0 ? format.level_min : format.level_max;
    if (format.kind == TK_PANEL_W4) level |= (format.level_min + random.below(range)) << 4;
    block[i] = static_cast<uint8_t>(level);
  }
  put_fields(format, block + num_bytes, random);
  if (format.has_min) put_fields(format, block + num_bytes + tk_scales_bytes(&format), random);
}

}  // namespace

std::vector<SampleFormat> sample_formats() {
  using tensor::DType;
  std::vector<SampleFormat> formats;
  const auto add = [&](const char* name, DType dtype, Activations activations) {
    formats.push_back({name, layout_for(dtype, 32, {activations, Quantization::kNone}).format});
  };
  add("F32", DType::kF32, Activations::kF32);
  add("BF16", DType::kBF16, Activations::kBf16);
  for (DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                      DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS}) {
    add(tensor::dtype_name(dtype), dtype, Activations::kInt8);
  }
  return formats;
}

AlignedBytes sample_panels(const tk_panel_format& format, uint32_t k, uint32_t num_panels, SampleRandom& random) {
  const uint64_t panel_bytes = tk_panel_bytes(&format, k);
  AlignedBytes out(panel_bytes * num_panels);
  for (uint32_t panel = 0; panel < num_panels; ++panel) {
    uint8_t* p = out.data() + panel * panel_bytes;
    if (format.kind == TK_PANEL_W8 || format.kind == TK_PANEL_W4) {
      for (uint32_t b = 0; b < k / 32; ++b) fill_block(format, p + b * tk_block_bytes(&format), random);
      continue;
    }
    for (uint32_t i = 0; i < k * TK_PANEL_ROWS; ++i) {
      const float value = sample_float(random);
      if (format.kind == TK_PANEL_F32) {
        memcpy(p + 4 * i, &value, 4);
        continue;
      }
      const uint16_t rounded = tensor::bf16_from_f32(value);
      const uint32_t column = i / TK_PANEL_ROWS;
      memcpy(p + 128 * (column / 2) + 4 * (i % TK_PANEL_ROWS) + 2 * (column % 2), &rounded, 2);
    }
  }
  return out;
}

std::vector<float> sample_rows(uint32_t num_rows, uint32_t k, SampleRandom& random) {
  std::vector<float> rows(static_cast<size_t>(num_rows) * k);
  float size = 1.0f;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 32 == 0) {
      static constexpr int kExponents[] = {0, 0, 0, 0, 1, -3, 6, -10, 14, -40, -118, -126};
      const uint32_t kind = random.below(13);
      size = kind == 12 ? 0.0f : power_of_two(kExponents[kind]);
    }
    rows[i] = random.below(256) == 0 ? 0.0f : bell(random) * size;
  }
  return rows;
}

}  // namespace tandem::kernels
