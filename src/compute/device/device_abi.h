/* The contract between Tandem and a device plug-in. One C header, no C++ type crosses it.
 *
 * A plug-in exports one function, `const td_plugin* tandem_plugin_<name>(void)`, that returns a table which lives
 * as long as the program. Entries marked (optional) may be null; the default that then applies is stated.
 *
 * Conventions
 *  - A call returns TD_OK or a td_status; on failure it writes one line into `error` when that is not null.
 *  - Pointers passed in are borrowed for the call unless the entry says otherwise. Device addresses are `void*`;
 *    the host may follow them only when td_properties.host_visible is set.
 *  - A device may be used by one thread at a time, where the entry does not say more; different devices by different
 *    threads.
 *  - Work on one stream runs in the order given. What a launch reads (td_bindings and all it points to) must stay
 *    unchanged until the stream has passed it.
 *  - The table only grows at its end, by optional entries; td_plugin.size_bytes says how much of it the plug-in knows.
 *    1.0 is the first version: a shorter table than this one is refused. TD_ABI_MAJOR changes when something existing
 *    changes meaning.
 */
#ifndef TANDEM_COMPUTE_DEVICE_DEVICE_ABI_H
#define TANDEM_COMPUTE_DEVICE_DEVICE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TD_ABI_MAJOR 1
#define TD_ABI_MINOR 2

typedef enum td_status {
  TD_OK = 0,
  TD_INVALID = 1,        /* the call's arguments are wrong */
  TD_UNSUPPORTED = 2,    /* right, but not on this device */
  TD_OUT_OF_MEMORY = 3,
  TD_DEVICE_LOST = 4,    /* nothing works on this device any more */
  TD_INTERNAL = 5
} td_status;

typedef struct td_message { char text[512]; } td_message;

typedef struct td_device td_device;
typedef struct td_stream td_stream;
typedef struct td_event td_event;
typedef struct td_plan td_plan;

/* ---- what tensors look like ------------------------------------------------------------------- */

/* Element formats of values between ops. */
typedef enum td_format {
  TD_F32 = 0,
  TD_BF16 = 1,
  TD_Q8 = 2,   /* rows quantised per 32 columns (numerics 1); the byte layout is the device's own */
  TD_I32 = 3
} td_format;

/* Which symbolic extent the rows of a value have. */
typedef enum td_rows {
  TD_ROWS_TOKENS = 0,   /* bindings.num_tokens */
  TD_ROWS_OUTPUTS = 1   /* bindings.num_outputs */
} td_rows;

typedef enum td_space {
  TD_NONE = 0,      /* operand absent */
  TD_ARENA = 1,     /* bindings.arena + offset */
  TD_EXTERNAL = 2   /* bindings.external[slot] + offset */
} td_space;

/* A value in device memory: row r starts at base + offset + r * row_bytes. For a slice of a wider TD_Q8 row,
 * `columns_total` and `column_begin` say where in the row it lies; offset and row_bytes are then the whole row's.
 * For the other formats the device adds column_begin * element size. */
typedef struct td_operand {
  uint32_t space;         /* td_space */
  uint32_t format;        /* td_format */
  uint32_t rows;          /* td_rows */
  uint32_t slot;          /* of TD_EXTERNAL */
  uint64_t offset;
  uint64_t row_bytes;     /* td_plugin.row_bytes(format, columns_total) */
  uint32_t columns;       /* of this operand */
  uint32_t column_begin;
  uint32_t columns_total;
  uint32_t reserved;
} td_operand;

/* ---- weights ---------------------------------------------------------------------------------- */

/* Types of weight files; the values are those of GGUF (ggml). */
typedef enum td_dtype {
  TD_DTYPE_F32 = 0, TD_DTYPE_F16 = 1, TD_DTYPE_Q4_0 = 2, TD_DTYPE_Q4_1 = 3, TD_DTYPE_Q5_0 = 6, TD_DTYPE_Q5_1 = 7,
  TD_DTYPE_Q8_0 = 8, TD_DTYPE_Q2_K = 10, TD_DTYPE_Q3_K = 11, TD_DTYPE_Q4_K = 12, TD_DTYPE_Q5_K = 13,
  TD_DTYPE_Q6_K = 14, TD_DTYPE_IQ4_NL = 20, TD_DTYPE_IQ4_XS = 23, TD_DTYPE_BF16 = 30
} td_dtype;

/* A run of consecutive rows of a weight, as the file has them. */
typedef struct td_weight_part {
  uint32_t dtype;     /* td_dtype */
  uint32_t num_rows;
  const void* rows;   /* num_rows rows of k elements each, without gaps */
} td_weight_part;

