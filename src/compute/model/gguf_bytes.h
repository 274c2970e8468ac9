#pragma once
// Encodes GGUF: a header with its metadata and tensor list. Every field can be set by hand, so that tests can make any
// of them a lie. Source of the layout: see gguf.h.

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::model {

template <class T>
std::string le_bytes(T value) {
  std::string bytes(sizeof(T), '\0');
  memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string gguf_string(const std::string& text) { return le_bytes<uint64_t>(text.size()) + text; }

// Encoded metadata values: type, then payload.
inline std::string u16_value(uint16_t v) { return le_bytes<uint32_t>(2) + le_bytes(v); }
inline std::string u32_value(uint32_t v) { return le_bytes<uint32_t>(4) + le_bytes(v); }
inline std::string f32_value(float v) { return le_bytes<uint32_t>(6) + le_bytes(v); }
inline std::string bool_value(bool v) { return le_bytes<uint32_t>(7) + le_bytes<uint8_t>(v); }
inline std::string string_value(const std::string& v) { return le_bytes<uint32_t>(8) + gguf_string(v); }
inline std::string array_value(uint32_t element_type, uint64_t count, const std::string& payload) {
  return le_bytes<uint32_t>(9) + le_bytes(element_type) + le_bytes(count) + payload;
}

struct GgufBytes {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // GGUF order: contiguous first
    uint32_t type = 0;
    uint64_t offset = 0;
    std::optional<uint32_t> num_dims{};
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> num_tensors{};
  std::optional<uint64_t> num_keys{};
  std::vector<std::pair<std::string, std::string>> keys{};
  std::vector<Tensor> tensors{};
  uint64_t data_bytes = 0;
  uint64_t alignment = 32;

  std::string encode() const {
    std::string out = magic + le_bytes(version) + le_bytes<uint64_t>(num_tensors.value_or(tensors.size())) +
                      le_bytes<uint64_t>(num_keys.value_or(keys.size()));
    for (const auto& [key, value] : keys) out += gguf_string(key) + value;
    for (const Tensor& tensor : tensors) {
      out += gguf_string(tensor.name) + le_bytes<uint32_t>(tensor.num_dims.value_or(tensor.dims.size()));
      for (const uint64_t dim : tensor.dims) out += le_bytes(dim);
      out += le_bytes(tensor.type) + le_bytes(tensor.offset);
    }
    if (data_bytes == 0) return out;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    for (uint64_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
    return out;
  }
};

}  // namespace tandem::model
