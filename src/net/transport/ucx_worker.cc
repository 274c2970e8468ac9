#include "net/transport/ucx_worker.h"

#include <string.h>
#include <sys/epoll.h>

#include <utility>

namespace tandem::transport {
namespace {

constexpr unsigned kMessageId = 1;

struct Sending {
  UcxHeader header;
  std::unique_ptr<std::byte[]> bytes;
  const UcxLibrary& ucx;
};

struct Closing {
  size_t& num_closing;
  const UcxLibrary& ucx;
};

// Faults come again as a broken endpoint, which is where they are told.
void end_sending(void* request, ucs_status_t, void* user) {
  std::unique_ptr<Sending> sending(static_cast<Sending*>(user));
  sending->ucx.request_free(request);
}

void end_closing(void* request, ucs_status_t, void* user) {
  std::unique_ptr<Closing> closing(static_cast<Closing*>(user));
  --closing->num_closing;
  closing->ucx.request_free(request);
}

}  // namespace

UcxBytes::UcxBytes(Bytes bytes, std::shared_ptr<UcxWorker> keeper) : bytes_(bytes), keeper_(std::move(keeper)) {
  if (keeper_ != nullptr || bytes.empty()) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
  memcpy(copy_.get(), bytes.data(), bytes.size());
  bytes_ = Bytes(copy_.get(), bytes.size());
}

UcxBytes::UcxBytes(UcxBytes&& other) noexcept
    : bytes_(other.bytes_), keeper_(std::move(other.keeper_)), copy_(std::move(other.copy_)) {}

UcxBytes::~UcxBytes() {
  if (keeper_ == nullptr) return;
  keeper_->ucx().am_data_release(keeper_->handle(), const_cast<std::byte*>(bytes_.data()));
}

Result<std::shared_ptr<UcxWorker>> UcxWorker::create(EventLoop& loop, const std::string& carriers) {
  TRY_ASSIGN(const UcxLibrary* ucx, UcxLibrary::open());
  std::shared_ptr<UcxWorker> made(new UcxWorker(loop, *ucx));
  TRY(made->start(carriers));
  return made;
}

Status UcxWorker::start(const std::string& carriers) {
  const auto failed = [&](const char* what, ucs_status_t status) {
    return Error{ErrorCode::kUnavailable, std::string("UCX: ") + what + ": " + ucx_.status_string(status)};
  };
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return failed("configuration", status);
  }
  // A node that starts again takes its port at once.
  (void)ucx_.config_modify(config, "TCP_CM_REUSEADDR", "y");
  ucs_status_t status = ucx_.config_modify(config, "TLS", carriers.c_str());
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (status == UCS_OK) status = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.config_release(config);
  if (status != UCS_OK) return failed("start", status);
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  status = ucx_.worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) return failed("worker", status);
  status = ucx_.worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return failed("wake-up", status);
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                       UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  handler.cb = receive;
  handler.arg = this;
  status = ucx_.worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return failed("handler", status);
  TRY(loop_.watch(event_fd_, EPOLLIN, *this));
  kick();
  return Done{};
}

UcxWorker::~UcxWorker() {
  loop_.forget(*this);
  if (event_fd_ >= 0) loop_.unwatch(event_fd_);
  if (worker_ != nullptr) {
    // Endpoints are closed by force, which needs no answer of a peer.
    for (int i = 0; i < 100'000 && num_closing_ > 0; ++i) ucx_.worker_progress(worker_);
    ucx_.worker_destroy(worker_);
  }
  if (context_ != nullptr) ucx_.cleanup(context_);
}

void UcxWorker::on_task() {
  // Bounded: others have their turn, and the task comes again.
  for (int i = 0; i < 256; ++i) {
    if (ucx_.worker_progress(worker_) != 0) continue;
    if (ucx_.worker_arm(worker_) == UCS_OK) return;
  }
  kick();
}

ucs_status_t UcxWorker::receive(void* self, const void* header, size_t header_size, void* data, size_t size,
                                const ucp_am_recv_param_t* param) {
  auto& worker = *static_cast<UcxWorker*>(self);
  if (header_size != sizeof(UcxHeader) || (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0 ||
      (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_OK;  // not ours: dropped
  }
  const auto found = worker.receivers_.find(param->reply_ep);
  if (found == worker.receivers_.end()) return UCS_OK;
  UcxHeader copied;
  memcpy(&copied, header, sizeof copied);
  const bool is_kept = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 && size > 0;
  found->second->on_message(copied, UcxBytes(Bytes(static_cast<const std::byte*>(data), size),
                                             is_kept ? worker.shared_from_this() : nullptr));
  return is_kept ? UCS_INPROGRESS : UCS_OK;
}

void UcxWorker::break_endpoint(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto& worker = *static_cast<UcxWorker*>(self);
  const auto found = worker.receivers_.find(endpoint);
  if (found != worker.receivers_.end()) found->second->on_broken(worker.ucx_.status_string(status));
}

Result<ucp_ep_h> UcxWorker::open(const ucp_ep_params_t& where, UcxReceiver& receiver) {
  ucp_ep_params_t params = where;
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = break_endpoint;
  params.err_handler.arg = this;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &endpoint);
  kick();
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnavailable, std::string("UCX: endpoint: ") + ucx_.status_string(status)};
  }
  receivers_[endpoint] = &receiver;
  return endpoint;
}

void UcxWorker::close(ucp_ep_h endpoint) {
  receivers_.erase(endpoint);
  auto closing = std::make_unique<Closing>(Closing{num_closing_, ucx_});
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = end_closing;
  param.user_data = closing.get();
  if (UCS_PTR_IS_PTR(ucx_.ep_close_nbx(endpoint, &param))) {
    ++num_closing_;
    (void)closing.release();
  }
  kick();
}

void UcxWorker::send(ucp_ep_h endpoint, const UcxHeader& header, std::unique_ptr<std::byte[]> bytes, size_t size) {
  auto sending = std::make_unique<Sending>(Sending{header, std::move(bytes), ucx_});
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // Eager: UCX then writes at the receiver into buffers of its own, and nowhere else.
  param.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = end_sending;
  param.user_data = sending.get();
  if (UCS_PTR_IS_PTR(ucx_.am_send_nbx(endpoint, kMessageId, &sending->header, sizeof(UcxHeader), sending->bytes.get(),
                                      size, &param))) {
    (void)sending.release();
  }
  kick();
}

}  // namespace tandem::transport
