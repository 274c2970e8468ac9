#pragma once
// The files of a server that speaks TLS.

#include <string>

namespace tandem::http {

struct TlsFiles {
  std::string certificate;  // PEM: the server's own, then those between it and the authority
  std::string private_key;  // PEM, without a password
};

}  // namespace tandem::http
