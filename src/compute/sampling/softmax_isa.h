#pragma once
// What the softmax of sampling does for each token, for one instruction set. C types only: see tools/check_layers.py.

#include <stddef.h>

// t = ((x - max) / temperature) * log2 e;  exponents[i] = t, weights[i] = exp2(t) as base/exp2.h has it.
// The same bits as the plain loop in softmax.cc.
void tandem_softmax_weights_avx2(const float* x, size_t n, float max, float temperature, float* exponents,
                                 float* weights);
