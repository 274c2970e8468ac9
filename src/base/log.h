#pragma once
// Log lines to stderr: RFC 3339 time, level, folder, text, key=value; or the same as one JSON object.
// Never prompt text. Any thread; one write per line.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

using LogFields = std::vector<std::pair<std::string_view, std::string>>;

void set_log(LogLevel lowest, LogFormat format);
void log_line(LogLevel level, std::string_view folder, std::string_view text, const LogFields& fields = {});

inline void log_info(std::string_view folder, std::string_view text, const LogFields& fields = {}) {
  log_line(LogLevel::kInfo, folder, text, fields);
}
inline void log_warning(std::string_view folder, std::string_view text, const LogFields& fields = {}) {
  log_line(LogLevel::kWarning, folder, text, fields);
}
inline void log_error(std::string_view folder, std::string_view text, const LogFields& fields = {}) {
  log_line(LogLevel::kError, folder, text, fields);
}

}  // namespace tandem
