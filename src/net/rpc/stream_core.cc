#include "net/rpc/stream_core.h"

#include <grpc/support/time.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem::rpc {
namespace {

// What a frame counts in the inbox besides its bytes: empty ones cost memory too.
constexpr size_t kFrameOverheadBytes = 128;

std::atomic<uint64_t> next_connection_id{1};

std::chrono::steady_clock::time_point after_ms(int ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

std::string frame_of(grpc::ByteBuffer& buffer) {
  std::string frame;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return frame;
  frame.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices) frame.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return frame;
}

}  // namespace

void run_completions(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool is_ok = false;
  while (queue.Next(&tag, &is_ok)) static_cast<CompletionTag*>(tag)->run(is_ok);
}

void OpenStreams::add(std::shared_ptr<StreamCore> stream) {
  Lock lock(mutex_);
  const StreamCore* key = stream.get();
  streams_.emplace(key, std::move(stream));
}

void OpenStreams::remove(const StreamCore& stream) {
  std::shared_ptr<StreamCore> last;  // its destructor runs without the lock
  Lock lock(mutex_);
  const auto found = streams_.find(&stream);
  if (found == streams_.end()) return;
  last = std::move(found->second);
  streams_.erase(found);
  gone_.notify_all();
}

bool OpenStreams::hold(size_t max) {
  Lock lock(mutex_);
  if (num_held_ >= max) return false;
  ++num_held_;
  return true;
}

void OpenStreams::release() {
  Lock lock(mutex_);
  --num_held_;
}

void OpenStreams::abort_all() {
  std::vector<std::shared_ptr<StreamCore>> streams;
  {
    Lock lock(mutex_);
    for (const auto& [key, stream] : streams_) streams.push_back(stream);
  }
  for (const auto& stream : streams) stream->abort();
}

void OpenStreams::wait_until_none() {
  Lock lock(mutex_);
  while (!streams_.empty()) gone_.wait(mutex_);
}

std::string versions_text(const VersionRange& versions) {
  return std::to_string(versions.lowest) + "-" + std::to_string(versions.highest);
}

Result<uint32_t> agree_on_version(const VersionRange& own, std::string_view peers) {
  VersionRange theirs{0, 0};
  const char* const end = peers.data() + peers.size();
  const auto low = std::from_chars(peers.data(), end, theirs.lowest);
  bool is_range = low.ec == std::errc() && low.ptr != end && *low.ptr == '-';
  if (is_range) {
    const auto high = std::from_chars(low.ptr + 1, end, theirs.highest);
    is_range = high.ec == std::errc() && high.ptr == end && theirs.lowest >= 1 && theirs.lowest <= theirs.highest;
  }
  if (!is_range) return Error{ErrorCode::kInvalidArgument, "the peer does not say which protocol versions it speaks"};
  const uint32_t version = std::min(own.highest, theirs.highest);
  if (version >= std::max(own.lowest, theirs.lowest)) return version;
  return Error{ErrorCode::kInvalidArgument, "no common protocol version: this side speaks " + versions_text(own) +
                                                ", the peer " + versions_text(theirs)};
}

StreamCore::StreamCore(std::shared_ptr<StreamContext> context, std::string peer)
    : context_(std::move(context)), peer_(std::move(peer)), id_(next_connection_id.fetch_add(1)) {
  for (size_t op = 0; op < kNumOps; ++op) {
    tags_[op].stream = this;
    tags_[op].op = static_cast<Op>(op);
  }
}

void StreamCore::begin_opening() {
  open_by_ = after_ms(context_->options.connect_timeout_ms);
  arm();
}

void StreamCore::push(RpcEvent::Kind kind, std::string frame, Error reason) {
  context_->inbox.push({kind, shared_from_this(), std::move(frame), std::move(reason)});
}

uint32_t StreamCore::version() const {
  Lock lock(mutex_);
  return version_;
}

