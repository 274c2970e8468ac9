#pragma once
// The constants of our exp2 (docs/numerics.md 0), for the scalar form in base/exp2.h and for files that are built for
// one instruction set. Minimax for the relative error on [-0.5, 0.5] with p(0) = 1: 1.1e-7 before rounding.

#define TK_EXP2_C1 0x1.62e42ap-1f
#define TK_EXP2_C2 0x1.ebf9bcp-3f
#define TK_EXP2_C3 0x1.c6b752p-5f
#define TK_EXP2_C4 0x1.3cea80p-7f
#define TK_EXP2_C5 0x1.5bb9fep-10f
#define TK_EXP2_MIN (-126.0f)
#define TK_EXP2_MAX 128.0f
#define TK_LOG2E 0x1.715476p+0f  // log2(e) as f32
