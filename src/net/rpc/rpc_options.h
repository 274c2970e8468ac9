#pragma once
// What both ends of a stream are opened with.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace tandem::rpc {

// The versions of the protocol above that a process speaks. Each side says its own when a stream opens; both then use
// the highest that both have. A program of version N is given {N - 1, N}.
struct VersionRange {
  uint32_t lowest = 1, highest = 1;
};

// PEM files. Both ends show a certificate and check the other's against `trusted` (mutual TLS); what trusted
// certificates have signed may connect.
struct TlsFiles {
  std::string certificate;  // own, with its chain
  std::string private_key;
  std::string trusted;
  std::string server_name;  // expected in a server's certificate; empty: the host that was connected to
};

struct RpcOptions {
  VersionRange versions;
  std::optional<TlsFiles> tls;  // absent: plain text

  size_t max_frame_bytes = 16u << 20;  // of one frame, both ways
  // What send() may leave waiting on one stream; beyond either it says kFull.
  size_t max_queued_frames = 4096;
  size_t max_queued_bytes = 32u << 20;
  // What one stream may have in the inbox, unread, before its receiving stops and the peer's queue fills. A frame
  // counts 128 bytes more than it holds.
  size_t max_unread_bytes = 8u << 20;
  // Of a server, each counted until the inbox's reader has taken its kClosed; more are refused, without an event. So
  // this many times max_unread_bytes, max_queued_bytes and two frames bound what peers can make a server hold.
  size_t max_streams = 256;

  int connect_timeout_ms = 3000;    // until a stream is open; a server also ends connections without a stream
  int stall_timeout_ms = 10000;     // a frame that the peer has not taken whole by then ends the stream
  int close_timeout_ms = 1000;      // close() becomes abort() after it
  int keepalive_time_ms = 2000;     // without a byte received: ask
  int keepalive_timeout_ms = 5000;  // without an answer: the connection is lost
};

// kInvalidArgument, naming the option: what the library cannot express or what would never work.
Status check_options(const RpcOptions& options);

}  // namespace tandem::rpc
