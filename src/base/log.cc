#include "base/log.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/json.h"
#include "base/log_format.h"

namespace tandem {
namespace {

std::atomic<LogLevel> g_lowest{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

std::string_view level_name(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

// As it is when it is one plain word, else as a JSON string, so that a line stays one line and splits at spaces.
std::string quoted(std::string_view value) {
  const bool is_plain = !value.empty() && value.find_first_of(" \"=\\") == std::string_view::npos && [&] {
    for (unsigned char c : value)
      if (c < 0x21 || c > 0x7E) return false;
    return true;
  }();
  return is_plain ? std::string(value) : JsonWriter().string(value).take();
}

// The text of a line is written for people: control characters go, the rest stays.
std::string one_line(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return out;
}

}  // namespace

std::string rfc3339_utc(int64_t unix_ms) {
  const time_t seconds = static_cast<time_t>(unix_ms >= 0 ? unix_ms / 1000 : (unix_ms - 999) / 1000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     unix_ms - static_cast<int64_t>(seconds) * 1000);
}

std::string format_log_line(LogFormat format, int64_t unix_ms, LogLevel level, std::string_view folder,
                            std::string_view text, const LogFields& fields) {
  if (format == LogFormat::kJson) {
    JsonWriter json;
    json.begin_object().key("time").string(rfc3339_utc(unix_ms)).key("level").string(level_name(level));
    json.key("folder").string(folder).key("text").string(text);
    for (const auto& [name, value] : fields) json.key(name).string(value);
    return json.end_object().take() + "\n";
  }
  std::string line = fmt::format("{} {:<7} {}: {}", rfc3339_utc(unix_ms), level_name(level), folder, one_line(text));
  for (const auto& [name, value] : fields) line += fmt::format(" {}={}", name, quoted(value));
  line.push_back('\n');
  return line;
}

void set_log(LogLevel lowest, LogFormat format) {
  g_lowest.store(lowest, std::memory_order_relaxed);
  g_format.store(format, std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view folder, std::string_view text, const LogFields& fields) {
  if (level < g_lowest.load(std::memory_order_relaxed)) return;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t unix_ms = static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
  const std::string line =
      format_log_line(g_format.load(std::memory_order_relaxed), unix_ms, level, folder, text, fields);
  // A log that cannot be written is no reason to stop or to wait.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace tandem
