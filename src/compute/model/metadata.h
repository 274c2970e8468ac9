#pragma once
// Metadata: the typed key-value section of a GGUF file. Strings and arrays are views into the mapped file, so it must
// not outlive the bytes it was parsed from. Immutable after parsing; any thread.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace tandem::model {

// GGUF value types, numbered as in the file format.
enum class ValueType : uint32_t {
  kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7,
  kString = 8, kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12,
};

// Bytes of a scalar; 0 for strings, arrays and numbers that are no type.
size_t scalar_bytes(ValueType type);

struct MetadataValue {
  ValueType type;
  ValueType element_type = ValueType::kU8;  // of arrays
  uint64_t count = 1;                       // elements of arrays
  std::span<const uint8_t> bytes = {};      // scalar: its bytes; string: its text; array: all elements, bounds checked
};

class Metadata {
 public:
  explicit Metadata(std::string file = "") : file_(std::move(file)) {}

  // False when the key is there already.
  bool add(std::string key, MetadataValue value);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  const MetadataValue* find(std::string_view key) const;
  const std::vector<std::string>& keys() const { return keys_; }  // in file order

  // kNotFound when absent; kCorrupt when the type differs or an integer does not fit. Errors name file and key.
  // Any integer type serves the integer getters, f32 and f64 serve get_f32.
  Result<uint32_t> get_u32(std::string_view key) const;
  Result<uint64_t> get_u64(std::string_view key) const;
  Result<int32_t> get_i32(std::string_view key) const;
  Result<float> get_f32(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<float>> get_floats(std::string_view key) const;
  Result<std::vector<int32_t>> get_ints(std::string_view key) const;  // any integer or bool element type

  // The same with a value for an absent key; a wrong type is still an error.
  Result<uint32_t> get_u32_or(std::string_view key, uint32_t fallback) const;
  Result<float> get_f32_or(std::string_view key, float fallback) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;

 private:
  Result<const MetadataValue*> require(std::string_view key) const;
  Result<const MetadataValue*> require_array(std::string_view key) const;
  Error wrong_type(std::string_view key, const char* wanted) const;

  std::string file_;
  std::vector<std::string> keys_;
  std::unordered_map<std::string, MetadataValue> values_;  // looked up only, never iterated
};

}  // namespace tandem::model
