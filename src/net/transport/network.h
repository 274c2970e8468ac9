#pragma once
// Network: all transports of one loop; the address says which one.

#include <memory>
#include <string>
#include <unordered_map>

#include "net/transport/loopback.h"

namespace tandem::transport {

class Network {
 public:
  // Borrows the loop, and the hub of `loop:` addresses (null: there are none).
  Network(EventLoop& loop, const TransportLimits& limits, LoopbackHub* hub);

  // kInvalidArgument: not an address, or a transport that this build does not have.
  Result<std::unique_ptr<Listener>> listen(const std::string& address, Acceptor& acceptor);
  Result<std::unique_ptr<Connection>> connect(const std::string& address, Bytes greeting, ConnectionHandler& handler);

 private:
  // The transport that the address names, and the rest of it.
  Result<std::pair<Transport*, std::string>> find(const std::string& address);
  std::unordered_map<std::string, std::unique_ptr<Transport>> transports_;
};

}  // namespace tandem::transport
