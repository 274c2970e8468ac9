#include "cluster/wire/peer_codec.h"

#include <google/protobuf/arena.h>
#include <xxhash.h>

#include <type_traits>

#include "cluster/wire/proto_fields.h"
#include "cluster/wire/wire_limits.h"

namespace tandem::wire {
namespace {

using namespace handoff;

constexpr uint32_t kMagic = 0x4b4d4454;  // "TDMK"
constexpr size_t kChecksumAt = 16;

// As on the wire; never given anew.
enum class Kind : uint8_t {
  kPush = 1,
  kCommit = 2,
  kCommitAck = 3,
  kStale = 4,
  kMirror = 5,
  kMirrorAck = 6,
  kMirrorStop = 7,
};

template <class T>
void append(std::string& to, T value) {
  for (size_t i = 0; i < sizeof value; ++i) to.push_back(static_cast<char>(static_cast<uint64_t>(value) >> 8 * i));
}

template <class T>
T load(std::string_view bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[at + i])) << 8 * i;
  return static_cast<T>(value);
}

uint64_t header_checksum(std::string_view header) {
  const uint64_t prefix = XXH3_64bits(header.data(), kChecksumAt);
  return XXH3_64bits_withSeed(header.data() + kPeerPrefixBytes, header.size() - kPeerPrefixBytes, prefix);
}

// The fields of a body, in order.
class BodyReader {
 public:
  explicit BodyReader(std::string_view rest) : rest_(rest) {}

  template <class T>
  Status take(const char* field, T& to) {
    if (rest_.size() < sizeof(T)) return bad_field(field, "is missing: the body ends before it");
    to = load<T>(rest_, 0);
    rest_.remove_prefix(sizeof(T));
    return Done{};
  }
  Result<std::string_view> take_bytes(const char* field, size_t size) {
    if (rest_.size() < size) return bad_field(field, "is longer than the body");
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

template <class Message>
void append_request(const Message& from, std::string& to) {
  append(to, from.request.high);
  append(to, from.request.low);
  append(to, from.attempt);
}
template <class Message>
Status take_request(BodyReader& body, Message& to) {
  TRY(body.take("request", to.request.high));
  TRY(body.take("request", to.request.low));
  TRY(body.take("attempt", to.attempt));
  return check_range("attempt", to.attempt, 1, UINT32_MAX);
}

void append_body(const Push& from, std::string& to) {
  append(to, from.landing);
  append(to, from.block);
  append(to, from.layer_group);
  append(to, from.checksum);
}
Status take_body(BodyReader& body, Push& to) {
  TRY(body.take("landing", to.landing));
  TRY(body.take("block", to.block));
  TRY(body.take("layer_group", to.layer_group));
  return body.take("checksum", to.checksum);
}

void append_body(const Commit& from, std::string& to) {
  google::protobuf::Arena arena;
  pb::CommitChain& chain = *google::protobuf::Arena::CreateMessage<pb::CommitChain>(&arena);
  for (const TokenEntry& entry : from.first) put(entry, *chain.add_first());
  put(from.state, *chain.mutable_state());
  chain.set_sampled_ago_ns(from.sampled_ago_ns);
  append(to, from.num_parts);
  append(to, static_cast<uint32_t>(chain.ByteSizeLong()));
  chain.AppendToString(&to);
}
Status take_body(BodyReader& body, Commit& to) {
  TRY(body.take("num_parts", to.num_parts));
  TRY(check_range("num_parts", to.num_parts, 0, kMaxParts));
  uint32_t chain_bytes = 0;
  TRY(body.take("chain", chain_bytes));
  TRY_ASSIGN(const std::string_view bytes, body.take_bytes("chain", chain_bytes));
  google::protobuf::Arena arena;
  pb::CommitChain& chain = *google::protobuf::Arena::CreateMessage<pb::CommitChain>(&arena);
  if (!chain.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return bad_field("chain", "is not one");
  for (const pb::TokenEntry& entry : chain.first()) {
    if (auto status = take(entry, to.first.emplace_back()); !status) return std::move(status).error().during("first");
  }
  TAKE(chain, to, state);
  to.sampled_ago_ns = chain.sampled_ago_ns();
  return Done{};
}

void append_body(const CommitAck&, std::string&) {}
Status take_body(BodyReader&, CommitAck&) { return Done{}; }

void append_body(const Stale& from, std::string& to) { append(to, from.newest); }
Status take_body(BodyReader& body, Stale& to) { return body.take("newest", to.newest); }

void append_body(const Mirror& from, std::string& to) {
  append(to, from.choice);
  append(to, from.from_position);
  append(to, static_cast<uint32_t>(from.tokens.size()));
  for (const TokenId token : from.tokens) append(to, static_cast<uint32_t>(token));
}
Status take_body(BodyReader& body, Mirror& to) {
  TRY(body.take("choice", to.choice));
  TRY(check_range("choice", to.choice, 0, kMaxChoices - 1));
  TRY(body.take("from_position", to.from_position));
  uint32_t num_tokens = 0;
  TRY(body.take("tokens", num_tokens));
  TRY_ASSIGN(const std::string_view bytes, body.take_bytes("tokens", size_t{num_tokens} * sizeof(TokenId)));
  to.tokens.resize(num_tokens);
  for (size_t i = 0; i < to.tokens.size(); ++i) {
    to.tokens[i] = load<TokenId>(bytes, i * sizeof(TokenId));
    if (to.tokens[i] < 0) return bad_field("tokens", "holds the token " + std::to_string(to.tokens[i]));
  }
  return Done{};
}

void append_body(const MirrorAck& from, std::string& to) {
  append(to, from.choice);
  append(to, from.upto);
}
Status take_body(BodyReader& body, MirrorAck& to) {
  TRY(body.take("choice", to.choice));
  TRY(check_range("choice", to.choice, 0, kMaxChoices - 1));
  return body.take("upto", to.upto);
}

void append_body(const MirrorStop&, std::string&) {}
Status take_body(BodyReader&, MirrorStop&) { return Done{}; }

template <class Message>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<Message, Push>)
    return Kind::kPush;
  else if constexpr (std::is_same_v<Message, Commit>)
    return Kind::kCommit;
  else if constexpr (std::is_same_v<Message, CommitAck>)
    return Kind::kCommitAck;
  else if constexpr (std::is_same_v<Message, Stale>)
    return Kind::kStale;
  else if constexpr (std::is_same_v<Message, Mirror>)
    return Kind::kMirror;
  else if constexpr (std::is_same_v<Message, MirrorAck>)
    return Kind::kMirrorAck;
  else
    return Kind::kMirrorStop;
}

template <class Message>
constexpr bool has_payload() {
  return std::is_same_v<Message, Push> || std::is_same_v<Message, Mirror>;
}

template <class Message>
Result<std::optional<PeerMessage>> decode_as(const char* kind, std::string_view header, bool is_newer) {
  Message message;
  BodyReader body(header.substr(kPeerPrefixBytes));
  Status status = take_request(body, message);
  if (status) status = take_body(body, message);
  const uint32_t payload_bytes = load<uint32_t>(header, 12);
  if constexpr (has_payload<Message>())
    message.payload.size_bytes = payload_bytes;
  else if (status)
    status = check_range("payload_bytes", payload_bytes, 0, 0);
  if (status && !body.is_at_end() && !is_newer) status = bad_field("body", "is longer than its fields");
  if (!status) return std::move(status).error().during(kind);
  return std::optional<PeerMessage>(std::move(message));
}

}  // namespace

