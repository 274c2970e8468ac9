#include "net/rpc/library_setup.h"

#include <grpc/compression.h>
#include <grpc/support/log.h>

#include <initializer_list>
#include <limits>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "net/rpc/tls_files.h"

namespace tandem::rpc {
namespace {

// A set of algorithms with one member. The library unpacks a compressed message whole before it looks at its size: a
// thousand times the bytes that were sent.
constexpr int kUncompressed = 1 << GRPC_COMPRESS_NONE;

void log_of_library(gpr_log_func_args* line) {
  const LogLevel level = line->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  log_line(level, "net/rpc", line->message);
}

}  // namespace

void route_library_log() {
  static std::once_flag once;
  std::call_once(once, [] { gpr_set_log_function(&log_of_library); });
}

Status check_options(const RpcOptions& options) {
  if (options.versions.lowest < 1 || options.versions.lowest > options.versions.highest) {
    return Error{ErrorCode::kInvalidArgument, "versions: no range above 0"};
  }
  if (options.max_frame_bytes > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return Error{ErrorCode::kInvalidArgument, "max_frame_bytes: at most 2 GiB"};
  }
  for (const auto& [name, ms] : {std::pair{"connect_timeout_ms", options.connect_timeout_ms},
                                 std::pair{"stall_timeout_ms", options.stall_timeout_ms},
                                 std::pair{"close_timeout_ms", options.close_timeout_ms},
                                 std::pair{"keepalive_time_ms", options.keepalive_time_ms},
                                 std::pair{"keepalive_timeout_ms", options.keepalive_timeout_ms}}) {
    if (ms < 1) return Error{ErrorCode::kInvalidArgument, std::string(name) + ": less than 1"};
  }
  return Done{};
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
  args.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, kUncompressed);
  args.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
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
  builder.AddChannelArgument(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, kUncompressed);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // A connection carries one stream. What brings none in time is not one of ours.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, options.connect_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options.connect_timeout_ms);
}

}  // namespace tandem::rpc
