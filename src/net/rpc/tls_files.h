#pragma once
// Reads and checks PEM files before any connection: a wrong one is named here, in words, and not by a failed handshake.

#include <string>

#include "base/result.h"
#include "net/rpc/rpc_options.h"

namespace tandem::rpc {

struct TlsTexts {
  std::string certificate, private_key, trusted;
};

// kNotFound: a file cannot be read. kInvalidArgument: not PEM, expired, or a key of another certificate.
Result<TlsTexts> read_tls_files(const TlsFiles& files);

}  // namespace tandem::rpc
