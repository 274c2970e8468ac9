#include "cluster/handoff/target.h"

#include <algorithm>
#include <utility>

namespace tandem::handoff {
namespace {

bool are_all_finished(const RequestState& state) {
  return std::all_of(state.choices.begin(), state.choices.end(), [](const ChoiceState& c) { return c.is_finished; });
}

}  // namespace

Target::Target(const Reserve& reserve, const NodeRef& self, uint64_t landing, uint64_t kv_token, PartSet have,
               Actions& out)
    : request_(reserve.request),
      self_(self),
      source_(reserve.source),
      attempt_(reserve.attempt),
      landing_(landing),
      kv_token_(kv_token),
      shape_(reserve.shape),
      received_(std::move(have)) {
  answer_reserve(out);
}

void Target::answer_reserve(Actions& out) {
  out.push_back(ToGateway{ReserveOk{request_, attempt_, landing_, received_, kv_token_}});
}

void Target::on_reserve(const Reserve& reserve, uint64_t landing, Actions& out) {
  if (reserve.attempt <= attempt_ || state_ == State::kEnded) return;
  attempt_ = reserve.attempt;
  source_ = reserve.source;
  if (state_ == State::kFilling) {
    has_commit_ = false;
    landing_ = landing;
    received_ = carried_over(received_, shape_, reserve.shape);
    shape_ = reserve.shape;
    answer_reserve(out);
    return;
  }
  out.push_back(ToGateway{Running{request_, attempt_, kv_token_}});
  TokenBatch batch;
  for (uint32_t c = 0; c < told_.size() && c < reserve.shape.num_choices(); ++c) {
    for (TokenEntry& entry : told_[c]) {
      entry.attempt = attempt_;
      if (entry.index >= reserve.shape.choice_tokens[c]) batch.entries.push_back(entry);
    }
  }
  if (!batch.entries.empty()) out.push_back(ToGateway{std::move(batch)});
  mirror_.stop();  // the holder's pin is of the old attempt, until the gateway says SetMirror
}

Target::PushResult Target::on_push(const Push& push, uint64_t checksum, const NodeRef& from, Actions& out) {
  const bool is_ours = push.attempt == attempt_ && from == source_ && push.landing == landing_;
  const bool is_part = push.block < shape_.num_blocks() && push.layer_group < shape_.num_layer_groups;
  const bool is_repeated = is_ours && is_part && state_ == State::kDecoding;
  if (is_repeated) return PushResult::kRepeated;
  if (state_ != State::kFilling || !is_ours || !is_part || checksum != push.checksum) {
    out.push_back(ToPeer{from, Stale{push.request, push.attempt, attempt_}});
    return PushResult::kStale;
  }
  if (!received_.add(push.block * shape_.num_layer_groups + push.layer_group)) return PushResult::kRepeated;
  out.push_back(CopyIn{push.block, push.layer_group, push.payload});
  try_begin(out);
  return PushResult::kTaken;
}

void Target::on_commit(const Commit& commit, const NodeRef& from, Actions& out) {
  const bool is_ours = commit.attempt == attempt_ && from == source_ && commit.num_parts == shape_.num_parts();
  if (!is_ours || state_ == State::kEnded) {
    out.push_back(ToPeer{from, Stale{commit.request, commit.attempt, attempt_}});
    return;
  }
  if (state_ == State::kDecoding) {  // the acknowledgement may have been lost
    out.push_back(ToPeer{from, CommitAck{request_, attempt_}});
    return;
  }
  has_commit_ = true;
  commit_ = commit;
  try_begin(out);
}

void Target::on_local_commit(const Commit& commit, Actions& out) {
  if (state_ != State::kFilling || commit.attempt != attempt_ || source_ != self_) return;
  for (uint32_t part = 0; part < shape_.num_parts(); ++part) received_.add(part);
  has_commit_ = true;
  commit_ = commit;
  try_begin(out);
}

// The gate. No step is taken on a request whose bitmap is not full.
void Target::try_begin(Actions& out) {
  if (!has_commit_ || (!received_.is_full() && !is_gate_open_)) return;
  state_ = State::kDecoding;
  request_state_ = std::move(commit_.state);
  std::vector<uint32_t> upto;
  for (const ChoiceState& choice : request_state_.choices) {
    upto.push_back(static_cast<uint32_t>(request_state_.prompt.size() + choice.tokens.size()));
  }
  TokenBatch batch;
  told_.assign(request_state_.choices.size(), {});
  for (TokenEntry& entry : commit_.first) {
    if (entry.choice >= request_state_.choices.size()) continue;
    entry.attempt = attempt_;
    take(entry);
    batch.entries.push_back(std::move(entry));
  }
  if (source_ != self_) {
    out.push_back(ToPeer{source_, CommitAck{request_, attempt_}});
    mirror_.start(source_, upto, upto);
  }
  // The stream starts at the committed index: it has no gap even when First was lost.
  out.push_back(ToGateway{std::move(batch)});
  if (are_all_finished(request_state_)) state_ = State::kEnded;
  else out.push_back(BeginDecode{request_state_});
}

void Target::take(const TokenEntry& entry) {
  ChoiceState& choice = request_state_.choices[entry.choice];
  choice.tokens.push_back(entry.token);
  choice.is_finished = entry.finish != Finish::kNone;
  told_[entry.choice].push_back(entry);
}

std::vector<uint32_t> Target::written() const {
  std::vector<uint32_t> written;
  for (const ChoiceState& choice : request_state_.choices) {
    // The newest token's KV is written by the step that samples the next one.
    const size_t num_tokens = choice.tokens.size();
    written.push_back(static_cast<uint32_t>(request_state_.prompt.size() + (num_tokens > 0 ? num_tokens - 1 : 0)));
  }
  return written;
}

void Target::on_tokens(const std::vector<TokenEntry>& tokens, std::vector<TokenEntry>& batch, Actions& out) {
  if (state_ != State::kDecoding) return;
  for (TokenEntry entry : tokens) {
    const ChoiceState& choice = request_state_.choices[entry.choice];
    if (choice.is_finished || entry.index != choice.tokens.size()) continue;
    entry.request = request_;
    entry.attempt = attempt_;
    take(entry);
    batch.push_back(std::move(entry));
  }
  poll_mirror(out);
  if (are_all_finished(request_state_)) state_ = State::kEnded;
}

// A choice that finished before the hand-off has no blocks here, and none needs them again.
std::vector<uint32_t> Target::wanted_at_holder() const {
  std::vector<uint32_t> wanted = written();
  for (uint32_t c = 0; c < wanted.size(); ++c) {
    if (request_state_.choices[c].is_finished) wanted[c] = 0;
  }
  return wanted;
}

void Target::poll_mirror(Actions& out) {
  mirror_.poll(request_, attempt_, wanted_at_holder(),
               [&](uint32_t c, uint32_t position) {
                 const size_t num_prompt = request_state_.prompt.size();
                 return position < num_prompt ? request_state_.prompt[position]
                                              : request_state_.choices[c].tokens[position - num_prompt];
               },
               out);
}

void Target::on_set_mirror(const SetMirror& message, Actions& out) {
  if (state_ != State::kDecoding || message.attempt != attempt_) return;
  mirror_.start(message.holder, std::vector<uint32_t>(request_state_.choices.size(), 0), wanted_at_holder());
  poll_mirror(out);
}

void Target::on_mirror_ack(const MirrorAck& ack, const NodeRef& from, Actions& out) {
  if (state_ != State::kDecoding || ack.attempt != attempt_) return;
  mirror_.on_ack(from, ack);
  poll_mirror(out);
}

void Target::on_mirror_stop(const MirrorStop& stop, const NodeRef& from) {
  if (stop.attempt == attempt_ && mirror_.is_on() && from == mirror_.holder()) mirror_.stop();
}

void Target::on_stale(const Stale& stale, const NodeRef& from, Actions& out) {
  const bool is_from_holder = mirror_.is_on() && from == mirror_.holder();
  if (state_ != State::kDecoding || stale.attempt != attempt_ || !is_from_holder) return;
  mirror_.stop();
  if (stale.newest <= attempt_) return;  // the holder knows less than this node: only the mirror has ended
  state_ = State::kEnded;
  out.push_back(StopDecode{});
}

void Target::on_connection_lost(const NodeRef& peer) {
  if (mirror_.is_on() && peer == mirror_.holder()) mirror_.stop();
}

}  // namespace tandem::handoff