Result<PeerFrame> encode_peer(const PeerMessage& message) {
  PeerFrame frame;
  std::string& header = frame.header;
  append(header, kMagic);
  append(header, kPeerVersion);
  header.append(kPeerPrefixBytes - header.size(), '\0');
  std::visit(
      [&]<class Message>(const Message& m) {
        header[6] = static_cast<char>(kind_of<Message>());
        if constexpr (has_payload<Message>()) frame.payload = m.payload;
        append_request(m, header);
        append_body(m, header);
      },
      message);
  const size_t body_bytes = header.size() - kPeerPrefixBytes;
  if (body_bytes > kMaxPeerBodyBytes || frame.payload.size_bytes > kMaxPayloadBytes) {
    return Error{ErrorCode::kInvalidArgument, "a peer message with " + std::to_string(body_bytes) +
                                                  " bytes of fields and " + std::to_string(frame.payload.size_bytes) +
                                                  " of payload"};
  }
  std::string sizes;
  append(sizes, static_cast<uint32_t>(body_bytes));
  append(sizes, frame.payload.size_bytes);
  header.replace(8, sizes.size(), sizes);
  std::string checksum;
  append(checksum, header_checksum(header));
  header.replace(kChecksumAt, checksum.size(), checksum);
  return frame;
}

Result<PeerSizes> read_peer_prefix(std::string_view bytes) {
  if (bytes.size() < kPeerPrefixBytes) return bad_field("prefix", "is cut short");
  if (load<uint32_t>(bytes, 0) != kMagic) return bad_field("magic", "is not that of a peer frame");
  // One version newer may speak to us; it appends only.
  TRY(check_range("version", load<uint16_t>(bytes, 4), kPeerVersion, kPeerVersion + 1));
  const PeerSizes sizes{load<uint32_t>(bytes, 8), load<uint32_t>(bytes, 12)};
  TRY(check_range("body_bytes", sizes.body_bytes, 0, kMaxPeerBodyBytes));
  TRY(check_range("payload_bytes", sizes.payload_bytes, 0, kMaxPayloadBytes));
  return sizes;
}

Result<std::optional<PeerMessage>> decode_peer(std::string_view header) {
  TRY_ASSIGN(const PeerSizes sizes, read_peer_prefix(header));
  const size_t body_bytes = header.size() - kPeerPrefixBytes;
  TRY(check_range("body_bytes", sizes.body_bytes, body_bytes, body_bytes));
  if (load<uint64_t>(header, kChecksumAt) != header_checksum(header)) {
    return bad_field("checksum", "does not fit the header: bytes changed on the way");
  }
  const bool is_newer = load<uint16_t>(header, 4) > kPeerVersion;
  const uint8_t kind = load<uint8_t>(header, 6);
  switch (static_cast<Kind>(kind)) {
    case Kind::kPush:
      return decode_as<Push>("push", header, is_newer);
    case Kind::kCommit:
      return decode_as<Commit>("commit", header, is_newer);
    case Kind::kCommitAck:
      return decode_as<CommitAck>("commit_ack", header, is_newer);
    case Kind::kStale:
      return decode_as<Stale>("stale", header, is_newer);
    case Kind::kMirror:
      return decode_as<Mirror>("mirror", header, is_newer);
    case Kind::kMirrorAck:
      return decode_as<MirrorAck>("mirror_ack", header, is_newer);
    case Kind::kMirrorStop:
      return decode_as<MirrorStop>("mirror_stop", header, is_newer);
  }
  if (!is_newer) return bad_field("kind", "is " + std::to_string(kind) + ", which version 1 does not have");
  return std::optional<PeerMessage>();
}

}  // namespace tandem::wire
