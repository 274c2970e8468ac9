#pragma once
// What goes over the wire, whatever the wire is: a prefix, the owner's header, the payload. And the greeting that opens
// a connection. Little-endian. What a peer sent is copied once, then checked, then used.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "net/transport/transport.h"

namespace tandem::transport {

static_assert(std::endian::native == std::endian::little, "the wire's structs are little-endian");

struct FramePrefix {
  static constexpr uint32_t kMagic = 0x4652'4b54;  // "TKRF"
  uint32_t magic = kMagic;
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t sequence = 0;  // of the frame in its direction, from 0
};
static_assert(sizeof(FramePrefix) == 24 && std::is_trivially_copyable_v<FramePrefix>);

enum class GreetingKind : uint16_t { kHello = 1, kWelcome = 2, kRefusal = 3 };

// Connecting side: kHello with the owner's greeting behind it, then the carrier's part. Answer: kWelcome or kRefusal.
struct Greeting {
  static constexpr uint32_t kMagic = 0x4857'4b54;  // "TKWH"
  static constexpr uint16_t kVersion = 1;
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  GreetingKind kind = GreetingKind::kHello;
  uint64_t connection_id = 0;  // of the side that sends this
  uint64_t ring_bytes = 0;     // loop, shm: of the region that comes with this
  uint32_t owner_bytes = 0;    // of the owner's greeting
  uint32_t carrier_bytes = 0;  // ucx: of where it is to be reached, behind the owner's greeting
};
static_assert(sizeof(Greeting) == 32 && std::is_trivially_copyable_v<Greeting>);

// kCorrupt, saying what is wrong.
Status check_prefix(const FramePrefix& prefix, uint64_t expected_sequence, const TransportLimits& limits);
Status check_greeting(const Greeting& greeting, const TransportLimits& limits);

template <class T>
T copy_from(Bytes bytes) {  // bytes.size() >= sizeof(T)
  T value;
  __builtin_memcpy(&value, bytes.data(), sizeof value);
  return value;
}
template <class T>
Bytes object_bytes(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace tandem::transport
