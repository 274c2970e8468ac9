#pragma once
// For the tests of the codecs: random messages, comparison of messages field by field, and peer headers of any content.
//
// Both walk the structs by reflection (Boost.PFR), so a field that is added to a message and forgotten in a codec fails
// the tests at once.

#include <algorithm>
#include <xxhash.h>

#include <boost/pfr.hpp>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/handoff/messages.h"
#include "cluster/wire/wire_limits.h"

namespace tandem::wire {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsPair : std::false_type {};
template <class A, class B>
struct IsPair<std::pair<A, B>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class Enum>
constexpr uint32_t kNumValues = 0;
template <>
constexpr uint32_t kNumValues<handoff::Role> = 3;
template <>
constexpr uint32_t kNumValues<handoff::Finish> = 5;
template <>
constexpr uint32_t kNumValues<handoff::GrammarKind> = 5;
template <>
constexpr uint32_t kNumValues<handoff::ReserveRefusal> = 4;
template <>
constexpr uint32_t kNumValues<handoff::Pooling> = 3;
template <>
constexpr uint32_t kNumValues<ErrorCode> = 8;
template <>
constexpr uint32_t kNumValues<handoff::Part> = 8;

class RandomMessages {
 public:
  explicit RandomMessages(uint64_t seed) : rng_(seed) {}

  // All fields random, and within the limits.
  template <class T>
  T make() {
    T value;
    fill(value);
    return value;
  }

  uint64_t below(uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(rng_); }

  template <class T>
  void fill(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = below(2) == 1;
    } else if constexpr (std::is_enum_v<T>) {
      static_assert(kNumValues<T> > 0, "an enumeration that the tests do not know");
      value = static_cast<T>(below(kNumValues<T>));
    } else if constexpr (std::is_same_v<T, float>) {
      value = below(8) == 0 ? 0.0f : static_cast<float>(static_cast<int64_t>(below(1 << 24)) - (1 << 23)) / 4096.0f;
    } else if constexpr (std::is_integral_v<T>) {
      // Small numbers, all lengths, the ends. Signed ones are never negative: token ids must not be.
      const uint64_t most = static_cast<uint64_t>(std::numeric_limits<T>::max());
      value = static_cast<T>(below(8) == 0 ? most : rng_() >> below(64) & most);
    } else if constexpr (std::is_same_v<T, std::string>) {
      value.resize(below(4) == 0 ? 0 : below(40));
      for (char& c : value) c = static_cast<char>(below(256));
    } else if constexpr (std::is_same_v<T, handoff::PartSet>) {
      value = handoff::PartSet(static_cast<uint32_t>(below(70)));
      for (uint32_t part = 0; part < value.size(); ++part) {
        if (below(2) == 1) value.add(part);
      }
    } else if constexpr (IsVector<T>::value) {
      value.resize(below(6));
      for (auto& item : value) fill(item);
    } else if constexpr (IsPair<T>::value) {
      fill(value.first);
      fill(value.second);
    } else if constexpr (IsOptional<T>::value) {
      if (below(2) == 1) fill(value.emplace());
    } else if constexpr (std::is_same_v<T, handoff::HandoffShape>) {
      fill_shape(value);
    } else {
      boost::pfr::for_each_field(value, [&](auto& field) { fill(field); });
      keep_limits(value);
    }
  }

  // A random one of the variant's kinds.
  template <class Variant>
  Variant make_any() {
    return make_kind<Variant, 0>(below(std::variant_size_v<Variant>));
  }

 private:
  void fill_shape(handoff::HandoffShape& shape) {
    shape.block_size = static_cast<uint32_t>(below(64));
    shape.num_layer_groups = static_cast<uint32_t>(below(8));
    shape.prompt_tokens = static_cast<uint32_t>(below(5000));
    for (uint64_t left = below(5); left > 0; --left) {
      shape.choice_tokens.push_back(static_cast<uint32_t>(below(3000)));
      shape.is_finished.push_back(static_cast<uint8_t>(below(2)));
    }
  }

