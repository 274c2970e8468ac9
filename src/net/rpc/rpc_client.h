#pragma once
// RpcClient: opens streams to servers. One I/O thread of ours for all of them, and those of the library (gRPC, hidden
// in the .cc). A process forks before it opens one, not after.

#include <memory>
#include <string>

#include "base/result.h"
#include "net/rpc/rpc_inbox.h"
#include "net/rpc/rpc_options.h"

namespace tandem::rpc {

class RpcClient {
 public:
  // What happens to its streams shows up in `inbox`, which outlives the client. kNotFound, kInvalidArgument: a
  // certificate file, named.
  static Result<std::unique_ptr<RpcClient>> open(const RpcOptions& options, RpcInbox& inbox);
  // Aborts its streams; each one's kClosed is in the inbox afterwards.
  virtual ~RpcClient() = default;

  // "host:port" or "[address]:port"; one connection of its own. Returns at once: kOpened or kClosed follows. Tries
  // once: trying again, with what pause, is the caller's.
  virtual std::shared_ptr<RpcStream> connect(const std::string& address) = 0;
};

}  // namespace tandem::rpc
