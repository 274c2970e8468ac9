#include <doctest/doctest.h>
#include <proto/session.pb.h>

#include <set>

#include "cluster/wire/peer_codec.h"
#include "cluster/wire/session_codec.h"
#include "cluster/wire/wire_for_test.h"

using namespace tandem;
using namespace tandem::handoff;
using namespace tandem::wire;

namespace {

// What decoding says is wrong after `change` was done to a valid message.
template <class Change>
std::string session_fault(const SessionMessage& message, const Change& change) {
  pb::SessionFrame frame;
  REQUIRE(frame.ParseFromString(encode_session(message).value()));
  change(frame);
  const auto decoded = decode_session(frame.SerializeAsString());
  return decoded ? "none" : decoded.error().message;
}

std::string peer_fault(std::string_view header) {
  const auto decoded = decode_peer(header);
  return decoded ? "none" : decoded.error().message;
}

std::string header_of(const PeerMessage& message) { return encode_peer(message).value().header; }

std::string body_of(const PeerMessage& message) { return header_of(message).substr(kPeerPrefixBytes); }

}  // namespace

TEST_CASE("every session message comes back as it went") {
  RandomMessages random(1);
  std::set<size_t> kinds;
  for (int i = 0; i < 20000; ++i) {
    const SessionMessage message = random.make_any<SessionMessage>();
    kinds.insert(message.index());
    const auto bytes = encode_session(message);
    REQUIRE(bytes);
    const auto decoded = decode_session(bytes.value());
    REQUIRE_MESSAGE(decoded, (decoded ? "" : decoded.error().message));
    REQUIRE(decoded.value().has_value());
    REQUIRE_MESSAGE(is_same(message, *decoded.value()), "kind ", message.index());
  }
  CHECK(kinds.size() == std::variant_size_v<SessionMessage>);
}

TEST_CASE("every peer message comes back as it went, its payload named and not carried") {
  RandomMessages random(2);
  std::set<size_t> kinds;
  for (int i = 0; i < 20000; ++i) {
    const PeerMessage message = random.make_any<PeerMessage>();
    kinds.insert(message.index());
    const auto frame = encode_peer(message);
    REQUIRE(frame);
    const auto sizes = read_peer_prefix(frame.value().header);
    REQUIRE(sizes);
    CHECK(sizes.value().body_bytes == frame.value().header.size() - kPeerPrefixBytes);
    CHECK(sizes.value().payload_bytes == frame.value().payload.size_bytes);
    const auto decoded = decode_peer(frame.value().header);
    REQUIRE_MESSAGE(decoded, (decoded ? "" : decoded.error().message));
    REQUIRE(decoded.value().has_value());
    REQUIRE_MESSAGE(is_same(message, *decoded.value()), "kind ", message.index());
    if (const Push* push = std::get_if<Push>(&message)) CHECK(frame.value().payload.handle == push->payload.handle);
  }
  CHECK(kinds.size() == std::variant_size_v<PeerMessage>);
}

TEST_CASE("comparison sees a change of any one field") {
  RandomMessages random(3);
  Hello hello = random.make<Hello>();
  Hello other = hello;
  CHECK(is_same(hello, other));
  other.fingerprint.numerics += "x";
  CHECK_FALSE(is_same(hello, other));
  other = hello;
  other.credits ^= 1;
  CHECK_FALSE(is_same(hello, other));
}

TEST_CASE("limits and values at the ends of their range travel") {
  Prefill prefill;
  prefill.request = {~0ull, 0};
  prefill.attempt = UINT32_MAX;
  prefill.state.sampling.num_logprobs = -1;
  prefill.state.sampling.top_k = INT64_MIN;
  prefill.state.sampling.seed = ~0ull;
  prefill.state.prompt = {0, INT32_MAX};
  prefill.state.stop_strings = {"", std::string("\0\xff\xfe", 3)};
  prefill.have = PartSet(8);
  prefill.have.add(7);
  const auto decoded = decode_session(encode_session(prefill).value());
  REQUIRE(decoded);
  CHECK(is_same(SessionMessage(prefill), *decoded.value()));

  TokenBatch batch;
  batch.entries.resize(1);
  batch.entries[0].attempt = 1;
  batch.entries[0].logprob = -std::numeric_limits<float>::infinity();
  const auto infinite = decode_session(encode_session(batch).value());
  REQUIRE(infinite);
  CHECK(is_same(SessionMessage(batch), *infinite.value()));
}

