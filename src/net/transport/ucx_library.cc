#include "net/transport/ucx_library.h"

#include <dlfcn.h>
#include <stdlib.h>

namespace tandem::transport {
namespace {

struct Opened {
  UcxLibrary library = {};
  std::string fault;
};

template <class Function>
void find(void* handle, const char* name, Function& function, std::string& fault) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) fault = std::string("UCX has no ") + name;
}

Opened open_library() {
  Opened opened;
  // Faults of ours stay ours to report, and nothing here needs to know of other code's mmap().
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  setenv("UCX_MEM_EVENTS", "n", 0);
  setenv("UCX_LOG_LEVEL", "fatal", 0);
  void* handle = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    opened.fault = std::string("UCX is not here: ") + dlerror();
    return opened;
  }
  UcxLibrary& ucx = opened.library;
  std::string& fault = opened.fault;
  find(handle, "ucp_config_read", ucx.config_read, fault);
  find(handle, "ucp_config_modify", ucx.config_modify, fault);
  find(handle, "ucp_config_release", ucx.config_release, fault);
  find(handle, "ucp_init_version", ucx.init_version, fault);
  find(handle, "ucp_cleanup", ucx.cleanup, fault);
  find(handle, "ucp_worker_create", ucx.worker_create, fault);
  find(handle, "ucp_worker_destroy", ucx.worker_destroy, fault);
  find(handle, "ucp_worker_get_address", ucx.worker_get_address, fault);
  find(handle, "ucp_worker_release_address", ucx.worker_release_address, fault);
  find(handle, "ucp_worker_progress", ucx.worker_progress, fault);
  find(handle, "ucp_worker_get_efd", ucx.worker_get_efd, fault);
  find(handle, "ucp_worker_arm", ucx.worker_arm, fault);
  find(handle, "ucp_worker_set_am_recv_handler", ucx.worker_set_am_recv_handler, fault);
  find(handle, "ucp_ep_create", ucx.ep_create, fault);
  find(handle, "ucp_ep_close_nbx", ucx.ep_close_nbx, fault);
  find(handle, "ucp_am_send_nbx", ucx.am_send_nbx, fault);
  find(handle, "ucp_am_data_release", ucx.am_data_release, fault);
  find(handle, "ucp_request_free", ucx.request_free, fault);
  find(handle, "ucs_status_string", ucx.status_string, fault);
  return opened;
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::open() {
  static const Opened kOpened = open_library();
  if (!kOpened.fault.empty()) return Error{ErrorCode::kUnavailable, kOpened.fault};
  return &kOpened.library;
}

}  // namespace tandem::transport
