#pragma once
// FakeNode: a node without model and KV, behind a real server: it answers the protocol, and what it generates follows
// from prompt, choice and place alone, so that another node goes on with the same. Its pushes take no time.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_safety.h"
#include "cluster/registry/memory_registry.h"
#include "cluster/wire/session_codec.h"
#include "net/rpc/rpc_server.h"

namespace tandem::gateway {

constexpr TokenId kFakeEos = 2;
constexpr uint32_t kFakeCached = 2;  // tokens of each prompt

inline TokenId fake_token(const handoff::RequestState& state, uint32_t choice, uint32_t index) {
  uint64_t hash = state.sampling.seed + choice * 1000003 + index * 7919;
  for (const TokenId token : state.prompt) hash = hash * 31 + static_cast<uint64_t>(token);
  return static_cast<TokenId>(100 + hash % 800);
}
// The text of a token, for stop strings.
inline std::string fake_text(TokenId token) { return "<" + std::to_string(token) + ">"; }

class FakeNode;

// Those that prefill find those that decode by name.
class FakePeers {
 public:
  void add(const std::string& id, FakeNode* node) {
    Lock lock(mutex_);
    nodes_[id] = node;
  }
  FakeNode& at(const std::string& id) const {
    Lock lock(mutex_);
    return *nodes_.at(id);
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, FakeNode*> nodes_ GUARDED_BY(mutex_);
};

class FakeNode {
 public:
  FakeNode(std::string id, handoff::Role role, registry::Registry& registry, FakePeers& peers, uint64_t incarnation,
           uint32_t credits, uint32_t proto = handoff::kProtoExtendedRequests)
      : self_{std::move(id), incarnation}, role_(role), peers_(peers), credits_(credits), proto_(proto) {
    auto server = rpc::RpcServer::listen("127.0.0.1", 0, {}, inbox_);
    REQUIRE(static_cast<bool>(server));
    server_ = std::move(server).value();
    peers_.add(self_.id, this);
    const registry::NodeRecord record{self_.id, incarnation, role, 0, registry::NodeState::kReady,
                                      "127.0.0.1:" + std::to_string(server_->port()), "", 4000 + incarnation};
    REQUIRE(static_cast<bool>(registry.join(record)));
    thread_ = std::thread([this] { run(); });
  }
  ~FakeNode() { kill(); }

  // As a process that dies: the streams break. The record stays.
  void kill() {
    if (!thread_.joinable()) return;
    is_dead_ = true;
    thread_.join();
    server_.reset();
  }
  // Beyond so many tokens of a request nothing is generated.
  void hold_at(uint32_t num_tokens) { limit_ = num_tokens; }

  // It repeats the first tokens as others than the source's.
  void lie() { is_liar_ = true; }

  uint32_t num_decoding() const {
    Lock lock(mutex_);
    return static_cast<uint32_t>(jobs_.size());
  }
  // What it was asked to prefill, in order.
  std::vector<handoff::Prefill> prefills() const {
    Lock lock(mutex_);
    return prefills_;
  }

 private:
  struct Job {
    handoff::RequestId request;
    handoff::Attempt attempt = 0;
    handoff::RequestState state;
    std::string holder;
  };

  void run() {
    while (!is_dead_) {
      for (const rpc::RpcEvent& event : inbox_.wait_drain(0.002)) {
        if (event.kind == rpc::RpcEvent::Kind::kOpened) stream_ = event.stream;
        if (event.kind == rpc::RpcEvent::Kind::kClosed && event.stream == stream_) stream_.reset();
        if (event.kind == rpc::RpcEvent::Kind::kFrame) on_message(*wire::decode_session(event.frame).value());
      }
      step();
      beat();
    }
  }

  void send(const handoff::SessionMessage& message) {
    if (stream_) stream_->send(wire::encode_session(message).value());
  }

