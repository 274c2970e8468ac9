#pragma once
// The kernels' part of the numerics fingerprint (docs/numerics.md): every kernel run on fixed pseudo-random input, the
// outputs hashed. All instruction sets must give the same digest. Under DenormalsOff; takes some milliseconds.

#include <string>

#include "compute/kernels/isa.h"

namespace tandem::kernels {

std::string linear_digest(Isa isa);     // linears of every panel format, epilogues, activation quantisation
std::string attention_digest(Isa isa);  // attention of every KV type, norms, rope, SiLU, exp2, log-sum-exp

}  // namespace tandem::kernels
