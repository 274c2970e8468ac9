#pragma once
// FieldReader: takes typed fields out of a JSON object. The first fault is kept, with the field's name, what was
// expected and what came; later reads do nothing, so that a caller reads all and asks once.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai/api_error.h"
#include "base/json.h"
#include "base/sampling_params.h"

namespace tandem::openai {

struct Range {
  double low = 0;
  double high = 0;
  bool excludes_low = false;
};

class FieldReader {
 public:
  // `object` is borrowed. `path` prefixes the names in messages ("stream_options.").
  explicit FieldReader(const JsonValue& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  // The member, or null when it is absent, null, or an earlier read failed.
  const JsonValue* get(std::string_view name) const;

  // Members that nobody has asked for yet, in the order of the text.
  std::vector<std::string_view> unread() const;

  bool flag(std::string_view name, bool otherwise);
  std::optional<bool> optional_flag(std::string_view name);
  float number(std::string_view name, float otherwise, Range range);
  // Integers may also be written as 16.0.
  int64_t integer(std::string_view name, int64_t otherwise, int64_t low, int64_t high);
  std::optional<uint64_t> optional_unsigned(std::string_view name, uint64_t low);
  std::string text(std::string_view name);
  std::vector<std::string> texts(std::string_view name, size_t max_count);  // one string or a list
  std::vector<TokenId> token_ids(std::string_view name, size_t max_count, uint32_t vocab_size);

  void fail(std::string_view name, std::string message);
  // "NAME: expected WHAT, got KIND".
  void fail_kind(std::string_view name, std::string_view expected, const JsonValue& got);
  // Takes over another reader's fault.
  void absorb(const FieldReader& inner) {
    if (!error_ && inner.error_) error_ = inner.error_;
  }

  bool has_failed() const { return error_.has_value(); }
  const ApiError& error() const { return *error_; }

 private:
  const JsonValue& object_;
  std::string path_;
  mutable std::vector<std::string> asked_;
  std::optional<ApiError> error_;
};

// The ids in `list`; a fault goes to `reader` under `name`.
std::vector<TokenId> read_token_ids(FieldReader& reader, std::string_view name, const JsonValue::Array& list,
                                    uint32_t vocab_size);

}  // namespace tandem::openai
