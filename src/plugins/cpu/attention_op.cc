#include <algorithm>
#include <atomic>

#include "compute/kernels/kv_write.h"
#include "plugins/cpu/cpu_op.h"

namespace tandem::cpu {

using namespace kernels;  // C structs and constants with a prefix of their own
namespace {

using kernels::tk_attention;

constexpr uint32_t kTileRows = 32;
// With fewer work items than this per member, long contexts are cut by chunks as well.
constexpr uint32_t kItemsPerMember = 4;
constexpr uint32_t kMaxSplitRows = 16;
constexpr uint64_t kMaxPartialBytes = 32ull << 20;

// Neighbouring rows of one sequence.
struct RowTile {
  uint32_t sequence;
  uint32_t begin, end;            // rows of that sequence
  kernels::ChunkRange chunks{};   // that they see
  uint32_t first_item = 0;        // in a split step: of the (chunk, kv head) items
};

}  // namespace

// Working memory of a plan's attention ops, which run one after the other.
struct AttentionScratch {
  std::vector<float> partials;  // of a split step: [item][group]
  struct Member {
    std::vector<uint8_t> queries;
    std::vector<float> partials, out;
  };
  std::vector<Member> members;
};

namespace {

// The state that the two halves of an attention op share: which rows, cut how.
struct AttentionStep {
  const PlanContext& context;
  const td_op op;
  const uint32_t group;
  const float query_scale;
  const uint32_t max_split_rows;
  const uint32_t partial_floats;          // of one row's group
  const td_bindings* bindings = nullptr;
  bool is_split = false;
  std::vector<RowTile> tiles;
  std::shared_ptr<AttentionScratch> scratch;
  uint32_t num_split_items = 0;

  AttentionStep(PlanContext& plan_context, const td_op& attention_op)
      : context(plan_context),
        op(attention_op),
        group(op.num_heads / op.num_kv_heads),
        query_scale(kernels::query_scale(op.scale)),
        max_split_rows(split_rows(plan_context, op)),
        partial_floats(group * kernels::tk_partial_floats(op.head_dim)) {
    const td_plan_desc& desc = context.desc;
    tiles.reserve(desc.max_sequences + desc.max_tokens / kTileRows + kMaxSplitRows);
    if (plan_context.attention_scratch == nullptr) {
      plan_context.attention_scratch = std::make_shared<AttentionScratch>();
      plan_context.attention_scratch->members.resize(context.num_members);
    }
    scratch = plan_context.attention_scratch;
    grow(scratch->partials, uint64_t{max_split_rows} * op.num_kv_heads * max_chunks(desc) * partial_floats);
    for (AttentionScratch::Member& member : scratch->members) {
      grow(member.queries, uint64_t{kTileRows} * group * query_stride());
      grow(member.partials, kernels::attention_scratch_floats(op.head_dim, group, kTileRows));
      grow(member.out, uint64_t{kTileRows} * group * op.head_dim);
    }
  }
  template <class T>
  static void grow(std::vector<T>& memory, uint64_t size) {
    if (memory.size() < size) memory.resize(size);
  }

  static uint32_t max_chunks(const td_plan_desc& desc) {
    return (desc.max_positions + kernels::TK_CHUNK_KEYS - 1) / kernels::TK_CHUNK_KEYS;
  }
  static uint32_t split_rows(const PlanContext& context, const td_op& op) {
    const uint64_t per_row = uint64_t{op.num_heads} * max_chunks(context.desc) *
                             kernels::tk_partial_floats(op.head_dim) * sizeof(float);
    return static_cast<uint32_t>(std::min<uint64_t>(kMaxSplitRows, kMaxPartialBytes / per_row));
  }
  uint64_t query_stride() const { return (kernels::tk_query_bytes(context.desc.kv.kind, op.head_dim) + 63) / 64 * 64; }

  // Cuts the step into tiles of rows; returns how many.
  void cut(uint32_t rows_per_tile) {
    tiles.clear();
    uint32_t items = 0;
    for (uint32_t s = 0; s < bindings->num_sequences; ++s) {
      const td_sequence& sequence = bindings->sequences[s];
      for (uint32_t row = 0; row < sequence.num_rows; row += rows_per_tile) {
        RowTile tile{s, row, std::min(row + rows_per_tile, sequence.num_rows)};
        tile.chunks = kernels::visible_chunks(attention(tile, 0), tile.begin, tile.end);
        tile.first_item = items;
        items += (tile.chunks.end - tile.chunks.begin) * op.num_kv_heads;
        tiles.push_back(tile);
      }
    }
    num_split_items = items;
  }

