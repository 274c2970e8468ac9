// libFuzzer: any bytes as a session message or, by the first byte, as a peer header. What is accepted is written and
// read again: the second writing must give the same bytes, so nothing of a message is lost or made up.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cluster/wire/peer_codec.h"
#include "cluster/wire/session_codec.h"
#include "cluster/wire/wire_for_test.h"

using namespace tandem;
using namespace tandem::wire;

namespace {

void must(bool is_so) {
  if (!is_so) abort();
}

void try_session(std::string_view bytes) {
  const auto message = decode_session(bytes);
  if (!message || !message.value()) return;
  const auto once = encode_session(*message.value());
  must(bool(once));
  const auto again = decode_session(once.value());
  must(again && again.value().has_value());
  const auto twice = encode_session(*again.value());
  must(twice && twice.value() == once.value());
}

void try_peer(std::string_view bytes) {
  const auto message = decode_peer(bytes);
  if (!message || !message.value()) return;
  const auto once = encode_peer(*message.value());
  must(bool(once));
  // A newer peer's frame is written as ours.
  const auto again = decode_peer(once.value().header);
  must(again && again.value().has_value());
  const auto twice = encode_peer(*again.value());
  must(twice && twice.value().header == once.value().header);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  if ((bytes[0] & 1) == 0) {
    try_session(rest);
  } else if ((bytes[0] & 2) == 0) {
    try_peer(rest);
  } else {  // past the checksum
    const uint16_t version = bytes[0] & 4 ? kPeerVersion + 1 : kPeerVersion;
    try_peer(sealed_header(version, bytes[0] >> 4, bytes[0] & 8, rest));
  }
  return 0;
}
