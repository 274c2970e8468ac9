#pragma once
// RpcStream: one end of one ordered, bidirectional stream of frames. It knows nothing of what is in them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::rpc {

enum class SendResult : uint8_t {
  kQueued,    // goes out in the order of the calls, or the stream closes
  kFull,      // back-pressure: not taken; try again after the peer has read, or give the stream up
  kTooLarge,  // never fits
  kClosed,
};

// One connection's life: opening, open, closed; never again. A rebuilt connection is another stream with another id; no
// frame is ever sent twice. All calls from any thread, none blocks. Kept alive by shared pointers in events and by
// whoever uses it; a closed one holds no connection.
class RpcStream {
 public:
  virtual ~RpcStream() = default;

  // Unique in this process, never used again.
  virtual uint64_t connection_id() const = 0;
  virtual const std::string& peer() const = 0;  // its address, for people
  // The version of the protocol that both ends agreed on; 0 until the stream is open.
  virtual uint32_t version() const = 0;

  // Copies the frame. Allowed before the stream is open: what waits goes out then.
  virtual SendResult send(std::string_view frame) = 0;
  virtual size_t queued_bytes() const = 0;

  // Sends what is queued, then ends the stream; what arrives meanwhile is dropped. The inbox gets kClosed when done,
  // after at most close_timeout_ms.
  virtual void close() = 0;
  // Ends it now; what is queued is dropped.
  virtual void abort() = 0;

 private:
  friend class RpcInbox;
  // The inbox's reader has taken a frame of so many bytes: receiving goes on if it had stopped.
  virtual void on_read(size_t size_bytes) = 0;
  // The inbox's reader has taken kClosed: nothing of this stream is left there.
  virtual void on_closed_read() = 0;
};

}  // namespace tandem::rpc
