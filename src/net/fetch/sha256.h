#pragma once
// SHA-256 (FIPS 180-4) of files, as 64 lower-case hex digits: what model hubs publish. Library: OpenSSL's libcrypto.

#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::fetch {

// Reads the whole file. kNotFound when it is absent.
Result<std::string> sha256_of_file(const std::string& path);
std::string sha256_of(std::string_view bytes);

}  // namespace tandem::fetch
