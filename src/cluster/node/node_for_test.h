#pragma once
// A node without a model: an executor whose KV of a position is a hash of all tokens up to it, and whose tokens are
// hashes of the KV before them, so that a wrong byte of KV shows as a wrong token; and a gateway that asks such nodes.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread_safety.h"
#include "cluster/node/node_process.h"
#include "cluster/registry/memory_registry.h"
#include "cluster/role/gateway.h"
#include "cluster/wire/session_codec.h"
#include "net/rpc/rpc_client.h"
#include "serve/sched/batch.h"

namespace tandem::node {

constexpr uint32_t kTestBlocks = 256, kTestBlockSize = 16, kTestGroups = 2;

inline uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15ull + (a << 6))) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 29)) * 0x94D049BB133111EBull;
  return x ^ (x >> 32);
}

// One word per position and layer group. The engine and the node's thread touch different words at any time; whether
// they do is what the thread sanitizer sees here.
class HashMemory final : public KvMemory {
 public:
  uint64_t& word(kv::BlockId block, uint32_t group, uint32_t slot) {
    return words_[(size_t{kv::index(block)} * kTestGroups + group) * kTestBlockSize + slot];
  }
  uint32_t part_bytes() const override { return kTestBlockSize * sizeof(uint64_t); }
  uint32_t slot_bytes() const override { return kTestGroups * sizeof(uint64_t); }
  Status read_part(kv::BlockId block, uint32_t group, std::byte* to) override {
    std::memcpy(to, &word(block, group, 0), part_bytes());
    return Done{};
  }
  Status write_part(kv::BlockId block, uint32_t group, const std::byte* from) override {
    std::memcpy(&word(block, group, 0), from, part_bytes());
    return Done{};
  }
  Status read_slots(kv::BlockId block, uint32_t begin, uint32_t count, std::byte* to) override {
    for (uint32_t slot = begin; slot < begin + count; ++slot) {
      for (uint32_t group = 0; group < kTestGroups; ++group, to += sizeof(uint64_t)) {
        std::memcpy(to, &word(block, group, slot), sizeof(uint64_t));
      }
    }
    return Done{};
  }
  Status write_slots(kv::BlockId block, uint32_t begin, uint32_t count, const std::byte* from) override {
    for (uint32_t slot = begin; slot < begin + count; ++slot) {
      for (uint32_t group = 0; group < kTestGroups; ++group, from += sizeof(uint64_t)) {
        std::memcpy(&word(block, group, slot), from, sizeof(uint64_t));
      }
    }
    return Done{};
  }

 private:
  std::vector<uint64_t> words_ = std::vector<uint64_t>(size_t{kTestBlocks} * kTestGroups * kTestBlockSize);
};

class HashExecutor final : public sched::StepExecutor {
 public:
  explicit HashExecutor(HashMemory& memory) : memory_(memory) {}
  Result<sched::StepOutcome> execute(const sched::Batch& batch) override { return run(batch, nullptr); }
  // A layer is a group here.
  Result<sched::StepOutcome> execute_observed(const sched::Batch& batch, sched::StepObserver& observer) override {
    return run(batch, &observer);
  }
  bool nests_steps() const override { return true; }
  // As long as it says so, an observed step stays where so many groups are written.
  std::function<bool(uint32_t num_groups)> holds;
  std::atomic<uint32_t> pause_us = 0;  // any thread: what each step takes longer

