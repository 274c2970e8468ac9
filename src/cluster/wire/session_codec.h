#pragma once
// Session messages to bytes and back: one protobuf message (session.proto) a frame. Pure; any thread.
//
// Peers of the next version may send more: fields that this version does not know are skipped, values of an enumeration
// become its safest one (a refusal: no room; an end: stop; a failure: internal; a role: mixed), and a kind of message
// that is not known is skipped whole.

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cluster/handoff/messages.h"

namespace tandem::wire {

// kInvalidArgument: longer than kMaxSessionBytes.
Result<std::string> encode_session(const handoff::SessionMessage& message);

// Absent: a kind that this version does not know. kCorrupt: not such a message; names the field, as in
// "reserve: shape: block_size is 0, not in 1 to 65536".
Result<std::optional<handoff::SessionMessage>> decode_session(std::string_view bytes);

}  // namespace tandem::wire
