#pragma once
// The tables of linear kernels by instruction set, for linear_kernels() and the tests; others call linear_kernels().
// Only a table that the machine supports may be called.

#include "compute/kernels/linear_isa.h"

namespace tandem::kernels {

extern const tk_linear_kernels kLinearScalar;

}  // namespace tandem::kernels