TEST_CASE("a session message that is wrong is refused, and the field named") {
  RandomMessages random(4);
  Reserve reserve = random.make<Reserve>();
  reserve.shape = {16, 2, 100, {3, 4}, {0, 0}};
  const auto of_reserve = [&](auto change) {
    return session_fault(reserve, [&](pb::SessionFrame& frame) { change(*frame.mutable_reserve()); });
  };
  CHECK(of_reserve([](pb::Reserve&) {}) == "none");
  CHECK(of_reserve([](pb::Reserve& m) { m.mutable_shape()->set_block_size(65537); }) ==
        "reserve: shape: block_size is 65537, not in 0 to 65536");
  CHECK(of_reserve([](pb::Reserve& m) { m.mutable_shape()->set_num_layer_groups(4097); }) ==
        "reserve: shape: num_layer_groups is 4097, not in 0 to 4096");
  CHECK(of_reserve([](pb::Reserve& m) { m.set_final_tokens(UINT32_MAX); }) ==
        "reserve: final_tokens is 4294967295, not in 0 to 16777216");
  CHECK(of_reserve([](pb::Reserve& m) { m.mutable_shape()->set_prompt_tokens(UINT32_MAX); }) ==
        "reserve: shape: prompt_tokens is 4294967295, not in 0 to 16777216");
  CHECK(of_reserve([](pb::Reserve& m) { m.mutable_shape()->add_choice_tokens(3); }) ==
        "reserve: shape: is_finished and choice_tokens differ in length");
  CHECK(of_reserve([](pb::Reserve& m) {
          m.mutable_shape()->set_prompt_tokens(1 << 24);
          m.mutable_shape()->set_num_layer_groups(4096);
        }) == "reserve: shape: choice_tokens make more than 16777216 parts");
  CHECK(of_reserve([](pb::Reserve& m) { m.clear_shape(); }) == "reserve: shape is missing");
  CHECK(of_reserve([](pb::Reserve& m) { m.clear_request(); }) == "reserve: request is missing");
  CHECK(of_reserve([](pb::Reserve& m) { m.set_attempt(0); }) == "reserve: attempt is 0, not in 1 to 4294967295");
  CHECK(of_reserve([](pb::Reserve& m) { m.add_prompt(-1); }) == "reserve: prompt holds the token -1");
  CHECK(of_reserve([](pb::Reserve& m) { m.mutable_source()->set_id(std::string(257, 'n')); }) ==
        "reserve: source: id has 257 entries or bytes, at most 256");

  CHECK(of_reserve([](pb::Reserve& m) { m.set_traceparent(std::string(257, '0')); }) ==
        "reserve: traceparent is too long");

  const Prefill prefill = random.make<Prefill>();
  const auto of_prefill = [&](auto change) {
    return session_fault(prefill, [&](pb::SessionFrame& frame) { change(*frame.mutable_prefill()); });
  };
  CHECK(of_prefill([](pb::Prefill& m) { m.mutable_have()->set_num_parts(1u << 25); }) ==
        "prefill: have: num_parts is 33554432, not in 0 to 16777216");
  CHECK(of_prefill([](pb::Prefill& m) {
          m.mutable_have()->set_num_parts(9);
          m.mutable_have()->set_bits("x");
        }) == "prefill: have: bits has 1 bytes, not 2");
  CHECK(of_prefill([](pb::Prefill& m) {
          m.mutable_have()->set_num_parts(3);
          m.mutable_have()->set_bits("\x08");
        }) == "prefill: have: bits names part 3");
  CHECK(of_prefill([](pb::Prefill& m) { m.mutable_state()->add_prompt(-3); }) ==
        "prefill: state: prompt holds the token -3");
  CHECK(of_prefill([](pb::Prefill& m) { m.mutable_state()->set_version(2); }) ==
        "prefill: state: version is 2, not in 1 to 1");
  CHECK(of_prefill([](pb::Prefill& m) { m.mutable_state()->set_grammar_kind(static_cast<pb::GrammarKind>(5)); }) ==
        "prefill: state: grammar_kind is 5, not in 0 to 4");
  CHECK(of_prefill([](pb::Prefill& m) {
          m.mutable_state()->mutable_sampling()->set_top_p(std::numeric_limits<float>::quiet_NaN());
        }) == "prefill: state: sampling: top_p is not a finite number");
}

