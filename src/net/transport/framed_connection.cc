#include "net/transport/framed_connection.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/check.h"

namespace tandem::transport {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

uint64_t random_start() {
  uint64_t value = 0;
  TANDEM_CHECK(getrandom(&value, sizeof value, 0) == sizeof value);
  return value;
}

}  // namespace

// Counted up from a random start, so that the ids of two processes are unlikely to be taken for each other.
ConnectionId next_connection_id() {
  static std::atomic<uint64_t> next{random_start()};
  uint64_t id = next.fetch_add(1);
  if (id == 0) id = next.fetch_add(1);
  return ConnectionId{id};
}

FramedConnection::FramedConnection(EventLoop& loop, const TransportLimits& limits, ConnectionHandler* handler,
                                   Lobby* lobby)
    : loop_(loop),
      limits_(limits),
      queue_(limits_),
      reader_(limits_, 0),
      id_(next_connection_id()),
      handler_(handler),
      lobby_(lobby),
      progress_ns_(loop.now_ns()),
      timer_ns_(kNever) {
  set_deadline();
}

FramedConnection::~FramedConnection() {
  TANDEM_CHECK(num_calls_ == 0);           // destroyed inside its own callback
  TANDEM_CHECK(state_ == State::kClosed);  // the transport's destructor closes: release() is its own
  loop_.forget(*this);
}

template <class Call>
void FramedConnection::tell(Call call) {
  if (handler_ == nullptr) return;
  ++num_calls_;
  call(*handler_);
  --num_calls_;
}

Status FramedConnection::send(const Frame& frame) {
  if (state_ == State::kClosed) return Error{ErrorCode::kUnavailable, "the connection is closed"};
  if (queue_.is_empty()) has_progressed_ = true;  // the stall clock starts with the first frame
  TRY(queue_.push(frame, loop_.now_ns()));
  loop_.defer(*this);
  return Done{};
}

void FramedConnection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  loop_.forget(*this);
  timer_ns_ = kNever;
  queue_.clear();
  reader_.abandon();
  release();
}

void FramedConnection::fail(Error reason) {
  if (state_ == State::kClosed) return;
  close();
  if (Lobby* lobby = std::exchange(lobby_, nullptr)) return loop_.retire(lobby->leave(*this));
  tell([&](ConnectionHandler& handler) { handler.on_close(*this, reason); });
}

void FramedConnection::pause() { is_paused_ = true; }

void FramedConnection::resume() {
  if (!is_paused_ || state_ == State::kClosed) return;
  is_paused_ = false;
  has_progressed_ = true;
  loop_.defer(*this);
}

void FramedConnection::on_task() {
  if (state_ == State::kOpen) flush();
  if (state_ == State::kOpen && !is_paused_) fill();
  settle();
}

bool FramedConnection::admit(Bytes owner_greeting) {
  handler_ = lobby_->acceptor_.admit(owner_greeting);
  return handler_ != nullptr;
}

void FramedConnection::opened(uint64_t peer_id) {
  peer_id_ = peer_id;
  state_ = State::kOpen;
  has_progressed_ = true;
  loop_.defer(*this);  // what was queued meanwhile, and what the peer has sent already
  if (Lobby* lobby = std::exchange(lobby_, nullptr)) {
    ++num_calls_;
    lobby->acceptor_.accepted(lobby->leave(*this));
    --num_calls_;
  }
  if (state_ == State::kOpen) tell([&](ConnectionHandler& handler) { handler.on_open(*this); });
}

void Lobby::enter(std::unique_ptr<FramedConnection> connection) {
  FramedConnection* key = connection.get();
  greeting_.emplace(key, std::move(connection));
}

std::unique_ptr<FramedConnection> Lobby::leave(FramedConnection& connection) {
  auto node = greeting_.extract(&connection);
  TANDEM_CHECK(!node.empty());
  return std::move(node.mapped());
}

Placement FramedConnection::on_header(Bytes header, uint64_t payload_bytes) {
  Placement placement = Placement::skip();
  tell([&](ConnectionHandler& handler) { placement = handler.on_header(*this, header, payload_bytes); });
  if (state_ == State::kClosed) return Placement::skip();  // the placement may be gone with the connection
  return placement;
}

void FramedConnection::on_frame(Bytes header, Bytes payload) {
  tell([&](ConnectionHandler& handler) { handler.on_frame(*this, header, payload); });
}

void FramedConnection::settle() {
  if (state_ == State::kClosed) return;
  for (const uint64_t tag : take_sent()) {
    tell([&](ConnectionHandler& handler) { handler.on_sent(*this, tag); });
    if (state_ == State::kClosed) return;
  }
  if (queue_.take_has_room()) tell([&](ConnectionHandler& handler) { handler.on_writable(*this); });
  if (state_ != State::kClosed) set_deadline();
}

void FramedConnection::set_deadline() {
  int64_t wanted = kNever;
  const bool is_busy = !queue_.is_empty() || (reader_.is_mid_frame() && !is_paused_);
  if (state_ == State::kGreeting) {
    wanted = progress_ns_ + limits_.connect_timeout_ms * 1'000'000;
  } else if (is_busy) {
    if (has_progressed_) progress_ns_ = loop_.now_ns();
    wanted = progress_ns_ + limits_.stall_timeout_ms * 1'000'000;
  }
  has_progressed_ = false;
  if (!queue_.is_empty()) wanted = std::min(wanted, queue_.next_deadline_ns());
  if (wanted == kNever) {
    if (timer_ns_ != kNever) loop_.clear_timer(*this);
    timer_ns_ = kNever;
  } else if (wanted < timer_ns_) {  // one that comes too early just looks again
    loop_.set_timer(*this, wanted);
    timer_ns_ = wanted;
  }
}

void FramedConnection::on_timer() {
  timer_ns_ = kNever;
  const int64_t now = loop_.now_ns();
  if (queue_.next_deadline_ns() <= now) return fail({ErrorCode::kDeadline, "a frame has not left in time"});
  const bool is_greeting = state_ == State::kGreeting;
  const bool is_busy = is_greeting || !queue_.is_empty() || (reader_.is_mid_frame() && !is_paused_);
  const int64_t limit_ms = is_greeting ? limits_.connect_timeout_ms : limits_.stall_timeout_ms;
  if (is_busy && !has_progressed_ && progress_ns_ + limit_ms * 1'000'000 <= now) {
    return fail({ErrorCode::kDeadline, is_greeting ? "no greeting in time" : "no byte has moved in time"});
  }
  set_deadline();
}

}  // namespace tandem::transport