  template <class T>
  void keep_limits(T& value) {
    if constexpr (requires { value.attempt; }) value.attempt = std::max(value.attempt, 1u);
    if constexpr (requires { value.proto; }) value.proto = std::max(value.proto, 1u);
    if constexpr (requires { value.choice; }) value.choice %= kMaxChoices;
    if constexpr (requires { value.final_tokens; }) value.final_tokens %= kMaxTokens;
    if constexpr (requires { value.num_parts; }) value.num_parts %= kMaxParts;
    if constexpr (requires { value.num_cached; }) value.num_cached %= kMaxTokens;
    if constexpr (std::is_same_v<T, handoff::RequestState>) {
      value.version = 1;
      value.prompt_logprobs = std::max(value.prompt_logprobs, -1);
    }
    if constexpr (std::is_same_v<T, SamplingParams>) {
      std::ranges::sort(value.allowed);
      std::erase_if(value.bad_words, [](const auto& word) { return word.empty(); });
    }
    if constexpr (std::is_same_v<T, handoff::Payload>) value.size_bytes %= kMaxPayloadBytes;
    if constexpr (std::is_same_v<T, handoff::Fingerprint>) {
      value.block_size = 1 + value.block_size % kMaxBlockSize;
      value.tp = std::max(value.tp, 1u);
      value.pp = std::max(value.pp, 1u);
    }
  }

  template <class Variant, size_t kIndex>
  Variant make_kind(size_t index) {
    if constexpr (kIndex + 1 < std::variant_size_v<Variant>) {
      if (index != kIndex) return make_kind<Variant, kIndex + 1>(index);
    }
    return make<std::variant_alternative_t<kIndex, Variant>>();
  }

  std::mt19937_64 rng_;
};

// Equal in each field; a payload's handle, which does not travel, is left out.
template <class T>
bool is_same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, float>) {
    return std::memcmp(&a, &b, sizeof a) == 0;
  } else if constexpr (std::is_same_v<T, handoff::Payload>) {
    return a.size_bytes == b.size_bytes;
  } else if constexpr (std::is_same_v<T, handoff::PartSet>) {
    bool same = a.size() == b.size();
    for (uint32_t part = 0; part < a.size(); ++part) same = same && a.has(part) == b.has(part);
    return same;
  } else if constexpr (IsVector<T>::value) {
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); ++i) same = is_same(a[i], b[i]);
    return same;
  } else if constexpr (IsPair<T>::value) {
    return is_same(a.first, b.first) && is_same(a.second, b.second);
  } else if constexpr (IsOptional<T>::value) {
    return a.has_value() == b.has_value() && (!a || is_same(*a, *b));
  } else if constexpr (std::is_scalar_v<T> || std::is_same_v<T, std::string>) {
    return a == b;
  } else {
    bool same = true;
    boost::pfr::for_each_field(a, [&, i = 0]<class Field>(const Field& field) mutable {
      size_t at = 0;
      boost::pfr::for_each_field(b, [&]<class Other>(const Other& other) {
        if constexpr (std::is_same_v<Field, Other>)
          same = same && (at != static_cast<size_t>(i) || is_same(field, other));
        ++at;
      });
      ++i;
    });
    return same;
  }
}

template <class... Kinds>
bool is_same(const std::variant<Kinds...>& a, const std::variant<Kinds...>& b) {
  if (a.index() != b.index()) return false;
  return std::visit([&]<class Kind>(const Kind& kind) { return is_same(kind, std::get<Kind>(b)); }, a);
}

// A peer header as peer_codec.h describes it, of any version, kind and body, with the sizes and checksum that fit.
inline std::string sealed_header(uint16_t version, uint8_t kind, uint32_t payload_bytes, std::string_view body) {
  std::string header = "TDMK";
  const auto append = [&](uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) header.push_back(static_cast<char>(value >> 8 * i));
  };
  append(version, 2);
  append(kind, 2);
  append(body.size(), 4);
  append(payload_bytes, 4);
  append(XXH3_64bits_withSeed(body.data(), body.size(), XXH3_64bits(header.data(), header.size())), 8);
  return header.append(body);
}

}  // namespace tandem::wire
