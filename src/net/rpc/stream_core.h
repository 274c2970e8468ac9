#pragma once
// StreamCore: what both ends of a stream have in common: the send queue, reading with a limit, deadlines, the one
// kClosed. Internal to net/rpc: the only header that names the library.
//
// Each started operation of the library comes back once through the completion queue, on its I/O thread; the stream
// lives until all have (`num_pending_`). All state is under one mutex, and operations are started with it held: the
// completion queue never calls back from inside.

// First: the library defines a macro of the same name and meaning, and only its headers may do so silently.
#include "base/thread_safety.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "net/rpc/rpc_inbox.h"
#include "net/rpc/rpc_options.h"

namespace tandem::rpc {

class StreamCore;

// What a completion queue of ours returns.
struct CompletionTag {
  virtual ~CompletionTag() = default;
  virtual void run(bool is_ok) = 0;
};
// Runs each completion until the queue is shut down and empty: the I/O thread.
void run_completions(grpc::CompletionQueue& queue);

// The streams of one server or client that have not closed. Any thread.
class OpenStreams {
 public:
  void add(std::shared_ptr<StreamCore> stream);
  void remove(const StreamCore& stream);
  // A place for one more, unless `max` are taken; it is kept until release(), beyond remove().
  bool hold(size_t max);
  void release();
  void abort_all();
  void wait_until_none();

 private:
  Mutex mutex_;
  CondVar gone_;
  std::unordered_map<const StreamCore*, std::shared_ptr<StreamCore>> streams_ GUARDED_BY(mutex_);
  size_t num_held_ GUARDED_BY(mutex_) = 0;
};

// What the streams of one server or client share. A closed stream, which may outlive both, uses `options` and `open`.
struct StreamContext {
  const RpcOptions options;
  grpc::CompletionQueue& queue;
  RpcInbox& inbox;
  OpenStreams open;
};

class StreamCore : public RpcStream, public std::enable_shared_from_this<StreamCore> {
 public:
  uint64_t connection_id() const final { return id_; }
  const std::string& peer() const final { return peer_; }
  uint32_t version() const final;
  SendResult send(std::string_view frame) final;
  size_t queued_bytes() const final;
  void close() final;
  void abort() final;

 protected:
  enum class Op : uint8_t { kStart, kMetadata, kRead, kWrite, kEnd, kDone, kAlarm };
  static constexpr size_t kNumOps = 7;
  enum class State : uint8_t { kOpening, kOpen, kEnding };
  using SteadyTime = std::chrono::steady_clock::time_point;

  StreamCore(std::shared_ptr<StreamContext> context, std::string peer);

  // By the two kinds of end, with the mutex held.
  virtual void on_start(bool is_ok) REQUIRES(mutex_) = 0;
  virtual void on_metadata(bool is_ok) REQUIRES(mutex_) = 0;
  virtual void read_into(grpc::ByteBuffer& buffer, void* tag) REQUIRES(mutex_) = 0;
  virtual void write(const grpc::ByteBuffer& buffer, void* tag) REQUIRES(mutex_) = 0;
  virtual void end_gracefully(void* tag) REQUIRES(mutex_) = 0;  // nothing is written after it
  virtual void cancel() REQUIRES(mutex_) = 0;
  // Whether this side ends the call when the peer sends no more; else the library ends it.
  virtual bool answers_end() const = 0;
  // Once all operations are back. Absent: in good order.
  virtual std::optional<Error> fault() REQUIRES(mutex_) = 0;
  virtual std::shared_ptr<void> take_call() REQUIRES(mutex_) = 0;  // what the library holds for this stream

  // The tag of an operation that is about to start.
  void* started(Op op) REQUIRES(mutex_);
  void begin_opening() REQUIRES(mutex_);
  void open(uint32_t version) REQUIRES(mutex_);
  // Nothing more is to be sent: waits for the end, for up to close_timeout_ms.
  void begin_closing() REQUIRES(mutex_);
  // Ends the stream for this reason, unless it has one.
  void fail(Error reason) REQUIRES(mutex_);

