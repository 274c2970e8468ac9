#pragma once
// Peer messages (the data plane) to bytes and back. KV bytes are never copied here: a frame is a header, made and read
// here, and the payload, which the transport sends after it from where it lies. Pure; any thread.
//
// Header, little-endian: magic u32, version u16, kind u8, zero u8, body_bytes u32, payload_bytes u32, checksum u64
// (XXH3 of all of the header but itself), body. The next version may append to a body; what this version does not know
// is skipped.

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cluster/handoff/messages.h"

namespace tandem::wire {

constexpr uint16_t kPeerVersion = 1;
constexpr size_t kPeerPrefixBytes = 24;  // of the header, before the body

// What goes out, in this order.
struct PeerFrame {
  std::string header;
  handoff::Payload payload;  // as it was in the message; size 0: none
};
// kInvalidArgument: body or payload beyond the limits of wire_limits.h.
Result<PeerFrame> encode_peer(const handoff::PeerMessage& message);

struct PeerSizes {
  uint32_t body_bytes = 0, payload_bytes = 0;
};
// How much follows the first kPeerPrefixBytes of a frame, for a transport that cuts a stream into frames. `bytes` may
// be longer. kCorrupt: not a prefix, or sizes beyond the limits.
Result<PeerSizes> read_peer_prefix(std::string_view bytes);

// `header`: prefix and body, no more. The message's payload has its size and no handle. Absent: a kind that only the
// next version knows. kCorrupt: names the field, as in "mirror: tokens holds the token -3".
Result<std::optional<handoff::PeerMessage>> decode_peer(std::string_view header);

}  // namespace tandem::wire
