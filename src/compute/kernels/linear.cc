#include "compute/kernels/linear.h"

#include "base/check.h"
#include "compute/kernels/linear_tables.h"

namespace tandem::kernels {

const LinearKernels& linear_kernels(Isa isa) {
  TANDEM_CHECK(is_supported(isa));
  return kLinearScalar;
}

}  // namespace tandem::kernels
