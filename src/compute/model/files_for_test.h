#pragma once
// Small weight files for tests, whose every field can be made a lie. Included by tests only.

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
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

// Header text, its length in front, `data` behind.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return le_bytes<uint64_t>(header.size()) + header + data;
}

// A well-formed file of F32 tensors, filled with their position in the list.
inline std::string safetensors_of(const std::vector<std::pair<std::string, std::vector<uint64_t>>>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::string data;
  float fill = 0;
  for (const auto& [name, shape] : tensors) {
    const size_t begin = data.size();
    uint64_t elements = 1;
    std::string dims;
    for (const uint64_t dim : shape) {
      elements *= dim;
      dims += (dims.empty() ? "" : ",") + std::to_string(dim);
    }
    for (uint64_t i = 0; i < elements; ++i) data += le_bytes(fill);
    header += ",\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + dims + "],\"data_offsets\":[" +
              std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    ++fill;
  }
  return safetensors_bytes(header + "}", data);
}

// A directory that goes away with the object.
class TempDir {
 public:
  TempDir() {
    static std::atomic<int> next{0};
    const std::string name = "tandem-model-" + std::to_string(getpid()) + "-" + std::to_string(next++);
    path_ = (std::filesystem::temp_directory_path() / name).string();
    std::filesystem::create_directory(path_);
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  void remove(const std::string& name) const { std::filesystem::remove(path(name)); }

 private:
  std::string path_;
};

}  // namespace tandem::model
