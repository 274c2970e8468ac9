#pragma once
// UCX, opened when the first `ucx:` address asks for it and not before: its library changes signal handlers and hooks
// memory calls of the process that it is loaded into, which is no business of processes that do not use it.
// Source: https://openucx.readthedocs.io, headers of UCX 1.13.

#include <ucp/api/ucp.h>

#include <string>

#include "base/result.h"

namespace tandem::transport {

struct UcxLibrary {
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close_nbx;
  decltype(&ucp_am_send_nbx) am_send_nbx;
  decltype(&ucp_am_data_release) am_data_release;
  decltype(&ucp_request_free) request_free;
  const char* (*status_string)(ucs_status_t status);

  // Any thread; opened once and kept. kUnavailable when this machine has no UCX.
  static Result<const UcxLibrary*> open();
};

}  // namespace tandem::transport