TEST_CASE("what is no session message at all") {
  CHECK(decode_session("").error().message == "size is 0, not in 1 to 16777216");
  CHECK(decode_session("\x01").error().code == ErrorCode::kCorrupt);
  CHECK_FALSE(decode_session(std::string(kMaxSessionBytes + 1, '\0')));
  Hold huge;
  huge.attempt = 1;
  huge.state.prompt.assign(9u << 20, 1 << 20);
  CHECK(encode_session(huge).error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("each cut of a session message is refused or is a shorter message, never a crash") {
  RandomMessages random(5);
  for (int i = 0; i < 200; ++i) {
    const std::string bytes = encode_session(random.make_any<SessionMessage>()).value();
    for (size_t size = 1; size < bytes.size(); ++size) {
      const auto decoded = decode_session(std::string_view(bytes).substr(0, size));
      if (!decoded) CHECK(decoded.error().code == ErrorCode::kCorrupt);
    }
  }
}

TEST_CASE("a newer peer's session messages: fields, values and kinds that are not known here") {
  const std::string unknown_field("\xf8\x3f\x2a", 3);  // number 1023, a varint
  Release release;
  release.upto_attempt = 7;
  pb::SessionFrame frame;
  REQUIRE(frame.ParseFromString(encode_session(release).value()));
  const std::string inner = frame.release().SerializeAsString() + unknown_field;
  const std::string bytes = std::string(1, '\x72') + static_cast<char>(inner.size()) + inner;  // field 14
  const auto with_field = decode_session(bytes);
  REQUIRE(with_field);
  CHECK(is_same(SessionMessage(release), *with_field.value()));

  const auto kind = decode_session(unknown_field);
  REQUIRE(kind);
  CHECK_FALSE(kind.value().has_value());

  TokenBatch batch;
  batch.entries.resize(1);
  batch.entries[0].attempt = 1;
  REQUIRE(frame.ParseFromString(encode_session(batch).value()));
  frame.mutable_token_batch()->mutable_entries(0)->set_finish(static_cast<pb::Finish>(9));
  CHECK(std::get<TokenBatch>(*decode_session(frame.SerializeAsString()).value()).entries[0].finish == Finish::kStop);
  frame.mutable_reserve_no()->mutable_request();
  frame.mutable_reserve_no()->set_attempt(1);
  frame.mutable_reserve_no()->set_reason(static_cast<pb::ReserveRefusal>(9));
  CHECK(std::get<ReserveNo>(*decode_session(frame.SerializeAsString()).value()).reason == ReserveRefusal::kNoRoom);
}

TEST_CASE("an older peer's messages: fields that came later are absent and mean nothing") {
  RandomMessages random(9);
  TokenBatch batch;
  batch.entries = {random.make<TokenEntry>()};
  batch.entries[0].rank = 3;
  batch.entries[0].top = {{5, -0.5f}, {9, -2.0f}};
  Hello hello = random.make<Hello>();
  hello.private_blocks = 7;
  Hold hold = random.make<Hold>();
  hold.state.shows_special = true;
  Reserve reserve = random.make<Reserve>();
  reserve.traceparent = "00-1-2-01";
  pb::SessionFrame frame;
  const auto without = [&](const SessionMessage& message, const auto& clear) {
    REQUIRE(frame.ParseFromString(encode_session(message).value()));
    clear();
    const auto decoded = decode_session(frame.SerializeAsString());
    REQUIRE_MESSAGE(decoded, (decoded ? "" : decoded.error().message));
    return *decoded.value();
  };
  const SessionMessage old_batch = without(batch, [&] {
    pb::TokenEntry& entry = *frame.mutable_token_batch()->mutable_entries(0);
    entry.clear_rank();
    entry.clear_top_tokens();
    entry.clear_top_logprobs();
  });
  batch.entries[0].rank = 0;
  batch.entries[0].top.clear();
  CHECK(is_same(SessionMessage(batch), old_batch));
  const SessionMessage old_hello = without(hello, [&] { frame.mutable_hello()->clear_private_blocks(); });
  hello.private_blocks = 0;
  CHECK(is_same(SessionMessage(hello), old_hello));
  const SessionMessage old_hold = without(hold, [&] { frame.mutable_hold()->mutable_state()->clear_shows_special(); });
  hold.state.shows_special = false;
  CHECK(is_same(SessionMessage(hold), old_hold));
  hold.state.grammar_kind = GrammarKind::kLark;
  const SessionMessage free_hold = without(hold, [&] { frame.mutable_hold()->mutable_state()->clear_grammar_kind(); });
  hold.state.grammar_kind = GrammarKind::kNone;
  CHECK(is_same(SessionMessage(hold), free_hold));
  const SessionMessage old_reserve = without(reserve, [&] { frame.mutable_reserve()->clear_traceparent(); });
  reserve.traceparent.clear();
  CHECK(is_same(SessionMessage(reserve), old_reserve));
}

TEST_CASE("a newer peer's parts are of no known kind, and there are not too many") {
  Timings timings{{1, 2}, 1, {{Part::kPush, 5, 7}}};
  const auto of_timings = [&](auto change) {
    return session_fault(timings, [&](pb::SessionFrame& frame) { change(*frame.mutable_timings()); });
  };
  CHECK(of_timings([](pb::Timings&) {}) == "none");
  CHECK(of_timings([](pb::Timings& m) {
          while (m.parts_size() <= 32) m.add_parts();
        }) == "timings: parts is 33, not in 0 to 32");
  pb::SessionFrame frame;
  REQUIRE(frame.ParseFromString(encode_session(timings).value()));
  frame.mutable_timings()->mutable_parts(0)->set_part(static_cast<pb::Part>(99));
  const auto read = decode_session(frame.SerializeAsString());
  REQUIRE(read);
  CHECK(std::get<Timings>(*read.value()).parts[0].part == Part::kUnknown);
  CHECK(std::get<Timings>(*read.value()).parts[0].duration_ns == 7);
}

TEST_CASE("a token's best ones come in pairs, with tokens that there can be, and not too many") {
  TokenBatch batch;
  batch.entries.resize(1);
  batch.entries[0].attempt = 1;
  batch.entries[0].top.assign(kMaxTopLogprobs, {1, -1.0f});
  const auto of_entry = [&](auto change) {
    return session_fault(batch, [&](pb::SessionFrame& frame) {
      change(*frame.mutable_token_batch()->mutable_entries(0));
    });
  };
  CHECK(of_entry([](pb::TokenEntry&) {}) == "none");
  CHECK(of_entry([](pb::TokenEntry& m) { m.add_top_logprobs(0); }) ==
        "token_batch: entries: top_logprobs and top_tokens differ in length");
  CHECK(of_entry([](pb::TokenEntry& m) { m.set_top_tokens(7, -2); }) ==
        "token_batch: entries: top_tokens holds the token -2");
  CHECK(of_entry([](pb::TokenEntry& m) {
          m.add_top_tokens(1);
          m.add_top_logprobs(0);
        }) == "token_batch: entries: top_tokens has 1025 entries or bytes, at most 1024");
}

TEST_CASE("a peer header that is wrong is refused, and the field named") {
  RandomMessages random(6);
  const Push push = random.make<Push>();
  const std::string header = header_of(push);
  CHECK(peer_fault(header) == "none");
  CHECK(peer_fault(header.substr(0, 23)) == "prefix is cut short");
  CHECK(peer_fault("X" + header.substr(1)) == "magic is not that of a peer frame");
  CHECK(peer_fault(header + "x") == "body_bytes is 44, not in 45 to 45");
  CHECK(peer_fault(sealed_header(0, 1, 0, body_of(push))) == "version is 0, not in 1 to 2");
  CHECK(peer_fault(sealed_header(3, 1, 0, body_of(push))) == "version is 3, not in 1 to 2");
  CHECK(peer_fault(sealed_header(1, 8, 0, "")) == "kind is 8, which version 1 does not have");
  CHECK(peer_fault(sealed_header(1, 1, kMaxPayloadBytes + 1, body_of(push))) ==
        "payload_bytes is 67108865, not in 0 to 67108864");
  CHECK(peer_fault(sealed_header(1, 1, 5, body_of(push).substr(0, 43))) ==
        "push: checksum is missing: the body ends before it");
  CHECK(peer_fault(sealed_header(1, 1, 5, body_of(push) + "x")) == "push: body is longer than its fields");
  CHECK(peer_fault(sealed_header(1, 3, 5, body_of(CommitAck{{}, 1}))) ==
        "commit_ack: payload_bytes is 5, not in 0 to 0");
  CHECK(peer_fault(sealed_header(1, 3, 0, body_of(CommitAck{{}, 0}))) ==
        "commit_ack: attempt is 0, not in 1 to 4294967295");
  Mirror mirror;
  mirror.attempt = 1;
  mirror.tokens = {5, -3};
  CHECK(peer_fault(header_of(mirror)) == "mirror: tokens holds the token -3");
  std::string body = body_of(mirror);
  body[28] = '\x03';  // of the two tokens' count
  CHECK(peer_fault(sealed_header(1, 5, 0, body)) == "mirror: tokens is longer than the body");
}

TEST_CASE("any changed bit of a peer header is noticed") {
  RandomMessages random(7);
  for (int i = 0; i < 30; ++i) {
    const std::string header = header_of(random.make_any<PeerMessage>());
    for (size_t bit = 0; bit < header.size() * 8; ++bit) {
      std::string changed = header;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
      REQUIRE_FALSE(decode_peer(changed));
    }
  }
}

TEST_CASE("a newer peer's frames: a longer body is read as far as it is known, an unknown kind is skipped") {
  RandomMessages random(8);
  const Stale stale = random.make<Stale>();
  const auto longer = decode_peer(sealed_header(2, 4, 0, body_of(stale) + "more"));
  REQUIRE(longer);
  CHECK(is_same(PeerMessage(stale), *longer.value()));
  const auto kind = decode_peer(sealed_header(2, 8, 0, "anything"));
  REQUIRE(kind);
  CHECK_FALSE(kind.value().has_value());
}

TEST_CASE("the peer header's format stays as it is") {
  Push push;
  push.request = {0x0102030405060708, 0x1112131415161718};
  push.attempt = 0x21222324;
  push.landing = 0x3132333435363738;
  push.block = 0x41424344;
  push.layer_group = 0x51525354;
  push.checksum = 0x6162636465666768;
  push.payload = {7, 0x10203};
  std::string body;
  for (const std::string_view field : {"\x08\x07\x06\x05\x04\x03\x02\x01", "\x18\x17\x16\x15\x14\x13\x12\x11", "$#\"!",
                                       "87654321", "DCBA", "TSRQ", "hgfedcba"}) {
    body += field;
  }
  CHECK(header_of(push) == sealed_header(1, 1, 0x10203, body));
}