  void begin(const td_bindings& step_bindings) {
    bindings = &step_bindings;
    cut(kTileRows);
    const uint64_t items = tiles.size() * uint64_t{op.num_kv_heads};
    is_split = bindings->num_tokens <= max_split_rows && items < uint64_t{kItemsPerMember} * context.num_members &&
               num_split_items > items;
    if (is_split) cut(1);
  }

  tk_attention attention(const RowTile& tile, uint32_t kv_head) const {
    const td_sequence& sequence = bindings->sequences[tile.sequence];
    const td_kv_layout& layout = context.desc.kv;
    tk_attention attention{};
    attention.kind = layout.kind;
    attention.head_dim = op.head_dim;
    attention.group = group;
    attention.tiles_per_block = layout.block_tokens / kernels::TK_TILE_TOKENS;
    attention.first_position = sequence.position;
    attention.window = op.window;
    attention.blocks = sequence.blocks;
    attention.kv = kv_base(layout, bindings->kv, op.layer, kv_head);
    attention.block_stride = layout.block_stride;
    attention.head_stride = query_stride();
    attention.row_stride = group * attention.head_stride;
    return attention;
  }

  // Prepares the tile's queries of one kv head; row `tile.begin` is the first one there.
  tk_attention prepare(const RowTile& tile, uint32_t kv_head, uint32_t member) {
    tk_attention attention = this->attention(tile, kv_head);
    attention.first_position += tile.begin;
    uint8_t* queries = scratch->members[member].queries.data();
    attention.queries = queries;
    const uint8_t* in = operand_base(op.in[0], *bindings);
    const uint32_t first_row = bindings->sequences[tile.sequence].row_begin + tile.begin;
    for (uint32_t row = 0; row < tile.end - tile.begin; ++row) {
      const auto* q = reinterpret_cast<const float*>(in + (first_row + row) * op.in[0].row_bytes);
      for (uint32_t head = 0; head < group; ++head) {
        uint8_t* query = queries + row * attention.row_stride + head * attention.head_stride;
        const bool is_finite =
            kernels::prepare_query(static_cast<kernels::tk_kv_kind>(attention.kind), op.head_dim, query_scale,
                                   q + (kv_head * group + head) * op.head_dim, query);
        if (!is_finite) mark_fault(first_row + row);
      }
    }
    return attention;
  }

  void mark_fault(uint32_t row) const {
    // Members that work on different heads of a row may both have something to say.
    if (bindings->row_faults != nullptr) {
      std::atomic_ref<uint8_t>(bindings->row_faults[row]).store(1, std::memory_order_relaxed);
    }
  }

  // Stores finished rows [row][group][head_dim] in the output's format.
  void store(const RowTile& tile, uint32_t kv_head, float* rows) const {
    const uint32_t first_row = bindings->sequences[tile.sequence].row_begin + tile.begin;
    const uint32_t columns = group * op.head_dim;
    tk_epilogue epilogue{};
    epilogue.out = operand_base(op.out[0], *bindings);
    epilogue.out_stride = op.out[0].row_bytes;
    epilogue.out_columns = op.out[0].columns_total;
    epilogue.out_kind = rows_kind(op.out[0].format);
    if (epilogue.out_kind == TK_ROWS_F32) {
      for (uint32_t row = 0; row < tile.end - tile.begin; ++row) {
        uint8_t* out = static_cast<uint8_t*>(epilogue.out) + (first_row + row) * epilogue.out_stride;
        std::copy_n(rows + uint64_t{row} * columns, columns, reinterpret_cast<float*>(out) + kv_head * columns);
      }
      return;
    }
    for (uint32_t column = 0; column < columns; column += TK_PANEL_ROWS) {
      const tk_tile out_tile{rows + column, columns, first_row, first_row + tile.end - tile.begin};
      context.linear->epilogue(&epilogue, &out_tile, nullptr, kv_head * columns + column, TK_PANEL_ROWS);
    }
  }
};

// Whole rows, or in a split step one chunk of one row.
class AttentionOp final : public CpuOp {
 public:
  explicit AttentionOp(std::shared_ptr<AttentionStep> step) : step_(std::move(step)) {}

  uint32_t begin(const td_bindings& bindings) override {
    step_->begin(bindings);
    return step_->is_split ? step_->num_split_items
                           : static_cast<uint32_t>(step_->tiles.size()) * step_->op.num_kv_heads;
  }

