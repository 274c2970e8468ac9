#pragma once
// How a log line looks: apart from log.h, so that it can be tested without the clock and stderr.

#include <cstdint>

#include "base/log.h"

namespace tandem {

// "2026-01-31T23:59:59.007Z". Unix time in milliseconds.
std::string rfc3339_utc(int64_t unix_ms);

// The whole line with its end.
std::string format_log_line(LogFormat format, int64_t unix_ms, LogLevel level, std::string_view folder,
                            std::string_view text, const LogFields& fields);

}  // namespace tandem
