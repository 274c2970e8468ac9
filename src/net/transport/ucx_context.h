#pragma once
// UcxContext: UCX set up for one network interface. UcxContexts: those of one transport, made when first needed.

#include <map>
#include <memory>
#include <string>

#include "net/transport/ucx_library.h"

namespace tandem::transport {

class UcxContext {
 public:
  // `carriers`: UCX's names of the transports that it may use ("tcp", "rc,tcp"). `device`: the interface that it keeps
  // to; empty: UCX chooses. kUnavailable where UCX is not installed or cannot do this.
  static Result<std::shared_ptr<UcxContext>> create(const std::string& carriers, const std::string& device);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  const UcxLibrary& ucx() const { return ucx_; }
  ucp_context_h handle() const { return context_; }

 private:
  explicit UcxContext(const UcxLibrary& ucx) : ucx_(ucx) {}

  const UcxLibrary& ucx_;
  ucp_context_h context_ = nullptr;
};

class UcxContexts {
 public:
  explicit UcxContexts(std::string carriers) : carriers_(std::move(carriers)) {}
  // For the interface that a connected socket goes through: left to itself, UCX may take one that does not lead to the
  // peer, say a bridge of containers. Other carriers than tcp do not go by names of interfaces: there UCX chooses.
  Result<std::shared_ptr<UcxContext>> of(int socket);

 private:
  const std::string carriers_;
  std::map<std::string, std::shared_ptr<UcxContext>> contexts_;  // by device
};

// "UCX: what: why".
Error ucx_error(const UcxLibrary& ucx, const char* what, ucs_status_t status);

}  // namespace tandem::transport
