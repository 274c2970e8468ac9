#include "net/transport/frame.h"

#include <string>

namespace tandem::transport {
namespace {

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

}  // namespace

Status check_prefix(const FramePrefix& prefix, uint64_t expected_sequence, const TransportLimits& limits) {
  if (prefix.magic != FramePrefix::kMagic) return corrupt("a frame does not begin as one");
  if (prefix.sequence != expected_sequence) {
    return corrupt("frame " + std::to_string(prefix.sequence) + " in place of " + std::to_string(expected_sequence));
  }
  if (prefix.header_bytes > limits.max_header_bytes) {
    return corrupt("a frame's header of " + std::to_string(prefix.header_bytes) + " bytes");
  }
  if (prefix.payload_bytes > limits.max_payload_bytes) {
    return corrupt("a payload of " + std::to_string(prefix.payload_bytes) + " bytes");
  }
  return Done{};
}

Status check_greeting(const Greeting& greeting, const TransportLimits& limits) {
  if (greeting.magic != Greeting::kMagic) return corrupt("the peer does not speak this protocol");
  if (greeting.version != Greeting::kVersion) {
    return corrupt("the peer speaks version " + std::to_string(greeting.version));
  }
  if (greeting.owner_bytes > limits.max_greeting_bytes) {
    return corrupt("a greeting of " + std::to_string(greeting.owner_bytes) + " bytes");
  }
  return Done{};
}

}  // namespace tandem::transport
