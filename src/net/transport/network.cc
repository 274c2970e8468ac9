#include "net/transport/network.h"

#include "net/transport/shm_transport.h"
#include "net/transport/tcp_transport.h"
#include "net/transport/ucx_transport.h"

namespace tandem::transport {

Network::Network(EventLoop& loop, const TransportLimits& limits, LoopbackHub* hub) {
  if (hub != nullptr) transports_["loop"] = std::make_unique<LoopbackTransport>(loop, limits, *hub);
  transports_["shm"] = make_shm_transport(loop, limits);
  transports_["tcp"] = make_tcp_transport(loop, limits);
  transports_["ucx"] = make_ucx_transport(loop, limits);
}

Result<std::pair<Transport*, std::string>> Network::find(const std::string& address) {
  const size_t colon = address.find(':');
  const auto found = colon == std::string::npos ? transports_.end() : transports_.find(address.substr(0, colon));
  if (found == transports_.end()) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + address + "' is not loop:NAME, shm:PATH, tcp:HOST:PORT or ucx:HOST:PORT"};
  }
  return std::pair(found->second.get(), address.substr(colon + 1));
}

Result<std::unique_ptr<Listener>> Network::listen(const std::string& address, Acceptor& acceptor) {
  TRY_ASSIGN(const auto place, find(address));
  return place.first->listen(place.second, acceptor);
}

Result<std::unique_ptr<Connection>> Network::connect(const std::string& address, Bytes greeting,
                                                     ConnectionHandler& handler) {
  TRY_ASSIGN(const auto place, find(address));
  return place.first->connect(place.second, greeting, handler);
}

}  // namespace tandem::transport