  static TokenId token_of(uint64_t first, uint64_t second, const SamplingParams& sampling) {
    return static_cast<TokenId>(mixed(mixed(first, second), sampling.seed + sampling.choice) % 50'000);
  }
  // How likely `next` is there, and a hidden state of one number.
  static float logprob_of(uint64_t first, uint64_t second, TokenId next) {
    return -static_cast<float>(mixed(mixed(first, second), static_cast<uint64_t>(next)) % 1000) / 8;
  }
  static double hidden_of(uint64_t first, uint64_t second) {
    return static_cast<double>(mixed(first, second) % 1000) / 8;
  }

 private:
  Result<sched::StepOutcome> run(const sched::Batch& batch, sched::StepObserver* observer) {
    if (const uint32_t us = pause_us.load(); us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    for (uint32_t group = 0; group < kTestGroups; ++group) {
      for (const sched::BatchItem& item : batch.items) {
        for (uint32_t p = item.begin; p < item.begin + item.count; ++p) {
          const uint64_t before = p == 0 ? group : at(item, group, p - 1);
          at(item, group, p) = mixed(before, static_cast<uint64_t>(item.tokens[p]));
        }
      }
      if (observer == nullptr) continue;
      observer->on_layers_written(group + 1);
      while (holds && holds(group + 1)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        observer->on_layers_written(group + 1);
      }
    }
    sched::StepOutcome outcome;
    for (const sched::BatchItem& item : batch.items) {
      sched::ItemOutcome& out = outcome.items.emplace_back();
      const uint32_t last = item.begin + item.count - 1;
      if (item.samples) out.token = token_of(at(item, 0, last), at(item, 1, last), *item.sampling);
      read_prompt(item, out);
    }
    return outcome;
  }
  void read_prompt(const sched::BatchItem& item, sched::ItemOutcome& out) {
    out.pooled.assign(item.pooled.begin(), item.pooled.end());
    for (uint32_t p = item.begin; p < std::min(item.begin + item.count, item.num_prompt_tokens); ++p) {
      const uint64_t first = at(item, 0, p), second = at(item, 1, p);
      if (item.prompt_logprobs >= 0 && p + 1 < item.num_prompt_tokens) {
        const TokenId next = item.tokens[p + 1];
        out.prompt_logprobs.push_back({next, logprob_of(first, second, next), 2, {{next + 1, -0.5f}}});
      }
      if (item.pooling == sched::Pooling::kMean) {
        out.pooled.resize(1);
        out.pooled[0] += hidden_of(first, second);
      } else if (item.pooling == sched::Pooling::kLast && p + 1 == item.num_prompt_tokens) {
        out.pooled = {hidden_of(first, second)};
      }
    }
  }
  uint64_t& at(const sched::BatchItem& item, uint32_t group, uint32_t position) {
    return memory_.word(item.blocks[position / kTestBlockSize], group, position % kTestBlockSize);
  }
  HashMemory& memory_;
};

// What the choice's tokens are without any cluster.
inline std::vector<TokenId> expected_tokens(const handoff::RequestState& state, uint32_t choice) {
  uint64_t words[kTestGroups] = {0, 1};
  const auto take = [&words](TokenId token) {
    for (uint64_t& word : words) word = mixed(word, static_cast<uint64_t>(token));
  };
  for (const TokenId token : state.prompt) take(token);
  SamplingParams sampling = state.sampling;
  sampling.choice = choice;
  std::vector<TokenId> tokens;
  while (tokens.size() < state.max_tokens) {
    tokens.push_back(HashExecutor::token_of(words[0], words[1], sampling));
    take(tokens.back());
  }
  return tokens;
}

struct TestNode {
  HashMemory memory;
  HashExecutor executor{memory};
  MetricRegistry metrics;
  std::unique_ptr<NodeProcess> process;
};

inline Result<std::unique_ptr<TestNode>> start_node(const std::string& id, handoff::Role role,
                                                    const std::string& data_address, registry::Registry& registry,
                                                    transport::LoopbackHub* hub, const Clock& clock) {
  auto node = std::make_unique<TestNode>();
  NodeProcessConfig config;
  config.policy.self.id = id;
  config.policy.role = role;
  config.policy.pool = {kTestBlocks, kTestBlocks / 2, kTestBlockSize};
  config.policy.num_layer_groups = kTestGroups;
  config.policy.max_pinned_blocks = kTestBlocks / 4;
  config.engine.block_size = kTestBlockSize;
  config.engine.num_layer_groups = kTestGroups;
  config.engine.layers_per_group = 1;
  config.engine.budget = {64, 0, 1};
  config.data_address = data_address;
  config.hub = hub;
  TRY_ASSIGN(node->process,
             NodeProcess::start(std::move(config), node->executor, node->memory, registry,
                                [](const handoff::RequestState&) { return nullptr; }, clock, node->metrics));
  return node;
}

// The gateway's policy over real streams, on the caller's thread.
class TestGateway {
 public:
  TestGateway(const registry::View& view, const Clock& clock) : view_(view), clock_(clock) {
    role::GatewayConfig config;
    config.self = {"gateway", 7};
    config.ramp = 0;
    policy_ = std::make_unique<role::Gateway>(std::move(config));
    for (const auto& [id, node] : view_.nodes) policy_->add_node(id);
    auto client = rpc::RpcClient::open({}, inbox_);
    if (client) client_ = std::move(*client);
  }

  handoff::RequestId submit(handoff::RequestState state) {
    const handoff::RequestId id{0, next_request_++};
    answers[id].resize(state.choices.size());
    const Status taken = policy_->submit(id, std::move(state), clock_.now_ns());
    if (taken) ++num_open;
    return id;
  }
  void turn() {
    for (rpc::RpcEvent& event : inbox_.wait_drain(0.002)) on_event(event);
    role::GatewayOuts outs;
    policy_->on_tick(clock_.now_ns(), outs);
    carry_out(outs);
  }
  // False when it did not come true in a minute.
  template <class Condition>
  bool turn_until(const Condition& is_true) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_true()) {
      if (std::chrono::steady_clock::now() > end) return false;
      turn();
    }
    return true;
  }
  size_t num_tokens() const {
    size_t sum = 0;
    for (const auto& [id, choices] : answers) {
      for (const auto& tokens : choices) sum += tokens.size();
    }
    return sum;
  }
  const role::Gateway& policy() const { return *policy_; }
  role::Gateway& policy() { return *policy_; }