  void work(uint32_t item, uint32_t member) override {
    AttentionStep& step = *step_;
    if (step.is_split) {
      chunk_work(item, member);
      return;
    }
    const RowTile& tile = step.tiles[item / step.op.num_kv_heads];
    const uint32_t kv_head = item % step.op.num_kv_heads;
    const tk_attention attention = step.prepare(tile, kv_head, member);
    AttentionScratch::Member& scratch = step.scratch->members[member];
    const uint32_t num_rows = tile.end - tile.begin;
    const uint64_t row_floats = uint64_t{step.group} * step.op.head_dim;
    const uint32_t bad_row =
        kernels::attention_rows(*step.context.attention, attention, {0, num_rows}, scratch.partials.data(),
                                {scratch.out.data(), row_floats, step.op.head_dim});
    if (bad_row < num_rows) step.mark_fault(step.bindings->sequences[tile.sequence].row_begin + tile.begin + bad_row);
    step.store(tile, kv_head, scratch.out.data());
  }

 private:
  void chunk_work(uint32_t item, uint32_t member) {
    AttentionStep& step = *step_;
    const auto after = std::upper_bound(step.tiles.begin(), step.tiles.end(), item,
                                        [](uint32_t wanted, const RowTile& tile) { return wanted < tile.first_item; });
    const RowTile& tile = *(after - 1);
    const uint32_t index = item - tile.first_item;
    const uint32_t kv_head = index % step.op.num_kv_heads;
    const uint32_t chunk = tile.chunks.begin + index / step.op.num_kv_heads;
    const tk_attention attention = step.prepare(tile, kv_head, member);
    float* partial = step.scratch->partials.data() + uint64_t{item} * step.partial_floats;
    step.context.attention->chunk(&attention, chunk, 0, 1, partial);
  }

  std::shared_ptr<AttentionStep> step_;
};

// The second half of a split step: chunks merged left to right. Nothing to do otherwise.
class AttentionMergeOp final : public CpuOp {
 public:
  explicit AttentionMergeOp(std::shared_ptr<AttentionStep> step) : step_(std::move(step)) {}

  // Runs after AttentionOp::begin of the same launch.
  uint32_t begin(const td_bindings& /*bindings*/) override {
    return step_->is_split ? static_cast<uint32_t>(step_->tiles.size()) * step_->op.num_kv_heads : 0;
  }

  void work(uint32_t item, uint32_t member) override {
    AttentionStep& step = *step_;
    const RowTile& tile = step.tiles[item / step.op.num_kv_heads];
    const uint32_t kv_head = item % step.op.num_kv_heads;
    const uint32_t head_dim = step.op.head_dim;
    AttentionScratch::Member& scratch = step.scratch->members[member];
    kernels::reset_partials(head_dim, step.group, scratch.partials.data());
    for (uint32_t chunk = tile.chunks.begin; chunk < tile.chunks.end; ++chunk) {
      const uint64_t part = tile.first_item + (chunk - tile.chunks.begin) * step.op.num_kv_heads + kv_head;
      step.context.attention->merge(head_dim, step.group, scratch.partials.data(),
                                    step.scratch->partials.data() + part * step.partial_floats);
    }
    for (uint32_t head = 0; head < step.group; ++head) {
      const float* partial = scratch.partials.data() + uint64_t{head} * kernels::tk_partial_floats(head_dim);
      if (!step.context.attention->finish(head_dim, partial, scratch.out.data() + uint64_t{head} * head_dim)) {
        step.mark_fault(step.bindings->sequences[tile.sequence].row_begin + tile.begin);
      }
    }
    step.store(tile, kv_head, scratch.out.data());
  }

 private:
  std::shared_ptr<AttentionStep> step_;
};

}  // namespace

Status make_attention(PlanContext& context, const td_op& op, CpuOps& ops) {
  if (op.num_kv_heads == 0 || op.num_heads % op.num_kv_heads != 0) {
    return Error{ErrorCode::kInvalidArgument, "attention: the query heads must be a multiple of the kv heads"};
  }
  if (op.out[0].format != TD_F32 && op.head_dim % 32 != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "attention: a quantised output needs a head_dim that is a multiple of 32"};
  }
  auto step = std::make_shared<AttentionStep>(context, op);
  ops.push_back(std::make_unique<AttentionOp>(step));
  ops.push_back(std::make_unique<AttentionMergeOp>(step));
  return Done{};
}

}  // namespace tandem::cpu