typedef enum td_weight_use {
  TD_WEIGHT_LINEAR = 0,   /* a matrix of n rows (outputs) and k columns (inputs) */
  TD_WEIGHT_ROWS = 1,     /* a table whose rows are looked up: embeddings */
  TD_WEIGHT_VECTOR = 2    /* plain f32, n rows of k: norms and biases (k = 1), RoPE tables. Packing dequantises */
} td_weight_use;

typedef enum td_quantization { TD_QUANTIZE_NONE = 0, TD_QUANTIZE_W8 = 1, TD_QUANTIZE_W4 = 2 } td_quantization;

typedef struct td_weight_desc {
  uint32_t use;             /* td_weight_use */
  uint32_t num_parts;
  const td_weight_part* parts;
  uint32_t n, k;            /* n = sum of the parts' rows */
  uint32_t segments;        /* the k sum is a tree over this many equal segments (numerics 2) */
  uint32_t interleave;      /* TD_WEIGHT_LINEAR with two parts: for a gated activation, 1 = gate and up side by side */
  uint32_t activation;      /* td_format of the linear's input */
  uint32_t quantization;    /* td_quantization: pack bf16, f16 and f32 rows to fewer bits */
} td_weight_desc;

/* A packed weight on the device, as a plan uses it. */
typedef struct td_weight {
  td_weight_desc desc;      /* desc.parts keeps types and row counts; part.rows may be null */
  const void* address;
  uint64_t size_bytes;
} td_weight;

/* ---- KV cache --------------------------------------------------------------------------------- */

typedef enum td_kv_kind { TD_KV_BF16 = 0, TD_KV_F32 = 1, TD_KV_INT8 = 2 } td_kv_kind;

/* Address of (block, layer, kv head) = kv + block * block_stride + layer * layer_stride + head * head_stride. */
typedef struct td_kv_layout {
  uint32_t kind;            /* td_kv_kind */
  uint32_t block_tokens;    /* a multiple of 16 */
  uint32_t num_layers, num_kv_heads, head_dim;
  uint32_t reserved;
  uint64_t block_stride, layer_stride, head_stride;
} td_kv_layout;

typedef struct td_block_copy { uint32_t from, to; } td_block_copy;

/* ---- ops -------------------------------------------------------------------------------------- */

typedef enum td_op_kind {
  TD_OP_EMBED = 0,         /* out[0] f32 = rows weight[0] at bindings.token_ids */
  TD_OP_RMS_NORM = 1,      /* out[0] = norm(in[0]) * weight[0], quantised when out[0] is not f32; eps */
  TD_OP_QUANTIZE = 2,      /* out[0] bf16 or q8 = in[0] f32 */
  TD_OP_LINEAR = 3,        /* out[0] = in[0] weight[0]^T (+ weight[1] bias; gated: silu(gate) * up; + in[1] residual) */
  TD_OP_HEAD_NORM = 4,     /* out[0] = per head of head_dim: norm(in[0]) * weight[0]; eps */
  TD_OP_ROPE = 5,          /* out[0] = each head of in[0] rotated by its position; weight[0] the table */
  TD_OP_KV_WRITE = 6,      /* KV of `layer` at the rows' positions = in[0] keys, in[1] values */
  TD_OP_ATTENTION = 7,     /* out[0] = attention of queries in[0] over the KV of `layer`; quantised when not f32 */
  TD_OP_SILU_MUL = 8,      /* out[0] = silu(in[0]) * in[1] */
  TD_OP_ADD = 9,           /* out[0] = in[0] + in[1] */
  TD_OP_GATHER_ROWS = 10,  /* out[0] row i = in[0] row bindings.output_rows[i] */
  TD_OP_ARGMAX = 11,       /* out[0] i32 = lowest column with the largest value */
  TD_OP_ROPE_KV_WRITE = 12 /* in[0] queries, in[1] keys, in[2] values: [HEAD_NORM q, k by weight[1], weight[2]], ROPE,
                            * KV_WRITE in one; out[0] the rotated queries (may be in[0]) */
} td_op_kind;

#define TD_MAX_OPERANDS 3
#define TD_NO_WEIGHT 0xffffffffu

