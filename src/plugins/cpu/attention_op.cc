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
// A run takes this part of what is left for each member: long runs first, short ones to end together.
constexpr uint64_t kRunShare = 4;

// Neighbouring rows of one sequence.
struct RowTile {
  uint32_t sequence;
  uint32_t begin, end;            // rows of that sequence
  kernels::ChunkRange chunks{};   // that they see
  uint32_t first_unit = 0;        // of its units
};

// How a step's rows are cut, the same for all attention ops with one shape. A unit is a kv head of a tile, with all its
// chunks or, in a split step, with one of them: unit = tile.first_unit + (chunk) * kv heads + kv head. Work items are
// runs of units, so that a member knows what it reads next.
struct AttentionCut {
  td_op shape{};
  uint64_t launch = 0;  // that it was made in
  bool is_split = false;
  uint32_t num_units = 0;
  std::vector<RowTile> tiles;
  std::vector<uint32_t> run_begins;  // units; one more than there are runs
};

}  // namespace

// Working memory of a plan's attention ops, which run one after the other.
struct AttentionScratch {
  std::vector<std::shared_ptr<AttentionCut>> cuts;  // one for each shape
  std::vector<float> partials;  // of a split step: [item][group]
  struct Member {
    std::vector<uint8_t> queries;
    std::vector<float> partials, out;
  };
  std::vector<Member> members;
};

namespace {

// The state that the two halves of an attention op share.
struct AttentionStep {
  const PlanContext& context;
  const td_op op;
  const uint32_t group;
  const float query_scale;
  const uint32_t max_split_rows;
  const uint32_t partial_floats;          // of one row's group
  const td_bindings* bindings = nullptr;
  std::shared_ptr<AttentionScratch> scratch;
  std::shared_ptr<AttentionCut> cut;

  AttentionStep(PlanContext& plan_context, const td_op& attention_op)
      : context(plan_context),
        op(attention_op),
        group(op.num_heads / op.num_kv_heads),
        query_scale(kernels::query_scale(op.scale)),
        max_split_rows(split_rows(plan_context, op)),
        partial_floats(group * kernels::tk_partial_floats(op.head_dim)) {
    const td_plan_desc& desc = context.desc;
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
    share_cut();
  }