  std::map<handoff::RequestId, std::vector<std::vector<TokenId>>> answers;
  std::map<handoff::RequestId, uint64_t> kv_tokens;  // as the targets gave them
  std::vector<std::string> errors;
  size_t num_open = 0;

 private:
  struct Stream {
    std::string node;
    uint64_t number = 0;
    std::shared_ptr<rpc::RpcStream> rpc;
  };

  void on_event(const rpc::RpcEvent& event) {
    const auto it = by_connection_.find(event.stream->connection_id());
    if (it == by_connection_.end()) return;
    const Stream stream = it->second;
    role::GatewayOuts outs;
    if (event.kind == rpc::RpcEvent::Kind::kFrame) {
      auto message = wire::decode_session(event.frame);
      if (message && *message) {
        if (const auto* ok = std::get_if<handoff::ReserveOk>(&**message)) kv_tokens[ok->request] = ok->kv_token;
        policy_->on_stream_message(stream.node, stream.number, **message, clock_.now_ns(), outs);
      }
    } else if (event.kind == rpc::RpcEvent::Kind::kClosed) {
      by_connection_.erase(it);
      policy_->on_stream_closed(stream.node, stream.number, clock_.now_ns(), outs);
    }
    carry_out(outs);
  }

  void carry_out(role::GatewayOuts& outs) {
    for (role::GatewayOut& out : outs) {
      if (const auto* open = std::get_if<role::OpenStream>(&out)) {
        auto rpc = client_->connect(view_.nodes.at(open->node).control);
        by_connection_[rpc->connection_id()] = {open->node, open->stream, rpc};
        by_number_[open->stream] = rpc;
      } else if (const auto* send = std::get_if<role::SendNode>(&out)) {
        auto frame = wire::encode_session(send->message);
        if (frame) by_number_.at(send->stream)->send(*frame);
      } else if (const auto* close = std::get_if<role::CloseStream>(&out)) {
        by_number_.at(close->stream)->abort();
      } else if (const auto* token = std::get_if<role::DeliverToken>(&out)) {
        answers.at(token->entry.request)[token->entry.choice].push_back(token->entry.token);
      } else if (const auto* ended = std::get_if<role::RequestEnded>(&out)) {
        --num_open;
        if (ended->error) errors.push_back(ended->message);
      }
    }
  }

  const registry::View view_;
  const Clock& clock_;
  rpc::RpcInbox inbox_;
  std::unique_ptr<rpc::RpcClient> client_;
  std::unique_ptr<role::Gateway> policy_;
  std::map<uint64_t, Stream> by_connection_;
  std::map<uint64_t, std::shared_ptr<rpc::RpcStream>> by_number_;
  uint64_t next_request_ = 1;
};

}  // namespace tandem::node
