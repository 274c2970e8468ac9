#pragma once
// The KV data plane: framed, ordered, reliable connections between nodes, chosen per peer by address:
//   loop:NAME  same process      shm:PATH  same host, a ring in shared memory; PATH is a unix socket
//   tcp:HOST:PORT                ucx:HOST:PORT, UCX over TCP or verbs; HOST is numeric, [..] around IPv6
//
// What all transports keep (docs/protocol.md, section 5): a peer never writes to memory of ours. A frame comes into
// our own buffers, or into a ring that its sender owns and we map read-only; only our own thread copies it to a block.
// So close() or abandon_frame() makes every later write harmless, alone and at once.
//
// Threads: a connection and its handler belong to the thread of one EventLoop. Nothing here polls: an idle connection
// costs no CPU. No callback runs inside a call of send(), close(), pause() or resume().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/transport/event_loop.h"

namespace tandem::transport {

// One per connection and never used again in this process: a connection that is built anew is another one.
enum class ConnectionId : uint64_t {};

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

struct TransportLimits {
  uint32_t max_greeting_bytes = 1024;
  uint32_t max_header_bytes = 4 << 20;  // of a frame; a commit names every token of its request
  uint64_t max_payload_bytes = 256 << 20;
  uint32_t max_queued_frames = 256;      // per connection; over it send() answers kExhausted
  uint64_t max_queued_bytes = 64 << 20;  // headers and payloads; one larger frame is taken when nothing is queued
  uint32_t max_greetings = 64;           // per listener, connections not admitted yet; more are closed at once
  std::string ucx_carriers = "tcp";      // ucx: what it may run over, in UCX's names: "tcp", "rc,tcp"
  uint64_t ring_bytes = 4 << 20;         // of what we send, a power of two of at least a page (loop, shm)
  int64_t connect_timeout_ms = 2000;     // until both sides have greeted
  int64_t stall_timeout_ms = 5000;       // without a byte moving, while a frame waits to leave or is half here
};

// To send. The payload is borrowed until on_sent(tag) or until the connection is closed; the header is copied.
struct Frame {
  Bytes header;
  std::vector<Bytes> payload;
  uint64_t tag = 0;
  int64_t deadline_ms = 0;  // remaining; a frame that has not left by then closes the connection. 0: none
};

// Where the receiver wants a frame's payload.
struct Placement {
  enum class Kind : uint8_t {
    kHold,   // on_frame() gets it as one range, valid in that call
    kInto,   // straight into `ranges`, whose sizes add up to the payload's. Verify it in on_frame()
    kSkip,   // dropped; on_frame() is not called
    kClose,  // the frame is one that no honest peer sends
  };
  Kind kind = Kind::kHold;
  std::vector<MutableBytes> ranges;

  static Placement hold() { return {}; }
  static Placement skip() { return {Kind::kSkip, {}}; }
  static Placement close() { return {Kind::kClose, {}}; }
  static Placement into(std::vector<MutableBytes> ranges) { return {Kind::kInto, std::move(ranges)}; }
};

class Connection {
 public:
  // Closes. Not inside a callback of this connection: hand it to EventLoop::retire() there.
  virtual ~Connection() = default;

  virtual ConnectionId id() const = 0;
  virtual uint64_t peer_id() const = 0;  // the other side's id for it, for logs; 0 until open
  virtual bool is_open() const = 0;      // greeted and not closed

  // Queues a frame, also while the greeting is under way. kExhausted: the queue is full, on_writable() will come;
  // kInvalidArgument: over a limit; kUnavailable: closed.
  virtual Status send(const Frame& frame) = 0;
  // Breaks off at once: frames not yet sent are dropped, borrowed payloads and placements are never touched again. No
  // callback comes after it.
  virtual void close() = 0;
  // No frame is delivered until resume(), so in time the peer's send() answers kExhausted. A frame that has begun ends.
  virtual void pause() = 0;
  virtual void resume() = 0;
  // The frame that is half here is skipped from now on: its placement may be freed. Nothing to do between frames.
  virtual void abandon_frame() = 0;
};

// The owner's side of a connection.
class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;

  virtual void on_open(Connection& connection) { (void)connection; }
  // A frame's header is here, checked for size and order. Says where its payload goes.
  virtual Placement on_header(Connection& connection, Bytes header, uint64_t payload_bytes) = 0;
  // The whole frame is here. `payload` is empty when it went into the placement's ranges. Over loop and shm it may lie
  // in the peer's ring: a hostile peer can change it while it is read, so what must hold is checked on the copy.
  virtual void on_frame(Connection& connection, Bytes header, Bytes payload) = 0;
  virtual void on_sent(Connection& connection, uint64_t tag) { (void)connection, (void)tag; }
  virtual void on_writable(Connection& connection) { (void)connection; }
  // The last call: the peer is gone (kUnavailable), a deadline passed (kDeadline), the peer sent what no peer may
  // (kCorrupt). Whole frames that came before have been delivered.
  virtual void on_close(Connection& connection, const Error& reason) = 0;
};

// The owner's side of a listener.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  // A peer asks for a connection. Null refuses it; the handler must outlive the connection. The peer may still go
  // before accepted().
  virtual ConnectionHandler* admit(Bytes greeting) = 0;
  // It is open. Its frames come after this call.
  virtual void accepted(std::unique_ptr<Connection> connection) = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;            // accepts no more; connections stay
  virtual std::string address() const = 0;  // to connect to; with the port that was chosen
};

// One way to reach peers.
class Transport {
 public:
  virtual ~Transport() = default;
  // `place` is the address without its scheme. The acceptor must outlive the listener.
  virtual Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) = 0;
  // Returns at once; on_open() or on_close() follows. The handler must outlive the connection.
  virtual Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                                      ConnectionHandler& handler) = 0;
};

inline Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace tandem::transport
