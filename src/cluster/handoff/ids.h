#pragma once
// Who and what a message is about. Plain values.

#include <compare>
#include <cstdint>
#include <string>

namespace tandem::handoff {

using Nanos = int64_t;  // monotonic and local to one process; messages carry remaining milliseconds instead
constexpr Nanos kMs = 1'000'000;

struct RequestId {  // made by the gateway
  uint64_t high = 0, low = 0;
  auto operator<=>(const RequestId&) const = default;
};

using Attempt = uint32_t;  // per request, from 1; 0: none

// A process: the stable name and the random number of this start. A restarted node is another process.
struct NodeRef {
  std::string id;
  uint64_t incarnation = 0;
  auto operator<=>(const NodeRef&) const = default;
};

// One ordered bidirectional stream between a gateway and a node.
struct SessionId {
  uint64_t gateway_incarnation = 0, node_incarnation = 0, counter = 0;
  bool operator==(const SessionId&) const = default;
};

}  // namespace tandem::handoff
