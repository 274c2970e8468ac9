#include "compute/tensor/dtype.h"

#include "base/check.h"

namespace tandem::tensor {
namespace {

struct Layout {
  const char* name;
  uint16_t elements;
  uint16_t bytes;
};

// In the order of DType.
constexpr Layout kLayouts[kNumDTypes] = {
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},     {"Q4_0", 32, 18},    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},   {"Q5_1", 32, 24},   {"Q8_0", 32, 34},   {"Q2_K", 256, 84},   {"Q3_K", 256, 110},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18},  {"IQ4_XS", 256, 136},
};

const Layout& layout(DType dtype) {
  TANDEM_CHECK(static_cast<int>(dtype) < kNumDTypes);
  return kLayouts[static_cast<int>(dtype)];
}

}  // namespace

const char* dtype_name(DType dtype) { return layout(dtype).name; }
uint32_t block_elements(DType dtype) { return layout(dtype).elements; }
uint32_t block_bytes(DType dtype) { return layout(dtype).bytes; }

uint64_t row_bytes(DType dtype, uint64_t num_elements) {
  const Layout& l = layout(dtype);
  TANDEM_CHECK(num_elements % l.elements == 0);
  return num_elements / l.elements * l.bytes;
}

}  // namespace tandem::tensor
