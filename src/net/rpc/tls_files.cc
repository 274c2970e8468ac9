#include "net/rpc/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace tandem::rpc {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Result<std::string> read_file(const char* what, const std::string& path) {
  const std::unique_ptr<FILE, decltype(&fclose)> file(fopen(path.c_str(), "rb"), &fclose);
  if (!file) return Error{ErrorCode::kNotFound, std::string(what) + " " + path + ": " + strerror(errno)};
  std::string text;
  char buffer[4096];
  size_t got = 0;
  while ((got = fread(buffer, 1, sizeof buffer, file.get())) > 0) text.append(buffer, got);
  return text;
}

Error wrong(const char* what, const std::string& path, const char* why) {
  ERR_clear_error();
  return {ErrorCode::kInvalidArgument, std::string(what) + " " + path + " " + why};
}

// The first certificate of the text; it must be valid now.
Result<Certificate> parse_certificate(const char* what, const std::string& path, const std::string& text) {
  const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), &X509_free);
  if (!certificate) return wrong(what, path, "holds no PEM certificate");
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) return wrong(what, path, "has expired");
  if (X509_cmp_current_time(X509_get0_notBefore(certificate.get())) > 0) return wrong(what, path, "is not valid yet");
  return certificate;
}

}  // namespace

Result<TlsTexts> read_tls_files(const TlsFiles& files) {
  TlsTexts texts;
  TRY_ASSIGN(texts.certificate, read_file("certificate", files.certificate));
  TRY_ASSIGN(texts.private_key, read_file("private key", files.private_key));
  TRY_ASSIGN(texts.trusted, read_file("trusted certificates", files.trusted));
  TRY_ASSIGN(const Certificate own, parse_certificate("certificate", files.certificate, texts.certificate));
  TRY(parse_certificate("trusted certificates", files.trusted, texts.trusted));
  const Bio bio(BIO_new_mem_buf(texts.private_key.data(), static_cast<int>(texts.private_key.size())), &BIO_free);
  // An empty password: an encrypted key is refused instead of asking on the terminal.
  char no_password[] = "";
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, no_password), &EVP_PKEY_free);
  if (!key) return wrong("private key", files.private_key, "holds no PEM key without a password");
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return wrong("private key", files.private_key, ("is not that of " + files.certificate).c_str());
  }
  return texts;
}

}  // namespace tandem::rpc
