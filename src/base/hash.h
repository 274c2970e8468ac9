#pragma once
// XXH3-128 as lower-case hex: the project's one hash for files, weights, fingerprints and layouts; XXH3-64 for frames.
// Source: https://github.com/Cyan4973/xxHash (specification), library libxxhash.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tandem {

// Feed bytes, then ask for the digest. One thread.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(const void* data, size_t size_bytes);
  std::string hex() const;  // 32 lower-case hex digits of what was fed so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(const void* data, size_t size_bytes);
uint64_t hash_64(const void* data, size_t size_bytes);

}  // namespace tandem
