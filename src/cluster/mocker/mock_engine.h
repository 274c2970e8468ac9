#pragma once
// MockEngine: an engine without a model. The KV of a position is a hash of all tokens up to it, and a token is a hash
// of the KV before it, so any wrong byte of KV and any wrong prefix shows as a wrong token. Step times come from
// StepCost. Driven by virtual time: begin a step, come back at its end.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cluster/role/node_actions.h"
#include "serve/cost/step_cost.h"

namespace tandem::mocker {

using handoff::Nanos;
using handoff::RequestId;

constexpr uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15ull + (a << 6))) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 29)) * 0x94D049BB133111EBull;
  return x ^ (x >> 32);
}

// The answer to a request, without any cluster. `salt` stands for sampling that is not deterministic: it changes the
// token's high bits, and so what follows, but not whether the token fits its prefix.
constexpr TokenId kPrefixBits = 0x7FFFFF;
TokenId token_after(uint64_t prefix_hash, uint64_t seed, uint32_t choice, uint32_t salt);
handoff::Finish finish_of(TokenId token, uint32_t index, const handoff::RequestState& state);
uint64_t prefix_hash(const std::vector<TokenId>& prompt, const std::vector<TokenId>& tokens, size_t num_positions);

// A node's KV memory: one word per position and layer group.
class MockKv {
 public:
  MockKv(uint32_t num_blocks, uint32_t block_size, uint32_t num_layer_groups)
      : block_size_(block_size), num_groups_(num_layer_groups), words_(size_t{num_blocks} * block_size * num_groups_) {}

  uint64_t& word(kv::BlockId block, uint32_t group, uint32_t slot) {
    return words_[(size_t{kv::index(block)} * num_groups_ + group) * block_size_ + slot];
  }
  std::vector<uint64_t> read_block(kv::BlockId block, uint32_t group);
  void write_block(kv::BlockId block, uint32_t group, const std::vector<uint64_t>& words);
  std::vector<uint64_t> read(const std::vector<role::Slots>& slots);
  void write(const std::vector<role::Slots>& slots, const std::vector<uint64_t>& words);
  uint32_t block_size() const { return block_size_; }
  uint32_t num_layer_groups() const { return num_groups_; }

 private:
  uint32_t block_size_, num_groups_;
  std::vector<uint64_t> words_;
};

struct MockEngineConfig {
  uint32_t chunk_tokens = 256;
  uint32_t salt = 0;               // 0: sampling is deterministic
  double slowness = 1;             // step times times this
  double surprise = 1;             // and this, which no prediction knows
  bool checks_all_positions = true;  // at every step; else only the newest block and, at the start, all
};

class MockEngine {
 public:
  using Report = std::function<void(const std::string& violation)>;

  // `kv` and `cost` outlive it.
  MockEngine(const MockEngineConfig& config, MockKv& kv, const cost::StepCost& cost, Report report)
      : config_(config), kv_(kv), cost_(cost), report_(std::move(report)) {}

  void start_prefill(role::StartPrefill job);
  void stop_prefill(const RequestId& request);
  void start_decode(role::StartDecode decode);
  void extend(const role::ExtendTable& extension);
  void stop_decode(const RequestId& request) { decodes_.erase(request); }

  // Begins a step when none runs and there is work. Returns when it ends; INT64_MAX: nothing to do.
  Nanos begin_step(Nanos now);
  // The step that ends at `now`: its KV is written, its tokens are sampled.
  std::vector<role::EngineNews> end_step();
  role::EngineProgress progress(Nanos now) const;
  void hang() { is_hung_ = true; }  // the step that runs, or the next, never ends
  bool is_hung() const { return is_hung_; }
  uint64_t num_steps() const { return step_seq_; }

 private:
  struct PrefillJob {
    role::StartPrefill start;
    handoff::HandoffShape shape;
    std::vector<uint32_t> cursor;   // next position to compute, by choice
    std::vector<uint8_t> reported;  // by block number
    Nanos began_at = 0;             // of its first step
  };
  struct Decode {
    handoff::RequestState state;
    role::KvTables tables;
    std::vector<uint64_t> hash;  // of prompt and tokens but the newest, by choice
  };

  uint32_t compute(PrefillJob& job, uint32_t budget, cost::StepShape& shape, bool is_dry);
  void run_prefill(std::vector<role::EngineNews>& news);
  void report_blocks(PrefillJob& job, std::vector<role::EngineNews>& news);
  void sample_prefill(PrefillJob& job, std::vector<role::EngineNews>& news);
  void run_decode(const RequestId& id, Decode& decode, std::vector<role::EngineNews>& news);
  void write_position(const role::KvTables& tables, uint32_t choice, uint32_t position, uint64_t hash);
  bool is_right(const role::KvTables& tables, const handoff::RequestState& state, uint32_t choice, uint32_t from,
                uint32_t end);
  uint32_t salt_of(const RequestId& id, uint32_t index) const;

  MockEngineConfig config_;
  MockKv& kv_;
  const cost::StepCost& cost_;
  Report report_;
  std::vector<PrefillJob> prefills_;  // in order of arrival
  std::map<RequestId, Decode> decodes_;
  std::vector<RequestId> step_decodes_;  // of the step that runs
  uint32_t step_prefill_ = 0;            // tokens
  bool is_stepping_ = false, is_hung_ = false;
  Nanos step_began_ = 0, step_predicted_ = 0;
  uint64_t step_seq_ = 0;
};

}  // namespace tandem::mocker
