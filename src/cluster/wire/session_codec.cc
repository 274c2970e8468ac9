#include "cluster/wire/session_codec.h"

#include <google/protobuf/arena.h>

#include "cluster/wire/proto_fields.h"
#include "cluster/wire/wire_limits.h"

namespace tandem::wire {
namespace {

using namespace handoff;
using google::protobuf::Arena;

// request and attempt, which nearly all messages begin with.
template <class From, class To>
void put_request(const From& from, To& to) {
  put(from.request, *to.mutable_request());
  to.set_attempt(from.attempt);
}
template <class From, class To>
Status take_request(const From& from, To& to) {
  TAKE(from, to, request);
  TRY(check_range("attempt", from.attempt(), 1, UINT32_MAX));
  to.attempt = from.attempt();
  return Done{};
}

template <class From, class To>
Status take_traceparent(const From& from, To& to) {
  if (from.traceparent().size() > kMaxNameBytes) return bad_field("traceparent", "is too long");
  to.traceparent = from.traceparent();
  return Done{};
}

pb::Role put_role(Role from) {
  switch (from) {
    case Role::kPrefill:
      return pb::ROLE_PREFILL;
    case Role::kDecode:
      return pb::ROLE_DECODE;
    case Role::kMixed:
      return pb::ROLE_MIXED;
  }
  return pb::ROLE_MIXED;
}
Role take_role(pb::Role from) {
  switch (from) {
    case pb::ROLE_PREFILL:
      return Role::kPrefill;
    case pb::ROLE_DECODE:
      return Role::kDecode;
    default:
      return Role::kMixed;
  }
}

pb::ReserveRefusal put_refusal(ReserveRefusal from) {
  switch (from) {
    case ReserveRefusal::kNoRoom:
      return pb::REFUSAL_NO_ROOM;
    case ReserveRefusal::kDraining:
      return pb::REFUSAL_DRAINING;
    case ReserveRefusal::kNeverFits:
      return pb::REFUSAL_NEVER_FITS;
    case ReserveRefusal::kUnknownFormat:
      return pb::REFUSAL_UNKNOWN_FORMAT;
  }
  return pb::REFUSAL_NO_ROOM;
}
ReserveRefusal take_refusal(pb::ReserveRefusal from) {
  switch (from) {
    case pb::REFUSAL_DRAINING:
      return ReserveRefusal::kDraining;
    case pb::REFUSAL_NEVER_FITS:
      return ReserveRefusal::kNeverFits;
    case pb::REFUSAL_UNKNOWN_FORMAT:
      return ReserveRefusal::kUnknownFormat;
    default:
      return ReserveRefusal::kNoRoom;
  }
}

pb::FailureCode put_failure(ErrorCode from) {
  switch (from) {
    case ErrorCode::kInvalidArgument:
      return pb::FAILURE_INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return pb::FAILURE_NOT_FOUND;
    case ErrorCode::kExhausted:
      return pb::FAILURE_EXHAUSTED;
    case ErrorCode::kUnavailable:
      return pb::FAILURE_UNAVAILABLE;
    case ErrorCode::kCancelled:
      return pb::FAILURE_CANCELLED;
    case ErrorCode::kDeadline:
      return pb::FAILURE_DEADLINE;
    case ErrorCode::kCorrupt:
      return pb::FAILURE_CORRUPT;
    case ErrorCode::kInternal:
      return pb::FAILURE_INTERNAL;
  }
  return pb::FAILURE_INTERNAL;
}
ErrorCode take_failure(pb::FailureCode from) {
  switch (from) {
    case pb::FAILURE_INVALID_ARGUMENT:
      return ErrorCode::kInvalidArgument;
    case pb::FAILURE_NOT_FOUND:
      return ErrorCode::kNotFound;
    case pb::FAILURE_EXHAUSTED:
      return ErrorCode::kExhausted;
    case pb::FAILURE_UNAVAILABLE:
      return ErrorCode::kUnavailable;
    case pb::FAILURE_CANCELLED:
      return ErrorCode::kCancelled;
    case pb::FAILURE_DEADLINE:
      return ErrorCode::kDeadline;
    case pb::FAILURE_CORRUPT:
      return ErrorCode::kCorrupt;
    default:
      return ErrorCode::kInternal;
  }
}

void put(const Hello& from, pb::Hello& to) {
  to.set_proto(from.proto);
  wire::put(from.from, *to.mutable_from());
  wire::put(from.session, *to.mutable_session());
  wire::put(from.fingerprint, *to.mutable_fingerprint());
  to.set_role(put_role(from.role));
  to.set_role_epoch(from.role_epoch);
  to.set_capacity_blocks(from.capacity_blocks);
  to.set_credits(from.credits);
  to.set_private_blocks(from.private_blocks);
}
Status take(const pb::Hello& from, Hello& to) {
  TRY(check_range("proto", from.proto(), 1, UINT32_MAX));
  to.proto = from.proto();
  TAKE(from, to, from);
  TAKE(from, to, session);
  TAKE(from, to, fingerprint);
  to.role = take_role(from.role());
  to.role_epoch = from.role_epoch();
  to.capacity_blocks = from.capacity_blocks();
  to.credits = from.credits();
  to.private_blocks = from.private_blocks();
  return Done{};
}

void put(const Reserve& from, pb::Reserve& to) {
  put_request(from, to);
  wire::put(from.source, *to.mutable_source());
  wire::put(from.shape, *to.mutable_shape());
  to.set_final_tokens(from.final_tokens);
  to.set_deadline_left_ms(from.deadline_left_ms);
  to.mutable_prompt()->Add(from.prompt.begin(), from.prompt.end());
  to.set_cache_salt(from.cache_salt);
  to.set_traceparent(from.traceparent);
}
Status take(const pb::Reserve& from, Reserve& to) {
  TRY(take_request(from, to));
  TAKE(from, to, source);
  TAKE(from, to, shape);
  TRY(check_range("final_tokens", from.final_tokens(), 0, kMaxTokens));
  to.final_tokens = from.final_tokens();
  to.deadline_left_ms = from.deadline_left_ms();
  TRY(take_tokens("prompt", from.prompt(), to.prompt));
  to.cache_salt = from.cache_salt();
  return take_traceparent(from, to);
}

void put(const ReserveOk& from, pb::ReserveOk& to) {
  put_request(from, to);
  to.set_landing(from.landing);
  wire::put(from.have, *to.mutable_have());
  to.set_kv_token(from.kv_token);
}
Status take(const pb::ReserveOk& from, ReserveOk& to) {
  TRY(take_request(from, to));
  to.landing = from.landing();
  TAKE(from, to, have);
  to.kv_token = from.kv_token();
  return Done{};
}

void put(const ReserveNo& from, pb::ReserveNo& to) {
  put_request(from, to);
  to.set_reason(put_refusal(from.reason));
}
Status take(const pb::ReserveNo& from, ReserveNo& to) {
  TRY(take_request(from, to));
  to.reason = take_refusal(from.reason());
  return Done{};
}

void put(const Running& from, pb::Running& to) {
  put_request(from, to);
  to.set_kv_token(from.kv_token);
}
Status take(const pb::Running& from, Running& to) {
  to.kv_token = from.kv_token();
  return take_request(from, to);
}

void put(const Prefill& from, pb::Prefill& to) {
  put_request(from, to);
  wire::put(from.target, *to.mutable_target());
  to.set_landing(from.landing);
  to.set_kv_token(from.kv_token);
  wire::put(from.have, *to.mutable_have());
  wire::put(from.state, *to.mutable_state());
  to.set_deadline_left_ms(from.deadline_left_ms);
  to.set_priority(from.priority);
  to.set_traceparent(from.traceparent);
}
Status take(const pb::Prefill& from, Prefill& to) {
  TRY(take_request(from, to));
  TAKE(from, to, target);
  to.landing = from.landing();
  to.kv_token = from.kv_token();
  TAKE(from, to, have);
  TAKE(from, to, state);
  to.deadline_left_ms = from.deadline_left_ms();
  to.priority = from.priority();
  return take_traceparent(from, to);
}

void put(const First& from, pb::First& to) { wire::put(from.entry, *to.mutable_entry()); }
Status take(const pb::First& from, First& to) {
  TAKE(from, to, entry);
  return Done{};
}

void put(const XferFailed& from, pb::XferFailed& to) {
  put_request(from, to);
  wire::put(from.peer, *to.mutable_peer());
}
Status take(const pb::XferFailed& from, XferFailed& to) {
  TRY(take_request(from, to));
  TAKE(from, to, peer);
  return Done{};
}

void put(const Failed& from, pb::Failed& to) {
  put_request(from, to);
  to.set_code(put_failure(from.code));
  to.set_message(from.message);
}
Status take(const pb::Failed& from, Failed& to) {
  TRY(take_request(from, to));
  to.code = take_failure(from.code());
  to.message = from.message();
  return Done{};
}

void put(const Beat& from, pb::Beat& to) {
  to.set_io_seq(from.io_seq);
  to.set_step_seq(from.step_seq);
  to.set_step_running_ms(from.step_running_ms);
  to.set_step_predicted_ms(from.step_predicted_ms);
  to.set_num_running(from.num_running);
  to.set_num_waiting(from.num_waiting);
  to.set_private_free(from.private_free);
  to.set_shared_free(from.shared_free);
  for (const MirrorProgress& progress : from.mirrored) {
    pb::MirrorProgress& entry = *to.add_mirrored();
    put_request(progress, entry);
    wire::put(progress.holder, *entry.mutable_holder());
    entry.set_lag_tokens(progress.lag_tokens);
  }
  to.set_credits(from.credits);
  to.set_config_revision(from.config_revision);
  to.set_is_draining(from.is_draining);
  to.set_is_busy(from.is_busy);
}
Status take(const pb::MirrorProgress& from, MirrorProgress& to) {
  TRY(take_request(from, to));
  TAKE(from, to, holder);
  to.lag_tokens = from.lag_tokens();
  return Done{};
}
Status take(const pb::Beat& from, Beat& to) {
  to.io_seq = from.io_seq();
  to.step_seq = from.step_seq();
  to.step_running_ms = from.step_running_ms();
  to.step_predicted_ms = from.step_predicted_ms();
  to.num_running = from.num_running();
  to.num_waiting = from.num_waiting();
  to.private_free = from.private_free();
  to.shared_free = from.shared_free();
  for (const pb::MirrorProgress& entry : from.mirrored()) {
    if (auto status = take(entry, to.mirrored.emplace_back()); !status) {
      return std::move(status).error().during("mirrored");
    }
  }
  to.credits = from.credits();
  to.config_revision = from.config_revision();
  to.is_draining = from.is_draining();
  to.is_busy = from.is_busy();
  return Done{};
}

void put(const TokenBatch& from, pb::TokenBatch& to) {
  to.set_step(from.step);
  for (const TokenEntry& entry : from.entries) wire::put(entry, *to.add_entries());
  if (from.beat) put(*from.beat, *to.mutable_beat());
}
Status take(const pb::TokenBatch& from, TokenBatch& to) {
  to.step = from.step();
  for (const pb::TokenEntry& entry : from.entries()) {
    if (auto status = wire::take(entry, to.entries.emplace_back()); !status) {
      return std::move(status).error().during("entries");
    }
  }
  if (from.has_beat()) {
    if (auto status = take(from.beat(), to.beat.emplace()); !status) return std::move(status).error().during("beat");
  }
  return Done{};
}

void put(const SetMirror& from, pb::SetMirror& to) {
  put_request(from, to);
  wire::put(from.holder, *to.mutable_holder());
}
Status take(const pb::SetMirror& from, SetMirror& to) {
  TRY(take_request(from, to));
  TAKE(from, to, holder);
  return Done{};
}

void put(const Hold& from, pb::Hold& to) {
  put_request(from, to);
  wire::put(from.state, *to.mutable_state());
  to.set_kv_token(from.kv_token);
}
Status take(const pb::Hold& from, Hold& to) {
  TRY(take_request(from, to));
  TAKE(from, to, state);
  to.kv_token = from.kv_token();
  return Done{};
}

void put(const Release& from, pb::Release& to) {
  wire::put(from.request, *to.mutable_request());
  to.set_upto_attempt(from.upto_attempt);
}
Status take(const pb::Release& from, Release& to) {
  TAKE(from, to, request);
  to.upto_attempt = from.upto_attempt();
  return Done{};
}

// Part and pb::Part have the same numbers.
void put(const Timings& from, pb::Timings& to) {
  put_request(from, to);
  for (const PartTime& part : from.parts) {
    pb::PartTime& entry = *to.add_parts();
    entry.set_part(static_cast<pb::Part>(part.part));
    entry.set_ended_ago_ns(part.ended_ago_ns);
    entry.set_duration_ns(part.duration_ns);
  }
}
Status take(const pb::Timings& from, Timings& to) {
  TRY(take_request(from, to));
  TRY(check_range("parts", static_cast<uint64_t>(from.parts_size()), 0, kMaxPartTimes));
  for (const pb::PartTime& entry : from.parts()) {
    const bool is_known = entry.part() > 0 && entry.part() <= static_cast<int>(Part::kDecode);
    to.parts.push_back({is_known ? static_cast<Part>(entry.part()) : Part::kUnknown, entry.ended_ago_ns(),
                        entry.duration_ns()});
  }
  return Done{};
}

template <class Message, class From>
Result<std::optional<SessionMessage>> take_as(const char* kind, const From& from) {
  Message message;
  if (auto status = take(from, message); !status) return std::move(status).error().during(kind);
  return std::optional<SessionMessage>(std::move(message));
}

struct BodyPutter {
  pb::SessionFrame& frame;
  void operator()(const Hello& m) { put(m, *frame.mutable_hello()); }
  void operator()(const Reserve& m) { put(m, *frame.mutable_reserve()); }
  void operator()(const ReserveOk& m) { put(m, *frame.mutable_reserve_ok()); }
  void operator()(const ReserveNo& m) { put(m, *frame.mutable_reserve_no()); }
  void operator()(const Running& m) { put(m, *frame.mutable_running()); }
  void operator()(const Prefill& m) { put(m, *frame.mutable_prefill()); }
  void operator()(const First& m) { put(m, *frame.mutable_first()); }
  void operator()(const XferFailed& m) { put(m, *frame.mutable_xfer_failed()); }
  void operator()(const Failed& m) { put(m, *frame.mutable_failed()); }
  void operator()(const TokenBatch& m) { put(m, *frame.mutable_token_batch()); }
  void operator()(const Beat& m) { put(m, *frame.mutable_beat()); }
  void operator()(const SetMirror& m) { put(m, *frame.mutable_set_mirror()); }
  void operator()(const Hold& m) { put(m, *frame.mutable_hold()); }
  void operator()(const Release& m) { put(m, *frame.mutable_release()); }
  void operator()(const Timings& m) { put(m, *frame.mutable_timings()); }
  void operator()(const ForgetPrefixes&) { frame.mutable_forget_prefixes(); }
};

}  // namespace

Result<std::string> encode_session(const SessionMessage& message) {
  Arena arena;
  pb::SessionFrame& frame = *Arena::CreateMessage<pb::SessionFrame>(&arena);
  std::visit(BodyPutter{frame}, message);
  std::string bytes;
  if (frame.ByteSizeLong() > kMaxSessionBytes || !frame.SerializeToString(&bytes)) {
    return Error{ErrorCode::kInvalidArgument,
                 "a session message of more than " + std::to_string(kMaxSessionBytes) + " bytes"};
  }
  return bytes;
}

Result<std::optional<SessionMessage>> decode_session(std::string_view bytes) {
  TRY(check_range("size", bytes.size(), 1, kMaxSessionBytes));
  Arena arena;
  pb::SessionFrame& frame = *Arena::CreateMessage<pb::SessionFrame>(&arena);
  if (!frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return bad_field("frame", "is not a session message");
  }
  switch (frame.body_case()) {
    case pb::SessionFrame::kHello:
      return take_as<Hello>("hello", frame.hello());
    case pb::SessionFrame::kReserve:
      return take_as<Reserve>("reserve", frame.reserve());
    case pb::SessionFrame::kReserveOk:
      return take_as<ReserveOk>("reserve_ok", frame.reserve_ok());
    case pb::SessionFrame::kReserveNo:
      return take_as<ReserveNo>("reserve_no", frame.reserve_no());
    case pb::SessionFrame::kRunning:
      return take_as<Running>("running", frame.running());
    case pb::SessionFrame::kPrefill:
      return take_as<Prefill>("prefill", frame.prefill());
    case pb::SessionFrame::kFirst:
      return take_as<First>("first", frame.first());
    case pb::SessionFrame::kXferFailed:
      return take_as<XferFailed>("xfer_failed", frame.xfer_failed());
    case pb::SessionFrame::kFailed:
      return take_as<Failed>("failed", frame.failed());
    case pb::SessionFrame::kTokenBatch:
      return take_as<TokenBatch>("token_batch", frame.token_batch());
    case pb::SessionFrame::kBeat:
      return take_as<Beat>("beat", frame.beat());
    case pb::SessionFrame::kSetMirror:
      return take_as<SetMirror>("set_mirror", frame.set_mirror());
    case pb::SessionFrame::kHold:
      return take_as<Hold>("hold", frame.hold());
    case pb::SessionFrame::kRelease:
      return take_as<Release>("release", frame.release());
    case pb::SessionFrame::kTimings:
      return take_as<Timings>("timings", frame.timings());
    case pb::SessionFrame::kForgetPrefixes:
      return std::optional<SessionMessage>(ForgetPrefixes{});
    case pb::SessionFrame::BODY_NOT_SET:
      return std::optional<SessionMessage>();
  }
  return std::optional<SessionMessage>();
}

}  // namespace tandem::wire
