#pragma once
// The quant fixture (tests/fixtures/quants): rows of every file type as bytes, and what they dequantise to.

#include <doctest/doctest.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"

namespace tandem::tensor {

// Just enough of safetensors for this fixture: "name":{... "data_offsets":[a,b]}.
class QuantFixture {
 public:
  QuantFixture() : file_(std::move(MappedFile::open(TANDEM_FIXTURES "/quants/quants.safetensors")).value()) {
    std::memcpy(&header_size_, file_.bytes().data(), 8);
  }

  std::span<const uint8_t> tensor(const std::string& name) const {
    const std::string_view header(reinterpret_cast<const char*>(file_.bytes().data()) + 8, header_size_);
    const size_t entry = header.find("\"" + name + "\"");
    REQUIRE(entry != header.npos);
    const std::string_view key = "\"data_offsets\":[";
    const char* p = header.data() + header.find(key, entry) + key.size();
    uint64_t begin = 0;
    uint64_t end = 0;
    const auto first = std::from_chars(p, header.data() + header.size(), begin);
    std::from_chars(first.ptr + 1, header.data() + header.size(), end);
    REQUIRE(begin < end);
    return file_.bytes().subspan(8 + header_size_ + begin, end - begin);
  }

  std::vector<float> floats(const std::string& name) const {
    const std::span<const uint8_t> bytes = tensor(name);
    std::vector<float> out(bytes.size() / 4);
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

 private:
  MappedFile file_;
  uint64_t header_size_ = 0;
};

}  // namespace tandem::tensor
