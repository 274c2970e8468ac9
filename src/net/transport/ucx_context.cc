#include "net/transport/ucx_context.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>

#include <utility>

#include "net/transport/socket_address.h"

namespace tandem::transport {
namespace {

bool is_same_host(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.sa_family == AF_INET6 && memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                                           &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

// The interface that has the socket's own address; empty: none has.
std::string device_of(int socket) {
  SocketAddress own;
  ifaddrs* all = nullptr;
  if (getsockname(socket, own.get(), &own.size) != 0 || getifaddrs(&all) != 0) return {};
  std::string device;
  for (const ifaddrs* it = all; it != nullptr && device.empty(); it = it->ifa_next) {
    if (it->ifa_addr == nullptr || !is_same_host(*it->ifa_addr, *own.get())) continue;
    device = it->ifa_name;
    device = device.substr(0, device.find(':'));  // a label of one of its addresses
  }
  freeifaddrs(all);
  return device;
}

}  // namespace

Error ucx_error(const UcxLibrary& ucx, const char* what, ucs_status_t status) {
  return {ErrorCode::kUnavailable, std::string("UCX: ") + what + ": " + ucx.status_string(status)};
}

Result<std::shared_ptr<UcxContext>> UcxContext::create(const std::string& carriers, const std::string& device) {
  TRY_ASSIGN(const UcxLibrary* ucx, UcxLibrary::open());
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx->config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return ucx_error(*ucx, "configuration", status);
  status = ucx->config_modify(config, "TLS", carriers.c_str());
  if (status == UCS_OK && !device.empty()) status = ucx->config_modify(config, "NET_DEVICES", device.c_str());
  // The socket that greeted says when the peer has gone; UCX's own question would wake idle connections.
  if (status == UCS_OK) status = ucx->config_modify(config, "KEEPALIVE_INTERVAL", "inf");
  // A message that leaves without a copy stops the process by an assertion of 1.13 when its endpoint breaks meanwhile.
  if (status == UCS_OK) status = ucx->config_modify(config, "ZCOPY_THRESH", "inf");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  std::shared_ptr<UcxContext> made(new UcxContext(*ucx));
  if (status == UCS_OK) {
    status = ucx->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &made->context_);
  }
  ucx->config_release(config);
  if (status != UCS_OK) return ucx_error(*ucx, ("start on '" + device + "'").c_str(), status);
  return made;
}

UcxContext::~UcxContext() {
  if (context_ != nullptr) ucx_.cleanup(context_);
}

Result<std::shared_ptr<UcxContext>> UcxContexts::of(int socket) {
  const std::string device = carriers_ == "tcp" ? device_of(socket) : std::string();
  const auto found = contexts_.find(device);
  if (found != contexts_.end()) return found->second;
  TRY_ASSIGN(auto made, UcxContext::create(carriers_, device));
  return contexts_.emplace(device, std::move(made)).first->second;
}

}  // namespace tandem::transport