typedef struct td_op {
  uint32_t kind;                      /* td_op_kind */
  uint32_t layer;
  td_operand in[TD_MAX_OPERANDS];
  td_operand out[1];
  uint32_t weight[TD_MAX_OPERANDS];   /* indices into td_plan_desc.weights, or TD_NO_WEIGHT */
  uint32_t gated;                     /* LINEAR: weight[0] is interleaved gate/up, the activation is silu(gate) * up */
  uint32_t num_heads, num_kv_heads, head_dim;
  uint32_t rotary_dim;                /* <= head_dim; the rest passes through */
  uint32_t rope_interleaved;          /* 1: pairs are (2i, 2i+1); 0: (i, i + rotary_dim / 2) */
  uint32_t window;                    /* ATTENTION: a query sees this many keys, itself included; 0: all */
  float eps;
  float scale;                        /* ATTENTION: of the scores */
} td_op;

/* ---- plans ------------------------------------------------------------------------------------ */

typedef struct td_plan_desc {
  const td_op* ops;
  uint32_t num_ops;
  uint32_t num_weights;
  const td_weight* weights;
  uint64_t arena_bytes;
  uint32_t max_tokens, max_outputs, max_sequences;
  uint32_t max_positions;             /* positions below this: sizes scratch and the RoPE table */
  td_kv_layout kv;
} td_plan_desc;

/* Consecutive rows of one sequence: positions position .. position + num_rows - 1. */
typedef struct td_sequence {
  uint32_t row_begin, num_rows;
  uint32_t position;
  uint32_t num_blocks;
  const uint32_t* blocks;             /* the block table, covers position + num_rows - 1 */
} td_sequence;

typedef struct td_bindings {
  void* arena;
  void* kv;
  void* external[4];
  uint32_t num_tokens, num_sequences, num_outputs, reserved;
  const int32_t* token_ids;           /* [num_tokens], host */
  const td_sequence* sequences;       /* cover rows 0 .. num_tokens - 1 in order, host */
  const uint32_t* output_rows;        /* [num_outputs], host */
  uint8_t* row_faults;                /* [num_tokens], host, may be null: 1 where a key, value or score is not finite;
                                       * of the rows of one sequence that fail together at least the first */
} td_bindings;

/* ---- the plug-in's table ---------------------------------------------------------------------- */

typedef struct td_device_options {
  uint32_t num_threads;               /* 0: as many as there are cores. For CPU devices */
  uint32_t reserved;
  const char* isa;                    /* null or "": the best there is. A name of the device's own otherwise */
} td_device_options;

typedef struct td_properties {
  char name[64];
  char pack_layout[64];               /* names the byte layout of packed weights; part of the cache's file name */
  uint64_t memory_bytes;              /* of the device */
  uint32_t host_visible;              /* the host may read and write device addresses */
  uint32_t batch_invariant;           /* a row's bits never depend on its neighbours (numerics contract) */
  uint32_t is_synchronous;            /* launches and copies are complete when the call returns */
  uint32_t num_threads;
} td_properties;

typedef void (*td_host_function)(void* argument);

