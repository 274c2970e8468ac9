#include "net/transport/ucx_worker.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

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
  bool& is_closing;
  const UcxLibrary& ucx;
};

// Faults come again as a broken endpoint, which is where they are told.
void end_sending(void* request, ucs_status_t, void* user) {
  std::unique_ptr<Sending> sending(static_cast<Sending*>(user));
  sending->ucx.request_free(request);
}

void end_closing(void* request, ucs_status_t, void* user) {
  std::unique_ptr<Closing> closing(static_cast<Closing*>(user));
  closing->is_closing = false;
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
  if (keeper_->receiving_ == bytes_.data()) {
    keeper_->receiving_ = nullptr;
    return;
  }
  keeper_->ucx_.am_data_release(keeper_->worker_, const_cast<std::byte*>(bytes_.data()));
}

Result<std::shared_ptr<UcxWorker>> UcxWorker::create(EventLoop& loop, std::shared_ptr<UcxContext> context,
                                                     UcxReceiver& receiver) {
  std::shared_ptr<UcxWorker> made(new UcxWorker(loop, std::move(context), receiver));
  TRY(made->start());
  return made;
}

Status UcxWorker::start() {
  if (getrandom(&own_key_, sizeof own_key_, 0) != sizeof own_key_) {
    return Error{ErrorCode::kUnavailable, "no random numbers"};
  }
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucs_status_t status = ucx_.worker_create(context_->handle(), &params, &worker_);
  if (status != UCS_OK) return ucx_error(ucx_, "worker", status);
  status = ucx_.worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return ucx_error(ucx_, "wake-up", status);
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                       UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  handler.cb = receive;
  handler.arg = this;
  status = ucx_.worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return ucx_error(ucx_, "handler", status);
  TRY(loop_.watch(event_fd_, EPOLLIN, *this));
  kick();
  return Done{};
}

UcxWorker::~UcxWorker() {
  leave();
  if (worker_ == nullptr) return;
  // Closing by force needs no answer of a peer.
  for (int i = 0; i < 100'000 && is_closing_; ++i) ucx_.worker_progress(worker_);
  ucx_.worker_destroy(worker_);
}

Result<std::vector<std::byte>> UcxWorker::introduction() const {
  ucp_address_t* address = nullptr;
  size_t size = 0;
  const ucs_status_t status = ucx_.worker_get_address(worker_, &address, &size);
  if (status != UCS_OK) return ucx_error(ucx_, "address", status);
  std::vector<std::byte> bytes(sizeof own_key_ + size);
  memcpy(bytes.data(), &own_key_, sizeof own_key_);
  memcpy(bytes.data() + sizeof own_key_, address, size);
  ucx_.worker_release_address(worker_, address);
  return bytes;
}

Status UcxWorker::connect(Bytes introduction) {
  if (introduction.size() <= sizeof peer_key_) return Error{ErrorCode::kCorrupt, "the peer does not say where it is"};
  memcpy(&peer_key_, introduction.data(), sizeof peer_key_);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(introduction.data() + sizeof peer_key_);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = break_endpoint;
  params.err_handler.arg = this;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &endpoint_);
  kick();
  if (status != UCS_OK) return ucx_error(ucx_, "endpoint", status);
  return Done{};
}

void UcxWorker::kick() {
  if (receiver_ != nullptr) loop_.defer(*this);
}

void UcxWorker::drain() {
  for (int i = 0; i < 10'000 && ucx_.worker_progress(worker_) != 0; ++i) {
  }
  kick();
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
  UcxHeader copied;
  if (header_size != sizeof copied || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  memcpy(&copied, header, sizeof copied);
  if (worker.receiver_ == nullptr || copied.key != worker.own_key_) return UCS_OK;  // not for us: dropped
  const bool is_kept = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 && size > 0;
  // UCX looks at what it lent after this call: bytes that are dropped meanwhile are given back by what is returned.
  const auto* bytes = static_cast<const std::byte*>(data);
  worker.receiving_ = is_kept ? bytes : nullptr;
  worker.receiver_->on_message(copied, UcxBytes(Bytes(bytes, size), is_kept ? worker.shared_from_this() : nullptr));
  const bool is_still_held = std::exchange(worker.receiving_, nullptr) != nullptr;
  return is_still_held ? UCS_INPROGRESS : UCS_OK;
}

void UcxWorker::break_endpoint(void* self, ucp_ep_h, ucs_status_t status) {
  auto& worker = *static_cast<UcxWorker*>(self);
  if (worker.receiver_ != nullptr) worker.receiver_->on_broken(worker.ucx_.status_string(status));
}

void UcxWorker::leave() {
  receiver_ = nullptr;
  loop_.forget(*this);
  if (event_fd_ >= 0) loop_.unwatch(std::exchange(event_fd_, -1));
  if (endpoint_ == nullptr) return;
  auto closing = std::make_unique<Closing>(Closing{is_closing_, ucx_});
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = end_closing;
  param.user_data = closing.get();
  if (UCS_PTR_IS_PTR(ucx_.ep_close_nbx(std::exchange(endpoint_, nullptr), &param))) {
    is_closing_ = true;
    (void)closing.release();
  }
}

void UcxWorker::send(UcxHeader header, std::unique_ptr<std::byte[]> bytes, size_t size) {
  header.key = peer_key_;
  auto sending = std::make_unique<Sending>(Sending{header, std::move(bytes), ucx_});
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // Eager: UCX then writes at the receiver into buffers of its own, and nowhere else.
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = end_sending;
  param.user_data = sending.get();
  const ucs_status_ptr_t sent = ucx_.am_send_nbx(endpoint_, kMessageId, &sending->header, sizeof(UcxHeader),
                                                 sending->bytes.get(), size, &param);
  if (UCS_PTR_IS_ERR(sent) && receiver_ != nullptr) receiver_->on_broken(ucx_.status_string(UCS_PTR_STATUS(sent)));
  if (UCS_PTR_IS_PTR(sent)) {
    (void)sending.release();
  }
  kick();
}

}  // namespace tandem::transport
