#pragma once
// MappedFile: a whole file mapped read-only and shared. Owns the mapping; moving keeps addresses.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace tandem {

class MappedFile {
 public:
  // kNotFound when absent; kInvalidArgument for a directory or an unreadable file. An empty file maps to no bytes.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(const uint8_t* data, size_t size, std::string path) : data_(data), size_(size), path_(std::move(path)) {}

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace tandem
