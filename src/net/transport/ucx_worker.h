#pragma once
// UcxWorker: UCX's progress engine on one EventLoop. It sleeps with the loop (UCX's wake-up mode) and tells messages
// and broken endpoints to the connections; those act later, in a task of their own, never inside a call of UCX.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/transport/transport.h"
#include "net/transport/ucx_library.h"

namespace tandem::transport {

// In front of every active message.
struct UcxHeader {
  enum class Kind : uint32_t { kGreeting = 1, kChunk = 2, kCredit = 3, kGoodbye = 4 };
  Kind kind = Kind::kGreeting;
  uint32_t reserved = 0;
  uint64_t number = 0;  // kChunk: its place in the stream; kCredit: how many chunks were taken
};

class UcxWorker;

// Bytes that came with a message: UCX's own buffer, kept, or a copy. Move only.
class UcxBytes {
 public:
  UcxBytes(Bytes bytes, std::shared_ptr<UcxWorker> keeper);  // null keeper: copies
  UcxBytes(UcxBytes&& other) noexcept;
  UcxBytes& operator=(UcxBytes&&) = delete;
  ~UcxBytes();
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
  std::shared_ptr<UcxWorker> keeper_;
  std::unique_ptr<std::byte[]> copy_;
};

// What a connection hears from UCX. It may only take notes and defer() itself.
class UcxReceiver {
 public:
  virtual void on_message(const UcxHeader& header, UcxBytes bytes) = 0;
  virtual void on_broken(const char* reason) = 0;

 protected:
  ~UcxReceiver() = default;
};

class UcxWorker final : public LoopClient, public std::enable_shared_from_this<UcxWorker> {
 public:
  // `carriers`: UCX's names of the transports that it may use ("tcp", "rc,tcp").
  static Result<std::shared_ptr<UcxWorker>> create(EventLoop& loop, const std::string& carriers);
  ~UcxWorker();

  const UcxLibrary& ucx() const { return ucx_; }
  ucp_worker_h handle() const { return worker_; }

  // An endpoint to an address, or of a peer's request. Its messages and its end go to the receiver until close().
  Result<ucp_ep_h> open(const ucp_ep_params_t& where, UcxReceiver& receiver);
  void close(ucp_ep_h endpoint);
  // Sends a copy. Errors show as a broken endpoint.
  void send(ucp_ep_h endpoint, const UcxHeader& header, std::unique_ptr<std::byte[]> bytes, size_t size);

  void kick() { loop_.defer(*this); }  // after every call of UCX: there may be progress, and it must be armed again
  void on_io(uint32_t) override { on_task(); }
  void on_task() override;

 private:
  UcxWorker(EventLoop& loop, const UcxLibrary& ucx) : loop_(loop), ucx_(ucx) {}
  Status start(const std::string& carriers);
  static ucs_status_t receive(void* self, const void* header, size_t header_size, void* data, size_t size,
                              const ucp_am_recv_param_t* param);
  static void break_endpoint(void* self, ucp_ep_h endpoint, ucs_status_t status);

  EventLoop& loop_;
  const UcxLibrary& ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  size_t num_closing_ = 0;
  std::unordered_map<ucp_ep_h, UcxReceiver*> receivers_;
};

}  // namespace tandem::transport
