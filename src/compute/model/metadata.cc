#include "compute/model/metadata.h"

#include <limits>
#include <optional>
#include <utility>

#include "compute/model/byte_cursor.h"
#include "compute/model/fault_text.h"

namespace tandem::model {
namespace {

struct Integer {
  bool is_negative;
  uint64_t bits;  // two's complement
};

std::optional<Integer> integer_at(ValueType type, const uint8_t* p) {
  const auto from_signed = [](int64_t v) { return Integer{v < 0, static_cast<uint64_t>(v)}; };
  switch (type) {
    case ValueType::kU8: return Integer{false, *p};
    case ValueType::kU16: return Integer{false, load_unaligned<uint16_t>(p)};
    case ValueType::kU32: return Integer{false, load_unaligned<uint32_t>(p)};
    case ValueType::kU64: return Integer{false, load_unaligned<uint64_t>(p)};
    case ValueType::kI8: return from_signed(load_unaligned<int8_t>(p));
    case ValueType::kI16: return from_signed(load_unaligned<int16_t>(p));
    case ValueType::kI32: return from_signed(load_unaligned<int32_t>(p));
    case ValueType::kI64: return from_signed(load_unaligned<int64_t>(p));
    default: return std::nullopt;
  }
}

std::optional<float> float_at(ValueType type, const uint8_t* p) {
  if (type == ValueType::kF32) return load_unaligned<float>(p);
  if (type == ValueType::kF64) return static_cast<float>(load_unaligned<double>(p));
  return std::nullopt;
}

std::optional<int32_t> int32_of(const Integer& integer) {
  const auto value = static_cast<int64_t>(integer.bits);
  if (!integer.is_negative && integer.bits > uint64_t{std::numeric_limits<int32_t>::max()}) return std::nullopt;
  if (integer.is_negative && value < std::numeric_limits<int32_t>::min()) return std::nullopt;
  return static_cast<int32_t>(value);
}

}  // namespace

size_t scalar_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8: case ValueType::kI8: case ValueType::kBool: return 1;
    case ValueType::kU16: case ValueType::kI16: return 2;
    case ValueType::kU32: case ValueType::kI32: case ValueType::kF32: return 4;
    case ValueType::kU64: case ValueType::kI64: case ValueType::kF64: return 8;
    default: return 0;
  }
}

bool Metadata::add(std::string key, MetadataValue value) {
  if (!values_.emplace(key, value).second) return false;
  keys_.push_back(std::move(key));
  return true;
}

const MetadataValue* Metadata::find(std::string_view key) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() ? nullptr : &found->second;
}

Result<const MetadataValue*> Metadata::require(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return Error{ErrorCode::kNotFound, file_ + ": no metadata key " + quote_name(key)};
  return value;
}

Result<const MetadataValue*> Metadata::require_array(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require(key));
  if (value->type != ValueType::kArray) return wrong_type(key, "an array");
  return value;
}

Error Metadata::wrong_type(std::string_view key, const char* wanted) const {
  return file_fault(file_, "metadata key " + quote_name(key) + " is not " + wanted);
}

Result<uint64_t> Metadata::get_u64(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require(key));
  const auto integer = integer_at(value->type, value->bytes.data());
  if (!integer || integer->is_negative) return wrong_type(key, "an unsigned integer");
  return integer->bits;
}

Result<uint32_t> Metadata::get_u32(std::string_view key) const {
  TRY_ASSIGN(const uint64_t value, get_u64(key));
  if (value > std::numeric_limits<uint32_t>::max()) return wrong_type(key, "below 2^32");
  return static_cast<uint32_t>(value);
}

Result<int32_t> Metadata::get_i32(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require(key));
  const auto integer = integer_at(value->type, value->bytes.data());
  if (!integer) return wrong_type(key, "an integer");
  const auto narrow = int32_of(*integer);
  if (!narrow) return wrong_type(key, "a 32-bit integer");
  return *narrow;
}

Result<float> Metadata::get_f32(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require(key));
  const auto number = float_at(value->type, value->bytes.data());
  if (!number) return wrong_type(key, "a float");
  return *number;
}

Result<bool> Metadata::get_bool(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require(key));
  if (value->type != ValueType::kBool) return wrong_type(key, "a bool");
  return value->bytes[0] != 0;
}

Result<std::string_view> Metadata::get_string(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require(key));
  if (value->type != ValueType::kString) return wrong_type(key, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

Result<std::vector<std::string_view>> Metadata::get_strings(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require_array(key));
  if (value->element_type != ValueType::kString) return wrong_type(key, "an array of strings");
  std::vector<std::string_view> strings(value->count);  // the parser has walked them: count is honest
  ByteCursor cursor(value->bytes);
  for (std::string_view& text : strings) {
    if (!cursor.read_string(&text)) return wrong_type(key, "a whole array of strings");
  }
  return strings;
}

Result<std::vector<float>> Metadata::get_floats(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require_array(key));
  const size_t stride = scalar_bytes(value->element_type);
  std::vector<float> floats;
  floats.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = float_at(value->element_type, value->bytes.data() + i * stride);
    if (!number) return wrong_type(key, "an array of floats");
    floats.push_back(*number);
  }
  return floats;
}

Result<std::vector<int32_t>> Metadata::get_ints(std::string_view key) const {
  TRY_ASSIGN(const MetadataValue* value, require_array(key));
  const bool is_bool = value->element_type == ValueType::kBool;
  const ValueType type = is_bool ? ValueType::kU8 : value->element_type;
  const size_t stride = scalar_bytes(type);
  std::vector<int32_t> ints;
  ints.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto integer = integer_at(type, value->bytes.data() + i * stride);
    if (!integer) return wrong_type(key, "an array of integers");
    const auto narrow = int32_of(*integer);
    if (!narrow) return wrong_type(key, "an array of 32-bit integers");
    ints.push_back(is_bool ? *narrow != 0 : *narrow);
  }
  return ints;
}

Result<uint32_t> Metadata::get_u32_or(std::string_view key, uint32_t fallback) const {
  return has(key) ? get_u32(key) : Result<uint32_t>(fallback);
}
Result<float> Metadata::get_f32_or(std::string_view key, float fallback) const {
  return has(key) ? get_f32(key) : Result<float>(fallback);
}
Result<bool> Metadata::get_bool_or(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : Result<bool>(fallback);
}
Result<std::string_view> Metadata::get_string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? get_string(key) : Result<std::string_view>(fallback);
}

}  // namespace tandem::model
