#pragma once
// ByteCursor: reads little-endian values from bytes that may lie about their lengths. Borrows the bytes. Every read is
// checked by subtraction, so no length can wrap; a failed read leaves the cursor where it was.

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace tandem::model {

static_assert(std::endian::native == std::endian::little, "weight files are read in place");

template <class T>
T load_unaligned(const uint8_t* p) {
  T value;
  memcpy(&value, p, sizeof(T));
  return value;
}

class ByteCursor {
 public:
  explicit ByteCursor(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  template <class T>
  [[nodiscard]] bool read(T* out) {
    if (remaining() < sizeof(T)) return false;
    *out = load_unaligned<T>(bytes_.data() + offset_);
    offset_ += sizeof(T);
    return true;
  }

  [[nodiscard]] bool take(uint64_t size, std::span<const uint8_t>* out) {
    if (remaining() < size) return false;
    *out = bytes_.subspan(offset_, size);
    offset_ += size;
    return true;
  }

  // A GGUF string: 64-bit length, then the text.
  [[nodiscard]] bool read_string(std::string_view* out) {
    const uint64_t start = offset_;
    uint64_t length = 0;
    std::span<const uint8_t> text;
    if (!read(&length) || !take(length, &text)) {
      offset_ = start;
      return false;
    }
    *out = {reinterpret_cast<const char*>(text.data()), text.size()};
    return true;
  }

 private:
  std::span<const uint8_t> bytes_;
  uint64_t offset_ = 0;
};

}  // namespace tandem::model
