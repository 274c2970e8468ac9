#include "net/http/credentials.h"

#include <algorithm>

namespace tandem::http {

std::string_view given_key(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view header = request.header("Authorization");
  const bool is_bearer =
      header.size() > kBearer.size() && std::equal(kBearer.begin(), kBearer.end(), header.begin(),
                                                   [](char want, char got) { return want == (got | 0x20); });
  return is_bearer ? header.substr(kBearer.size()) : request.header("X-Api-Key");
}

bool is_same_key(std::string_view given, std::string_view known) {
  if (given.size() != known.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < given.size(); ++i) difference |= static_cast<unsigned char>(given[i] ^ known[i]);
  return difference == 0;
}

bool is_local(const HttpRequest& request) {
  if (!request.is_from_loopback) return false;
  for (const char* name : {"Origin", "Sec-Fetch-Site", "Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"}) {
    if (!request.header(name).empty()) return false;
  }
  return true;
}

}  // namespace tandem::http
