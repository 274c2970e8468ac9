#pragma once
// RpcServer: listens and accepts streams. One I/O thread of ours, and those of the library (gRPC, hidden in the .cc).

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/rpc/rpc_inbox.h"
#include "net/rpc/rpc_options.h"

namespace tandem::rpc {

class RpcServer {
 public:
  // `host`: an address of this machine; port 0: any free one. Accepted streams show up in `inbox`, which outlives the
  // server. kUnavailable: cannot listen there. kNotFound, kInvalidArgument: a certificate file, named.
  static Result<std::unique_ptr<RpcServer>> listen(const std::string& host, uint16_t port, const RpcOptions& options,
                                                   RpcInbox& inbox);
  // Aborts its streams; each one's kClosed is in the inbox afterwards.
  virtual ~RpcServer() = default;

  virtual uint16_t port() const = 0;
};

}  // namespace tandem::rpc