  const std::shared_ptr<StreamContext> context_;
  std::string peer_;  // set before the stream is shown to anybody
  mutable Mutex mutex_;
  State state_ GUARDED_BY(mutex_) = State::kOpening;
  std::optional<Error> reason_ GUARDED_BY(mutex_);
  bool is_reported_ GUARDED_BY(mutex_) = true;   // kClosed is for the inbox
  bool is_end_sent_ GUARDED_BY(mutex_) = false;  // end_gracefully() has done its work

 private:
  struct Tag final : CompletionTag {
    StreamCore* stream = nullptr;
    Op op = Op::kStart;
    void run(bool is_ok) override { stream->on_completion(op, is_ok); }
  };

  void on_read(size_t size_bytes) final;
  void on_closed_read() final { context_->open.release(); }
  // The peer sends no more, so it does not wait for anything of ours either, and this side ends the call.
  bool has_peer_closed() const REQUIRES(mutex_) { return has_read_end_ && answers_end(); }
  void on_completion(Op op, bool is_ok);
  void handle(Op op, bool is_ok) REQUIRES(mutex_);
  void handle_read(bool is_ok) REQUIRES(mutex_);
  void handle_write(bool is_ok) REQUIRES(mutex_);
  void handle_alarm() REQUIRES(mutex_);
  void begin_end() REQUIRES(mutex_);
  void arm() REQUIRES(mutex_);  // the alarm, for the nearest deadline
  void push(RpcEvent::Kind kind, std::string frame, Error reason) REQUIRES(mutex_);
  void read_next() REQUIRES(mutex_);
  void write_next() REQUIRES(mutex_);
  void drop_queue() REQUIRES(mutex_);
  std::optional<SteadyTime> nearest_deadline() const REQUIRES(mutex_);

  const uint64_t id_;
  Tag tags_[kNumOps];
  uint32_t num_pending_ GUARDED_BY(mutex_) = 0;
  bool is_done_ GUARDED_BY(mutex_) = false;     // the library says that the call is over
  bool is_closed_ GUARDED_BY(mutex_) = false;   // kClosed is in the inbox
  bool is_closing_ GUARDED_BY(mutex_) = false;  // close() or abort() was called
  uint32_t version_ GUARDED_BY(mutex_) = 0;

  std::deque<grpc::ByteBuffer> queue_ GUARDED_BY(mutex_);
  size_t queued_bytes_ GUARDED_BY(mutex_) = 0;  // with the frame that is being written
  size_t writing_bytes_ GUARDED_BY(mutex_) = 0;
  bool is_writing_ GUARDED_BY(mutex_) = false;

  grpc::ByteBuffer incoming_ GUARDED_BY(mutex_);
  bool is_reading_ GUARDED_BY(mutex_) = false;
  bool has_read_end_ GUARDED_BY(mutex_) = false;
  size_t unread_bytes_ GUARDED_BY(mutex_) = 0;

  std::optional<grpc::Alarm> alarm_ GUARDED_BY(mutex_);
  std::optional<SteadyTime> alarm_at_ GUARDED_BY(mutex_);  // pending
  SteadyTime open_by_ GUARDED_BY(mutex_);
  SteadyTime write_by_ GUARDED_BY(mutex_);  // while writing
  SteadyTime close_by_ GUARDED_BY(mutex_);  // while closing
};

// "2-3", the header in which each side says its versions.
constexpr char kVersionsHeader[] = "tandem-versions";
constexpr char kMethod[] = "/tandem.Frames/Stream";
std::string versions_text(const VersionRange& versions);
// The highest common one. kInvalidArgument: none, with both ranges; or not such a text.
Result<uint32_t> agree_on_version(const VersionRange& own, std::string_view peers);

}  // namespace tandem::rpc
