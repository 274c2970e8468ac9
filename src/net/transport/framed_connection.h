#pragma once
// FramedConnection: what connections share, whatever carries their bytes: ids, queue, order of callbacks, deadlines,
// pause, the way to the end. A transport adds how bytes get out and in.
// Lobby: a listener's connections until the owner has admitted them.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/transport/frame_reader.h"
#include "net/transport/send_queue.h"

namespace tandem::transport {

class FramedConnection;

class Lobby {
 public:
  Lobby(const TransportLimits& limits, Acceptor& acceptor) : limit_(limits.max_greetings), acceptor_(acceptor) {}

  bool has_room() const { return greeting_.size() < limit_; }
  void enter(std::unique_ptr<FramedConnection> connection);

 private:
  friend class FramedConnection;
  // Takes it out, alive.
  std::unique_ptr<FramedConnection> leave(FramedConnection& connection);

  const size_t limit_;
  Acceptor& acceptor_;
  std::unordered_map<FramedConnection*, std::unique_ptr<FramedConnection>> greeting_;
};

class FramedConnection : public Connection, public LoopClient, protected FrameSink {
 public:
  ~FramedConnection() override;
  FramedConnection(const FramedConnection&) = delete;
  FramedConnection& operator=(const FramedConnection&) = delete;

  ConnectionId id() const final { return id_; }
  uint64_t peer_id() const final { return peer_id_; }
  bool is_open() const final { return state_ == State::kOpen; }
  Status send(const Frame& frame) final;
  void close() final;
  void pause() final;
  void resume() final;
  void abandon_frame() final { reader_.abandon(); }

  void on_task() final;
  void on_timer() final;

 protected:
  enum class State : uint8_t { kGreeting, kOpen, kClosed };

  // The connecting side has a handler, the accepting side a lobby. Both are borrowed.
  FramedConnection(EventLoop& loop, const TransportLimits& limits, ConnectionHandler* handler, Lobby* lobby);

  // To be provided; called from the loop only, while not closed, but for release().
  virtual void flush() = 0;            // send what is queued, as far as it goes
  virtual void fill() = 0;             // take what has come, as far as it goes and until stopped
  virtual void release() = 0;          // let go of files and memory; once
  virtual std::vector<uint64_t> take_sent() { return queue_.take_sent(); }  // tags of frames that have left

  // Accepting side: asks the owner. False: refused; the transport tells the peer and fails.
  bool admit(Bytes owner_greeting);
  void opened(uint64_t peer_id);
  void fail(Error reason);  // closes and tells the handler; from the loop only
  // Each on_io() of a transport ends with it: callbacks for what left, and the next deadline.
  void settle();
  void note_progress() { has_progressed_ = true; }
  bool is_stopped() const { return is_paused_ || state_ == State::kClosed; }
  bool is_paused() const { return is_paused_; }
  bool is_accepting() const { return lobby_ != nullptr; }
  Error peer_gone(std::string how) const { return {ErrorCode::kUnavailable, std::move(how)}; }

  // FrameSink
  Placement on_header(Bytes header, uint64_t payload_bytes) final;
  void on_frame(Bytes header, Bytes payload) final;
  bool is_closed() const final { return state_ == State::kClosed; }

  EventLoop& loop_;
  const TransportLimits limits_;
  State state_ = State::kGreeting;
  SendQueue queue_;
  FrameReader reader_;

 private:
  void set_deadline();
  // Runs one callback of the handler; the connection outlives it.
  template <class Call>
  void tell(Call call);

  const ConnectionId id_;
  uint64_t peer_id_ = 0;
  ConnectionHandler* handler_;
  Lobby* lobby_;  // until admitted
  bool is_paused_ = false, has_progressed_ = true;
  int num_calls_ = 0;  // callbacks on the stack
  int64_t progress_ns_ = 0;
  int64_t timer_ns_;  // when on_timer() comes; INT64_MAX: never
};

ConnectionId next_connection_id();  // any thread

}  // namespace tandem::transport