size_t StreamCore::queued_bytes() const {
  Lock lock(mutex_);
  return queued_bytes_;
}

SendResult StreamCore::send(std::string_view frame) {
  const RpcOptions& options = context_->options;
  if (frame.size() > std::min(options.max_frame_bytes, options.max_queued_bytes)) return SendResult::kTooLarge;
  Lock lock(mutex_);
  if (is_closing_ || is_done_ || reason_ || state_ == State::kEnding || has_peer_closed()) return SendResult::kClosed;
  if (queue_.size() >= options.max_queued_frames || queued_bytes_ + frame.size() > options.max_queued_bytes) {
    return SendResult::kFull;
  }
  const grpc::Slice slice(frame.data(), frame.size());
  queue_.emplace_back(&slice, 1);
  queued_bytes_ += frame.size();
  if (state_ == State::kOpen) write_next();
  return SendResult::kQueued;
}

void StreamCore::close() {
  Lock lock(mutex_);
  if (is_closing_ || is_done_) return;
  begin_closing();
  if (state_ == State::kOpening) {
    fail({ErrorCode::kCancelled, "closed here before it was open"});
  } else {
    if (!is_writing_ && queue_.empty()) begin_end();
    read_next();  // what still comes is dropped; without reading the end would never be seen
  }
}

void StreamCore::begin_closing() {
  is_closing_ = true;
  close_by_ = after_ms(context_->options.close_timeout_ms);
  arm();
}

void StreamCore::abort() {
  Lock lock(mutex_);
  is_closing_ = true;
  fail({ErrorCode::kCancelled, "aborted here"});
}

void StreamCore::on_read(size_t size_bytes) {
  Lock lock(mutex_);
  unread_bytes_ -= size_bytes + kFrameOverheadBytes;
  // Half of the limit, so that a reader that takes one frame at a time does not start and stop with each.
  if (unread_bytes_ <= context_->options.max_unread_bytes / 2) read_next();
}

void* StreamCore::started(Op op) {
  ++num_pending_;
  return static_cast<CompletionTag*>(&tags_[static_cast<size_t>(op)]);
}

void StreamCore::fail(Error reason) {
  if (is_done_ || reason_) return;
  reason_ = std::move(reason);
  cancel();
}

void StreamCore::open(uint32_t version) {
  state_ = State::kOpen;
  version_ = version;
  push(RpcEvent::Kind::kOpened, {}, {ErrorCode::kInternal, {}});
  read_next();
  write_next();
}

void StreamCore::drop_queue() {
  queue_.clear();
  queued_bytes_ = is_writing_ ? writing_bytes_ : 0;
}

void StreamCore::read_next() {
  if (state_ == State::kOpening || is_reading_ || has_read_end_ || is_done_) return;
  if (unread_bytes_ > context_->options.max_unread_bytes && !is_closing_) return;
  is_reading_ = true;
  read_into(incoming_, started(Op::kRead));
}

void StreamCore::write_next() {
  if (is_writing_ || queue_.empty() || is_done_ || reason_) return;
  is_writing_ = true;
  writing_bytes_ = queue_.front().Length();
  write_by_ = after_ms(context_->options.stall_timeout_ms);
  write(queue_.front(), started(Op::kWrite));
  queue_.pop_front();
  arm();
}

void StreamCore::begin_end() {
  if (state_ == State::kEnding || is_done_) return;
  state_ = State::kEnding;
  end_gracefully(started(Op::kEnd));
}

std::optional<StreamCore::SteadyTime> StreamCore::nearest_deadline() const {
  std::optional<SteadyTime> nearest;
  const auto take = [&](SteadyTime time) { nearest = nearest ? std::min(*nearest, time) : time; };
  if (is_done_ || reason_) return nearest;
  if (state_ == State::kOpening) take(open_by_);
  if (is_writing_) take(write_by_);
  if (is_closing_) take(close_by_);
  return nearest;
}

