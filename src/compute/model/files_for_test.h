#pragma once
// Small weight files for tests, whose every field can be made a lie. Included by tests only.

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "compute/model/gguf_bytes.h"

namespace tandem::model {

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
