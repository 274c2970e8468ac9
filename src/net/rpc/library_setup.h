#pragma once
// How the library is set up for us: its log, certificates and connection settings. Internal to net/rpc.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>

#include "base/result.h"
#include "net/rpc/rpc_options.h"

namespace tandem::rpc {

// Sends the library's own log to ours. Once per process.
void route_library_log();

Result<std::shared_ptr<grpc::ChannelCredentials>> client_credentials(const RpcOptions& options);
Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const RpcOptions& options);

grpc::ChannelArguments client_arguments(const RpcOptions& options);
void set_server_arguments(const RpcOptions& options, grpc::ServerBuilder& builder);

}  // namespace tandem::rpc
