#include "net/http/client_stream.h"

#include <openssl/err.h>
#include <openssl/x509.h>

#include <fstream>
#include <string>

namespace tandem::http {
namespace {

namespace ssl = boost::asio::ssl;

Status check_readable(const std::string& what, const std::string& path) {
  if (std::ifstream(path).good()) return Done{};
  return Error{ErrorCode::kNotFound, what + " " + path + " cannot be read"};
}

Error wrong(const std::string& what, const std::string& path, const std::string& why) {
  ERR_clear_error();
  return {ErrorCode::kInvalidArgument, what + " " + path + " " + why};
}

}  // namespace

Result<std::shared_ptr<ssl::context>> open_tls(const TlsFiles& files) {
  TRY(check_readable("certificate", files.certificate));
  TRY(check_readable("private key", files.private_key));
  boost::system::error_code error;
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // an idle connection keeps no buffers of 16 KiB
  // A key with a password is refused instead of asking for it on the terminal.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  context->use_certificate_chain_file(files.certificate, error);
  if (error) return wrong("certificate", files.certificate, "holds no PEM certificate");
  context->use_private_key_file(files.private_key, ssl::context::pem, error);
  if (error) {
    const auto code = static_cast<unsigned long>(static_cast<uint32_t>(error.value()));
    const bool is_other = ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH;
    return wrong("private key", files.private_key,
                 is_other ? "is not that of " + files.certificate : "holds no PEM key without a password");
  }
  // A key of another type than the certificate's is taken until here, and then no handshake works.
  if (SSL_CTX_check_private_key(native) != 1) {
    return wrong("private key", files.private_key, "is not that of " + files.certificate);
  }
  return context;
}

}  // namespace tandem::http