  void on_message(const handoff::SessionMessage& message) {
    if (const auto* hello = std::get_if<handoff::Hello>(&message)) {
      handoff::Hello answer;
      answer.proto = proto_;
      answer.from = self_;
      answer.session = hello->session;
      answer.role = role_;
      answer.role_epoch = 1;
      answer.capacity_blocks = 100;
      answer.private_blocks = 60;
      answer.credits = credits_;
      send(answer);
    } else if (const auto* reserve = std::get_if<handoff::Reserve>(&message)) {
      send(handoff::ReserveOk{reserve->request, reserve->attempt, 1, handoff::PartSet(), 2});
    } else if (const auto* prefill = std::get_if<handoff::Prefill>(&message)) {
      {
        Lock lock(mutex_);
        prefills_.push_back(*prefill);
      }
      const Job job{prefill->request, prefill->attempt, prefill->state, ""};
      if (prefill->target.id != self_.id && limit_ > 0) send_first(job);
      using handoff::Part;
      send(handoff::Timings{job.request, job.attempt, {{Part::kPrefillQueue, 2'000'000, 4'000'000},
                                                       {Part::kPrefill, 0, 2'000'000}, {Part::kUnknown, 0, 9}}});
      peers_.at(prefill->target.id).begin(job);
    } else if (const auto* mirror = std::get_if<handoff::SetMirror>(&message)) {
      Lock lock(mutex_);
      const auto it = jobs_.find(mirror->request);
      if (it != jobs_.end()) it->second.holder = mirror->holder.id;
    } else if (const auto* release = std::get_if<handoff::Release>(&message)) {
      Lock lock(mutex_);
      const auto it = jobs_.find(release->request);
      if (it != jobs_.end() && it->second.attempt <= release->upto_attempt) jobs_.erase(it);
    }
  }

  void begin(const Job& job) {
    Lock lock(mutex_);
    jobs_.insert_or_assign(job.request, job);
  }

  static handoff::TokenEntry next_of(const Job& job, uint32_t choice) {
    const handoff::RequestState& state = job.state;
    handoff::TokenEntry entry;
    entry.request = job.request;
    entry.attempt = job.attempt;
    entry.choice = choice;
    entry.index = static_cast<uint32_t>(state.choices[choice].tokens.size());
    entry.token = fake_token(state, choice, entry.index);
    if (entry.index == 0) entry.num_cached = kFakeCached;
    if (state.sampling.num_logprobs >= 0) {
      entry.logprob = -0.25f * static_cast<float>(entry.index + 1);
      entry.rank = entry.index + 1;
      for (int32_t k = 0; k < state.sampling.num_logprobs; ++k) {
        entry.top.emplace_back(k, -0.5f * static_cast<float>(k));
      }
    }
    const std::string text = fake_text(entry.token);
    if (std::ranges::count(state.stop_token_ids, entry.token) > 0) entry.finish = handoff::Finish::kStop;
    else if (std::ranges::count(state.stop_strings, text) > 0) entry.finish = handoff::Finish::kStopRule;
    else if (entry.index + 1 >= state.max_tokens) entry.finish = handoff::Finish::kLength;
    return entry;
  }

  void send_first(const Job& job) {
    for (uint32_t c = 0; c < job.state.choices.size(); ++c) {
      if (!job.state.choices[c].is_finished) send(handoff::First{next_of(job, c)});
    }
  }

  // A token of each choice of each request.
  void step() {
    handoff::TokenBatch batch;
    batch.step = ++num_steps_;
    {
      Lock lock(mutex_);
      for (auto& [id, job] : jobs_) {
        for (uint32_t c = 0; c < job.state.choices.size(); ++c) {
          handoff::ChoiceState& choice = job.state.choices[c];
          if (choice.is_finished || choice.tokens.size() >= limit_) continue;
          batch.entries.push_back(next_of(job, c));
          if (is_liar_ && choice.tokens.empty()) ++batch.entries.back().token;
          choice.tokens.push_back(batch.entries.back().token);
          choice.is_finished = batch.entries.back().finish != handoff::Finish::kNone;
        }
      }
    }
    if (!batch.entries.empty()) send(batch);
  }

  void beat() {
    handoff::Beat beat;
    beat.io_seq = ++num_beats_;
    beat.step_seq = num_steps_;
    beat.private_free = 50;
    beat.shared_free = 30;
    beat.credits = credits_;
    {
      Lock lock(mutex_);
      beat.num_running = static_cast<uint32_t>(jobs_.size());
      for (const auto& [id, job] : jobs_) {
        if (!job.holder.empty()) beat.mirrored.push_back({id, job.attempt, peers_.at(job.holder).self_, 0});
      }
    }
    send(beat);
  }

  const handoff::NodeRef self_;
  const handoff::Role role_;
  FakePeers& peers_;
  rpc::RpcInbox inbox_;
  std::unique_ptr<rpc::RpcServer> server_;
  std::shared_ptr<rpc::RpcStream> stream_;  // the newest gateway's
  std::atomic<bool> is_dead_{false}, is_liar_{false};
  std::atomic<uint32_t> limit_{UINT32_MAX};
  const uint32_t credits_, proto_;
  uint64_t num_steps_ = 0, num_beats_ = 0;
  mutable Mutex mutex_;
  std::map<handoff::RequestId, Job> jobs_ GUARDED_BY(mutex_);
  std::vector<handoff::Prefill> prefills_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::gateway
