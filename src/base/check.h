#pragma once
// TANDEM_CHECK: a broken invariant of ours stops the process, in release builds too.
//
// Not for what a client, file, peer or device can cause: that is an Error (base/result.h).

namespace tandem {

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace tandem

#define TANDEM_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::tandem::check_failed(__FILE__, __LINE__, #condition))
