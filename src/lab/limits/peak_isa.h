#pragma once
// Loops that do nothing but keep one kind of unit busy. C types only: see tools/check_layers.py.
//
// The peaks work on registers: `iterations` rounds of independent chains, long enough to hide the latency. Each
// constant says how many operations (a multiplication and an addition are two) one round does.

#include <stddef.h>
#include <stdint.h>

enum {
  kAvx2Int8Ops = 6 * 64,    // vpmaddubsw, vpmaddwd, vpaddd: 32 products each
  kAvx2Bf16Ops = 5 * 32,    // 16 bf16 weights widened to f32, two fma
  kAvx2F32Ops = 12 * 16,    // vfmadd231ps
  kAvx512Int8Ops = 20 * 128,  // vpdpbusd
  kAvx512F32Ops = 20 * 32,    // vfmadd231ps
  kAvx512Bf16Ops = 20 * 64,   // vdpbf16ps
};

void tandem_peak_int8_avx2(int64_t iterations);
void tandem_peak_bf16_avx2(int64_t iterations);
void tandem_peak_f32_avx2(int64_t iterations);
void tandem_peak_int8_avx512(int64_t iterations);
void tandem_peak_f32_avx512(int64_t iterations);
void tandem_peak_bf16_avx512(int64_t iterations);

// Reads `size_bytes` (a multiple of 512, aligned to 64) in order; the result depends on every byte.
uint64_t tandem_read_avx2(const void* data, size_t size_bytes);
uint64_t tandem_read_avx512(const void* data, size_t size_bytes);
