#include "net/fetch/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "base/check.h"

namespace tandem::fetch {
namespace {

constexpr size_t kReadBytes = 1 << 20;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    TANDEM_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void update(const void* data, size_t size_bytes) { EVP_DigestUpdate(context_.get(), data, size_bytes); }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    std::string text;
    for (unsigned i = 0; i < size; ++i) {
      text += "0123456789abcdef"[digest[i] >> 4];
      text += "0123456789abcdef"[digest[i] & 15];
    }
    return text;
  }

 private:
  struct Deleter {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Deleter> context_;
};

}  // namespace

Result<std::string> sha256_of_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument, path + ": " + strerror(errno)};
  Sha256 hash;
  std::vector<char> buffer(kReadBytes);
  ssize_t got = 0;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0) hash.update(buffer.data(), static_cast<size_t>(got));
  const int code = errno;
  ::close(fd);
  if (got < 0) return Error{ErrorCode::kInvalidArgument, path + ": " + strerror(code)};
  return hash.hex();
}

std::string sha256_of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

}  // namespace tandem::fetch
