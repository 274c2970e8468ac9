#include "net/transport/ucx_transport.h"

#include <utility>

#include "net/transport/socket_address.h"
#include "net/transport/ucx_connection.h"

namespace tandem::transport {
namespace {

class UcxListener final : public Listener, public LoopClient {
 public:
  UcxListener(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxWorker> worker, Acceptor& acceptor)
      : loop_(loop), limits_(limits), worker_(std::move(worker)), lobby_(limits, acceptor) {}
  ~UcxListener() override {
    for (const ucp_conn_request_h request : requests_) worker_->ucx().listener_reject(listener_, request);
    if (listener_ != nullptr) worker_->ucx().listener_destroy(listener_);
    loop_.forget(*this);
  }

  Status start(SocketAddress address) {
    ucp_listener_params_t params = {};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = {address.get(), address.size};
    params.conn_handler = {take_request, this};
    ucs_status_t status = worker_->ucx().listener_create(worker_->handle(), &params, &listener_);
    ucp_listener_attr_t attributes = {};
    attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    if (status == UCS_OK) status = worker_->ucx().listener_query(listener_, &attributes);
    if (status != UCS_OK) {
      return Error{ErrorCode::kUnavailable, std::string("UCX: listen: ") + worker_->ucx().status_string(status)};
    }
    address.storage = attributes.sockaddr;
    address_ = "ucx:" + address_text(address);
    worker_->kick();
    return Done{};
  }
  std::string address() const override { return address_; }

  void on_task() override {
    for (const ucp_conn_request_h request : std::exchange(requests_, {})) {
      if (!lobby_.has_room()) {
        worker_->ucx().listener_reject(listener_, request);
        continue;
      }
      ucp_ep_params_t where = {};
      where.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
      where.conn_request = request;
      UcxConnection::accept(loop_, limits_, worker_, where, lobby_);
    }
    worker_->kick();
  }

 private:
  static void take_request(ucp_conn_request_h request, void* self) {
    auto& listener = *static_cast<UcxListener*>(self);
    listener.requests_.push_back(request);
    listener.loop_.defer(listener);
  }

  EventLoop& loop_;
  const TransportLimits limits_;
  std::shared_ptr<UcxWorker> worker_;
  Lobby lobby_;
  ucp_listener_h listener_ = nullptr;
  std::vector<ucp_conn_request_h> requests_;
  std::string address_;
};

class UcxTransport final : public Transport {
 public:
  UcxTransport(EventLoop& loop, const TransportLimits& limits) : loop_(loop), limits_(limits) {}

  Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) override {
    TRY_ASSIGN(const SocketAddress address, parse_address(place));
    TRY(start());
    auto listener = std::make_unique<UcxListener>(loop_, limits_, worker_, acceptor);
    TRY(listener->start(address));
    return std::unique_ptr<Listener>(std::move(listener));
  }

  Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                              ConnectionHandler& handler) override {
    TRY_ASSIGN(SocketAddress address, parse_address(place));
    TRY(start());
    ucp_ep_params_t where = {};
    where.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    where.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    where.sockaddr = {address.get(), address.size};
    return UcxConnection::connect(loop_, limits_, worker_, where, greeting, handler);
  }

 private:
  Status start() {
    if (worker_ != nullptr) return Done{};
    TRY_ASSIGN(worker_, UcxWorker::create(loop_, limits_.ucx_carriers));
    return Done{};
  }

  EventLoop& loop_;
  const TransportLimits limits_;
  std::shared_ptr<UcxWorker> worker_;
};

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(EventLoop& loop, const TransportLimits& limits) {
  return std::make_unique<UcxTransport>(loop, limits);
}

}  // namespace tandem::transport