  void share_cut() {
    for (const std::shared_ptr<AttentionCut>& other : scratch->cuts) {
      const td_op& shape = other->shape;
      if (shape.num_heads == op.num_heads && shape.num_kv_heads == op.num_kv_heads && shape.head_dim == op.head_dim &&
          shape.window == op.window) {
        cut = other;
        return;
      }
    }
    cut = std::make_shared<AttentionCut>();
    cut->shape = op;
    const td_plan_desc& desc = context.desc;
    const uint64_t most_tiles = desc.max_sequences + desc.max_tokens / kTileRows + kMaxSplitRows;
    cut->tiles.reserve(most_tiles);
    cut->run_begins.reserve(op.num_kv_heads * std::max(most_tiles, uint64_t{max_split_rows} * max_chunks(desc)) + 1);
    scratch->cuts.push_back(cut);
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

  void cut_rows(uint32_t rows_per_tile) const {
    cut->tiles.clear();
    cut->num_units = 0;
    for (uint32_t s = 0; s < bindings->num_sequences; ++s) {
      const td_sequence& sequence = bindings->sequences[s];
      for (uint32_t row = 0; row < sequence.num_rows; row += rows_per_tile) {
        RowTile tile{s, row, std::min(row + rows_per_tile, sequence.num_rows)};
        tile.chunks = kernels::visible_chunks(attention(tile, 0), 0, tile.end - tile.begin);
        tile.first_unit = cut->num_units;
        cut->num_units += op.num_kv_heads * (cut->is_split ? tile.chunks.end - tile.chunks.begin : 1);
        cut->tiles.push_back(tile);
      }
    }
  }

  bool should_split() const {
    uint64_t chunks = 0;
    for (const RowTile& tile : cut->tiles) chunks += (tile.chunks.end - tile.chunks.begin) * (tile.end - tile.begin);
    return bindings->num_tokens <= max_split_rows && cut->num_units < kItemsPerMember * context.num_members &&
           chunks > cut->tiles.size();
  }

  void cut_runs() const {
    const auto cost = [this](const RowTile& tile) -> uint64_t {  // of one unit
      return cut->is_split ? 1 : uint64_t{tile.chunks.end - tile.chunks.begin} * (tile.end - tile.begin);
    };
    const auto units_end = [this](size_t tile) {
      return tile + 1 < cut->tiles.size() ? cut->tiles[tile + 1].first_unit : cut->num_units;
    };
    uint64_t left = 0;
    for (size_t i = 0; i < cut->tiles.size(); ++i) {
      left += cost(cut->tiles[i]) * (units_end(i) - cut->tiles[i].first_unit);
    }
    uint64_t taken = 0;
    cut->run_begins.assign(1, 0);
    for (size_t i = 0; i < cut->tiles.size(); ++i) {
      for (uint32_t unit = cut->tiles[i].first_unit; unit < units_end(i); ++unit) {
        taken += cost(cut->tiles[i]);
        if (taken < left / (kRunShare * context.num_members)) continue;
        cut->run_begins.push_back(unit + 1);
        left -= taken;
        taken = 0;
      }
    }
    if (cut->run_begins.back() != cut->num_units) cut->run_begins.push_back(cut->num_units);
  }

  void begin(const td_bindings& step_bindings) {
    bindings = &step_bindings;
    if (cut->launch == context.step.launch) return;  // another op of this shape has made it
    cut->launch = context.step.launch;
    cut->is_split = false;
    cut_rows(kTileRows);
    cut->is_split = should_split();
    if (cut->is_split) cut_rows(1);
    cut_runs();
  }

  uint32_t num_runs() const { return static_cast<uint32_t>(cut->run_begins.size()) - 1; }

  struct Unit {
    const RowTile* tile;
    uint32_t kv_head;
    uint32_t chunk;  // of a split step
  };

  Unit unit_at(uint32_t unit) const {
    const auto after = std::upper_bound(cut->tiles.begin(), cut->tiles.end(), unit,
                                        [](uint32_t wanted, const RowTile& tile) { return wanted < tile.first_unit; });
    const RowTile& tile = *(after - 1);
    const uint32_t index = unit - tile.first_unit;
    return {&tile, index % op.num_kv_heads, tile.chunks.begin + index / op.num_kv_heads};
  }

  // The unit that this member most likely takes after `unit` of `run`; num_units: none.
  uint32_t unit_after(uint32_t unit, uint32_t run) const {
    if (unit + 1 < cut->run_begins[run + 1]) return unit + 1;
    const uint32_t next_run = run + context.num_members;
    return next_run < num_runs() ? cut->run_begins[next_run] : cut->num_units;
  }

  // Row 0 is the tile's first one; without queries.
  tk_attention attention(const RowTile& tile, uint32_t kv_head) const {
    const td_sequence& sequence = bindings->sequences[tile.sequence];
    const td_kv_layout& layout = context.desc.kv;
    tk_attention attention{};
    attention.kind = layout.kind;
    attention.head_dim = op.head_dim;
    attention.group = group;
    attention.tiles_per_block = layout.block_tokens / kernels::TK_TILE_TOKENS;
    attention.first_position = sequence.position + tile.begin;
    attention.window = op.window;
    attention.blocks = sequence.blocks;
    attention.kv = kv_base(layout, bindings->kv, op.layer, kv_head);
    attention.block_stride = layout.block_stride;
    attention.head_stride = query_stride();
    attention.row_stride = group * attention.head_stride;
    return attention;
  }

  // The same with the tile's queries.
  tk_attention prepare(const RowTile& tile, uint32_t kv_head, uint32_t member) {
    tk_attention attention = this->attention(tile, kv_head);
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
    return step_->num_runs();
  }

  void work(uint32_t run, uint32_t member) override {
    const AttentionCut& cut = *step_->cut;
    for (uint32_t unit = cut.run_begins[run]; unit < cut.run_begins[run + 1]; ++unit) {
      const uint32_t next = step_->unit_after(unit, run);
      cut.is_split ? chunk_work(unit, next, member) : rows_work(unit, next, member);
    }
  }

 private:
  void rows_work(uint32_t unit_index, uint32_t next_index, uint32_t member) {
    AttentionStep& step = *step_;
    const AttentionStep::Unit unit = step.unit_at(unit_index);
    const RowTile& tile = *unit.tile;
    const tk_attention attention = step.prepare(tile, unit.kv_head, member);
    tk_attention next_attention;
    kernels::AttentionNext next{};
    if (next_index < step.cut->num_units) {
      const AttentionStep::Unit next_unit = step.unit_at(next_index);
      next_attention = step.attention(*next_unit.tile, next_unit.kv_head);
      next = {&next_attention, {0, next_unit.tile->end - next_unit.tile->begin}};
    }
    AttentionScratch::Member& scratch = step.scratch->members[member];
    const uint32_t num_rows = tile.end - tile.begin;
    const uint64_t row_floats = uint64_t{step.group} * step.op.head_dim;
    const uint32_t bad_row =
        kernels::attention_rows(*step.context.attention, attention, {0, num_rows}, scratch.partials.data(),
                                {scratch.out.data(), row_floats, step.op.head_dim}, next);
    if (bad_row < num_rows) step.mark_fault(step.bindings->sequences[tile.sequence].row_begin + tile.begin + bad_row);
    step.store(tile, unit.kv_head, scratch.out.data());
  }

  void chunk_work(uint32_t unit_index, uint32_t next_index, uint32_t member) {
    AttentionStep& step = *step_;
    const AttentionStep::Unit unit = step.unit_at(unit_index);
    const tk_attention attention = step.prepare(*unit.tile, unit.kv_head, member);
    tk_keys_ahead ahead{};
    if (next_index < step.cut->num_units) {
      const AttentionStep::Unit next = step.unit_at(next_index);
      ahead = kernels::keys_of_chunk(step.attention(*next.tile, next.kv_head), next.chunk, {0, 1});
    }
    float* partial = step.scratch->partials.data() + uint64_t{unit_index} * step.partial_floats;
    step.context.attention->chunk(&attention, unit.chunk, 0, 1, &ahead, partial);
  }

  std::shared_ptr<AttentionStep> step_;
};

// The second half of a split step: chunks merged left to right. Nothing to do otherwise.
class AttentionMergeOp final : public CpuOp {
 public:
  explicit AttentionMergeOp(std::shared_ptr<AttentionStep> step) : step_(std::move(step)) {}

  // Runs after AttentionOp::begin of the same launch.
  uint32_t begin(const td_bindings& /*bindings*/) override {
    return step_->cut->is_split ? static_cast<uint32_t>(step_->cut->tiles.size()) * step_->op.num_kv_heads : 0;
  }

  void work(uint32_t item, uint32_t member) override {
    AttentionStep& step = *step_;
    const RowTile& tile = step.cut->tiles[item / step.op.num_kv_heads];
    const uint32_t kv_head = item % step.op.num_kv_heads;
    const uint32_t head_dim = step.op.head_dim;
    AttentionScratch::Member& scratch = step.scratch->members[member];
    kernels::reset_partials(head_dim, step.group, scratch.partials.data());
    for (uint32_t chunk = tile.chunks.begin; chunk < tile.chunks.end; ++chunk) {
      const uint64_t part = tile.first_unit + (chunk - tile.chunks.begin) * step.op.num_kv_heads + kv_head;
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
