#include "base/hash.h"

#include <xxhash.h>

#include <cstdio>

#include "base/check.h"

namespace tandem {

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  TANDEM_CHECK(state_->xxh != nullptr && XXH3_128bits_reset(state_->xxh) == XXH_OK);
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(const void* data, size_t size_bytes) {
  if (size_bytes > 0) XXH3_128bits_update(state_->xxh, data, size_bytes);
}

std::string Hasher::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_->xxh);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return text;
}

std::string hash_hex(const void* data, size_t size_bytes) {
  Hasher hasher;
  hasher.update(data, size_bytes);
  return hasher.hex();
}

uint64_t hash_64(const void* data, size_t size_bytes) { return XXH3_64bits(data, size_bytes); }

}  // namespace tandem
