#pragma once
// How this folder's .cc files hold what the Rust library hands out. Not for other folders: the C ABI of
// tandem_text.h stays behind serve/text.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sampling_params.h"
#include "serve/text/tandem_text.h"

namespace tandem::text {

static_assert(sizeof(TokenId) == sizeof(uint32_t));

// The library counts ids unsigned; ours are signed. A negative one becomes an id that no vocabulary has.
inline const uint32_t* raw_ids(const std::vector<TokenId>& ids) {
  return reinterpret_cast<const uint32_t*>(ids.data());
}

inline tt_str raw_str(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view view_of(tt_str s) { return {s.data, s.size}; }

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* handle) const { Free(handle); }
};

// Owns a text of the library.
class OutText {
 public:
  OutText() = default;
  ~OutText() { tt_text_free(&text_); }
  OutText(const OutText&) = delete;
  OutText& operator=(const OutText&) = delete;

  tt_text* out() { return &text_; }
  std::string str() const { return text_.data ? std::string(text_.data, text_.size) : std::string(); }
  Error error(ErrorCode code) const;  // kInternal instead where the library says that it failed by a bug

 private:
  tt_text text_{};
};

// Owns a list of ids of the library.
class OutIds {
 public:
  OutIds() = default;
  ~OutIds() { tt_ids_free(&ids_); }
  OutIds(const OutIds&) = delete;
  OutIds& operator=(const OutIds&) = delete;

  tt_ids* out() { return &ids_; }
  std::vector<TokenId> take() const { return std::vector<TokenId>(ids_.data, ids_.data + ids_.size); }

 private:
  tt_ids ids_{};
};

}  // namespace tandem::text
