#pragma once
// The RoPE table: computed once at load, in double, rounded to f32 once; part of the numerics fingerprint because
// libm's sin and cos may differ between machines.

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::kernels {

// Row p (2 * inverse_frequencies.size() floats): cos(p * f) * magnitude of every frequency, then the sines. Frequency
// scaling (linear, llama3, yarn) is in `inverse_frequencies`, yarn's attention factor in `magnitude`.
std::vector<float> make_rope_table(std::span<const double> inverse_frequencies, double magnitude,
                                   uint32_t num_positions);

}  // namespace tandem::kernels
