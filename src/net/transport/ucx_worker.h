#pragma once
// UcxWorker: one connection's end in UCX, with a progress engine of its own, so that no peer shares anything with
// another's. It sleeps with the loop (UCX's wake-up mode) and tells messages and a broken endpoint to the connection,
// which acts later, in a task of its own, never inside a call of UCX.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/transport/transport.h"
#include "net/transport/ucx_context.h"

namespace tandem::transport {

// In front of every active message.
struct UcxHeader {
  enum class Kind : uint32_t { kChunk = 1, kCredit = 2 };
  uint64_t key = 0;  // the receiver's; send() fills it in
  Kind kind = Kind::kChunk;
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
  // The receiver is borrowed until leave().
  static Result<std::shared_ptr<UcxWorker>> create(EventLoop& loop, std::shared_ptr<UcxContext> context,
                                                   UcxReceiver& receiver);
  ~UcxWorker();

  // What the peer needs to connect() to this one: where it is, and the key that its messages must show. Not for
  // strangers: who has the key can speak here.
  Result<std::vector<std::byte>> introduction() const;
  // UCX reads the address and trusts it: only of a peer that was admitted.
  Status connect(Bytes introduction);
  // Errors show as a broken endpoint.
  void send(UcxHeader header, std::unique_ptr<std::byte[]> bytes, size_t size);
  void drain();  // what has arrived is told now
  void leave();  // ends the endpoint by force; the receiver hears no more

  void on_io(uint32_t) override { on_task(); }
  void on_task() override;

 private:
  friend class UcxBytes;
  UcxWorker(EventLoop& loop, std::shared_ptr<UcxContext> context, UcxReceiver& receiver)
      : loop_(loop), context_(std::move(context)), ucx_(context_->ucx()), receiver_(&receiver) {}
  Status start();
  void kick();  // after every call of UCX: there may be progress, and it must be armed again
  static ucs_status_t receive(void* self, const void* header, size_t header_size, void* data, size_t size,
                              const ucp_am_recv_param_t* param);
  static void break_endpoint(void* self, ucp_ep_h endpoint, ucs_status_t status);

  EventLoop& loop_;
  const std::shared_ptr<UcxContext> context_;
  const UcxLibrary& ucx_;
  UcxReceiver* receiver_;  // null: it left
  uint64_t own_key_ = 0, peer_key_ = 0;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  bool is_closing_ = false;
  const std::byte* receiving_ = nullptr;  // lent by the call of UCX that is under way, as long as somebody holds them
};

}  // namespace tandem::transport