// A pending alarm that is late enough is left alone: re-arming for each frame would cost more than the frame.
void StreamCore::arm() {
  const std::optional<SteadyTime> nearest = nearest_deadline();
  if (!nearest) return;
  if (alarm_at_) {
    if (*alarm_at_ > *nearest) alarm_->Cancel();  // comes back, and is set anew
    return;
  }
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(*nearest - std::chrono::steady_clock::now());
  const gpr_timespec span = gpr_time_from_micros(left.count(), GPR_TIMESPAN);
  alarm_at_ = nearest;
  alarm_.emplace();
  alarm_->Set(&context_->queue, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span), started(Op::kAlarm));
}

void StreamCore::handle_alarm() {
  alarm_at_.reset();
  const SteadyTime now = std::chrono::steady_clock::now();
  const auto within = [](int ms) { return " within " + std::to_string(ms) + " ms"; };
  if (is_done_ || reason_) return;
  if (state_ == State::kOpening && now >= open_by_) {
    fail({ErrorCode::kDeadline, "not open" + within(context_->options.connect_timeout_ms)});
  } else if (is_closing_ && now >= close_by_) {
    fail({ErrorCode::kCancelled, "closed here, and not acknowledged" + within(context_->options.close_timeout_ms)});
  } else if (is_writing_ && now >= write_by_) {
    fail({ErrorCode::kDeadline, "the peer took no bytes" + within(context_->options.stall_timeout_ms)});
  } else {
    arm();
  }
}

void StreamCore::handle_read(bool is_ok) {
  is_reading_ = false;
  if (!is_ok) {
    has_read_end_ = true;
    if (!has_peer_closed()) return;
    drop_queue();  // and send() takes nothing more, or the end would wait for a moment with nothing to write
    if (!is_writing_) begin_end();
    return;
  }
  std::string frame = frame_of(incoming_);
  incoming_.Clear();
  if (!is_closing_) {
    unread_bytes_ += frame.size() + kFrameOverheadBytes;
    push(RpcEvent::Kind::kFrame, std::move(frame), {ErrorCode::kInternal, {}});
  }
  read_next();
}

void StreamCore::handle_write(bool is_ok) {
  is_writing_ = false;
  queued_bytes_ -= writing_bytes_;
  if (!is_ok) return drop_queue();  // the call is over, and the library says why in a moment
  write_next();
  const bool is_last = is_closing_ || has_peer_closed();
  if (is_last && !is_writing_ && !reason_) begin_end();
}

void StreamCore::handle(Op op, bool is_ok) {
  switch (op) {
    case Op::kStart:
      return on_start(is_ok);
    case Op::kMetadata:
      return on_metadata(is_ok);
    case Op::kRead:
      return handle_read(is_ok);
    case Op::kWrite:
      return handle_write(is_ok);
    case Op::kEnd:
      is_end_sent_ = is_ok;
      return;
    case Op::kAlarm:
      return handle_alarm();
    case Op::kDone:
      is_done_ = true;
      drop_queue();
      if (alarm_at_) alarm_->Cancel();
      return;
  }
}

void StreamCore::on_completion(Op op, bool is_ok) {
  std::shared_ptr<void> call;
  {
    Lock lock(mutex_);
    TANDEM_CHECK(num_pending_ > 0);
    --num_pending_;
    handle(op, is_ok);
    if (!is_done_ || num_pending_ > 0 || is_closed_) return;
    is_closed_ = true;
    if (!reason_) reason_ = fault();
    if (!reason_) reason_ = {ErrorCode::kCancelled, is_closing_ ? "closed here" : "the peer closed the stream"};
    if (is_reported_) push(RpcEvent::Kind::kClosed, {}, *reason_);
    alarm_.reset();
    call = take_call();
  }
  call.reset();
  context_->open.remove(*this);
}

}  // namespace tandem::rpc
