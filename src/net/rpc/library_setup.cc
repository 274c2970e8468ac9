#include "net/rpc/library_setup.h"

#include <grpc/support/log.h>

#include <mutex>

#include "base/log.h"
#include "net/rpc/tls_files.h"

namespace tandem::rpc {
namespace {

void log_of_library(gpr_log_func_args* line) {
  const LogLevel level = line->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  log_line(level, "net/rpc", line->message);
}

}  // namespace

void route_library_log() {
  static std::once_flag once;
  std::call_once(once, [] { gpr_set_log_function(&log_of_library); });
}

Result<std::shared_ptr<grpc::ChannelCredentials>> client_credentials(const RpcOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  TRY_ASSIGN(const TlsTexts texts, read_tls_files(*options.tls));
  return grpc::SslCredentials({texts.trusted, texts.private_key, texts.certificate});
}

Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const RpcOptions& options) {
  if (!options.tls) return grpc::InsecureServerCredentials();
  TRY_ASSIGN(const TlsTexts texts, read_tls_files(*options.tls));
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = texts.trusted;
  ssl.pem_key_cert_pairs.push_back({texts.private_key, texts.certificate});
  return grpc::SslServerCredentials(ssl);
}

grpc::ChannelArguments client_arguments(const RpcOptions& options) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(static_cast<int>(options.max_frame_bytes));
  args.SetMaxSendMessageSize(-1);  // send() has checked
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time_ms);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout_ms);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a stream has a connection of its own
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // whatever http_proxy says: peers are reached directly
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  if (options.tls && !options.tls->server_name.empty()) args.SetSslTargetNameOverride(options.tls->server_name);
  return args;
}

void set_server_arguments(const RpcOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_frame_bytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // clients ask as often as they like
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);         // a port in use is an error
}

}  // namespace tandem::rpc