typedef struct td_plugin {
  uint32_t abi_major, abi_minor;
  uint32_t size_bytes;                /* sizeof(td_plugin) as the plug-in was compiled */
  uint32_t reserved;
  const char* name;

  td_status (*device_count)(uint32_t* count, td_message* error);
  td_status (*device_open)(uint32_t index, const td_device_options* options, td_device** device, td_message* error);
  void (*device_close)(td_device* device);
  void (*properties)(td_device* device, td_properties* properties);
  /* (optional; default: TD_OK) Is the device still able to work? */
  td_status (*health)(td_device* device, td_message* error);
  /* 32 hex digits over the outputs of the device's self-test: equal digests promise equal bits. */
  td_status (*fingerprint)(td_device* device, char digest[33], td_message* error);

  /* Memory. Addresses are 64-byte aligned. */
  td_status (*memory_alloc)(td_device* device, uint64_t size_bytes, void** address, td_message* error);
  void (*memory_free)(td_device* device, void* address);
  /* (optional; default: memory_alloc) Host memory that copies fast. */
  td_status (*host_alloc)(td_device* device, uint64_t size_bytes, void** address, td_message* error);
  void (*host_free)(td_device* device, void* address);
  /* (optional; default: memory_alloc and a copy) Uses read-only host memory in place; it must outlive the device. */
  td_status (*memory_import)(td_device* device, const void* host, uint64_t size_bytes, void** address,
                             td_message* error);
  /* (optional; default: not registered) Makes memory reachable for a network card. */
  td_status (*memory_register)(td_device* device, void* address, uint64_t size_bytes, uint64_t* key,
                               td_message* error);

  /* Streams and events. */
  td_status (*stream_create)(td_device* device, td_stream** stream, td_message* error);
  void (*stream_destroy)(td_stream* stream);
  td_status (*stream_synchronize)(td_stream* stream, td_message* error);
  /* (optional; default: stream_synchronize, then the call) */
  td_status (*host_callback)(td_stream* stream, td_host_function function, void* argument, td_message* error);
  /* (optional, all together; default: stream_synchronize at record, so that an event is always passed) An event that
   * was never recorded is passed; recording again moves it. */
  td_status (*event_create)(td_device* device, td_event** event, td_message* error);
  void (*event_destroy)(td_event* event);
  td_status (*event_record)(td_event* event, td_stream* stream, td_message* error);
  td_status (*event_wait)(td_stream* stream, td_event* event, td_message* error);
  td_status (*event_query)(td_event* event, uint32_t* is_done, td_message* error);

  /* Copies, in stream order. */
  td_status (*copy_to_device)(td_stream* stream, void* to, const void* from_host, uint64_t size_bytes,
                              td_message* error);
  td_status (*copy_to_host)(td_stream* stream, void* to_host, const void* from, uint64_t size_bytes, td_message* error);
  td_status (*copy_on_device)(td_stream* stream, void* to, const void* from, uint64_t size_bytes, td_message* error);
  /* (optional; default: copy_on_device of block_stride bytes each) */
  td_status (*copy_blocks)(td_stream* stream, void* kv, const td_kv_layout* layout, const td_block_copy* copies,
                           uint32_t num_copies, td_message* error);

  /* Layouts. */
  uint64_t (*row_bytes)(td_device* device, uint32_t format, uint32_t columns);
  /* Fills the strides of a layout whose other fields are set. TD_UNSUPPORTED names what does not fit. */
  td_status (*kv_layout)(td_device* device, td_kv_layout* layout, td_message* error);
  /* Size of the packed form; TD_UNSUPPORTED when the device cannot use such a weight. */
  td_status (*weight_pack_size)(td_device* device, const td_weight_desc* desc, uint64_t* size_bytes, td_message* error);
  /* Writes the packed form into host memory. Every pack dequantises bit for bit as the file's own type. */
  td_status (*weight_pack)(td_device* device, const td_weight_desc* desc, void* host, td_message* error);
  /* (optional; default: the input's format of the op's description) Which td_format an op likes for its input. */
  uint32_t (*preferred_format)(td_device* device, const td_op* op, uint32_t operand);

  /* Ops and plans. A device has op_launch, or plan_create, plan_launch and plan_destroy, or all. */
  td_status (*op_supported)(td_device* device, const td_op* op, const td_weight* weights, td_message* error);
  /* (optional with plans) */
  td_status (*op_launch)(td_stream* stream, const td_plan_desc* plan, const td_op* op, const td_bindings* bindings,
                         td_message* error);
  /* (optional; default: the description is kept and op_launch called for each op) The description is borrowed for the
   * call, the weights' addresses for the life of the plan. */
  td_status (*plan_create)(td_device* device, const td_plan_desc* desc, td_plan** plan, td_message* error);
  td_status (*plan_launch)(td_stream* stream, td_plan* plan, const td_bindings* bindings, td_message* error);
  void (*plan_destroy)(td_plan* plan);

  /* Since 1.1. (optional, all together; default: KV moves between nodes in whole blocks only) Slots [begin, begin +
   * count) of one block, all layers and heads, to and from host memory, slot by slot: kv_slot_bytes each. Exactly these
   * bytes are read or written. Any thread, also beside a launch that does not write them. */
  uint64_t (*kv_slot_bytes)(td_device* device, const td_kv_layout* layout);
  td_status (*kv_read_slots)(td_device* device, const void* kv, const td_kv_layout* layout, uint32_t block,
                             uint32_t begin, uint32_t count, void* to_host, td_message* error);
  td_status (*kv_write_slots)(td_device* device, void* kv, const td_kv_layout* layout, uint32_t block, uint32_t begin,
                              uint32_t count, const void* from_host, td_message* error);

  /* Since 1.2. (optional; default: op_launch for each op of the part, or no parts on a device without it) Ops
   * [begin_op, end_op) of the plan. All parts in order with the same bindings are one plan_launch, to the bit; other
   * launches, of this plan too, may come in between when they share no arena and no external memory. */
  td_status (*plan_launch_part)(td_stream* stream, td_plan* plan, uint32_t begin_op, uint32_t end_op,
                                const td_bindings* bindings, td_message* error);
} td_plugin;

typedef const td_plugin* (*td_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
#endif
