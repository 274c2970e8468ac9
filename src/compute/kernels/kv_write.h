#pragma once
// K and V rows into KV tiles and back, and queries into the form that attention reads (layouts: kv_isa.h). Plain
// integer and IEEE operations, so there is one version for all instruction sets. Pure, any thread, under
// DenormalsOff.

#include <cstdint>

#include "compute/kernels/kv_isa.h"

namespace tandem::kernels {

// Writes the token's rows (after RoPE, `head_dim` floats each) into `slot` (0..15) of the tile, rounded: bf16 to
// nearest even; int8 per 32 dims with s = f16(fl(max|x| / 127)), q = clamp(rint(fl(x * fl(1 / s)))). False if an
// element is not finite once stored: that request has failed, and its slot must not be read.
[[nodiscard]] bool kv_write(tk_kv_kind kind, uint32_t head_dim, const float* k, const float* v, void* tile,
                            uint32_t slot);

// The stored values of a slot, as attention reads them. For inspection and tests.
void kv_read(tk_kv_kind kind, uint32_t head_dim, const void* tile, uint32_t slot, float* k, float* v);

// The bytes of one slot, packed: tile bytes / 16. To and from a tile, neither more nor less than the slot's own bytes.
void kv_slot_out(tk_kv_kind kind, uint32_t head_dim, const void* tile, uint32_t slot, void* to);
void kv_slot_in(tk_kv_kind kind, uint32_t head_dim, void* tile, uint32_t slot, const void* from);

// fl(scale * log2 e), by which queries are multiplied; scale is the model's softmax scale, mostly 1 / sqrt(head_dim).
float query_scale(float softmax_scale);

// fl(q * query_scale), then rounded to bf16, kept, or quantised per 32 dims (numerics 1). `out`: tk_query_bytes, 4-byte
// aligned. False if an element is not finite.
[[nodiscard]] bool prepare_query(tk_kv_kind kind, uint32_t head_dim, float query_scale, const float* q, void* out);

}  // namespace tandem::kernels
