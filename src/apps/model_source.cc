#include "apps/model_source.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"

namespace tandem::apps {
namespace {

constexpr double kProgressInterval_s = 0.1;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// One line that is written over itself.
class ProgressLine {
 public:
  ProgressLine() : is_shown_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() {
    if (has_written_) std::fputc('\n', stderr);
  }

  void show(uint64_t done_bytes, std::optional<uint64_t> total_bytes) {
    const double now_s = clock_.now_s();
    const bool is_done = total_bytes.has_value() && done_bytes == *total_bytes;
    if (!is_shown_ || (!is_done && now_s - last_s_ < kProgressInterval_s)) return;
    last_s_ = now_s;
    const std::string total = total_bytes ? fmt::format(" of {:.1f}", static_cast<double>(*total_bytes) / 1e6) : "";
    fmt::print(stderr, "\r{:.1f}{} MB  ", static_cast<double>(done_bytes) / 1e6, total);
    std::fflush(stderr);
    has_written_ = true;
  }

 private:
  const bool is_shown_;
  bool has_written_ = false;
  SystemClock clock_;
  double last_s_ = -1;
};

bool ask_yes(const std::string& question) {
  fmt::print(stderr, "{} [Y/n] ", question);
  std::fflush(stderr);
  const int answer = std::getchar();
  for (int c = answer; c != '\n' && c != EOF;) c = std::getchar();
  return answer == 'y' || answer == 'Y' || answer == '\n';
}

}  // namespace

std::string cache_folder() { return fetch::cache_folder(std::getenv("XDG_CACHE_HOME"), std::getenv("HOME")); }

Result<std::string> pull_model(const fetch::ModelStore& store, const std::string& spec) {
  fetch::PullOptions options;
  if (const std::string endpoint = environment("HF_ENDPOINT"); !endpoint.empty()) options.hub.endpoint = endpoint;
  options.hub.token = environment("HF_TOKEN");
  ProgressLine line;
  options.progress = [&](uint64_t done_bytes, std::optional<uint64_t> total_bytes) {
    line.show(done_bytes, total_bytes);
    return true;
  };
  return store.pull(spec, options);
}

Result<std::string> locate_model(const std::string& model) {
  std::error_code error;
  if (std::filesystem::exists(model, error)) return model;
  TRY_ASSIGN(const fetch::ModelStore store, fetch::ModelStore::open(cache_folder()));
  auto found = store.find(model);
  if (found || found.error().code != ErrorCode::kNotFound) return found;
  if (!fetch::ModelStore::can_pull(model)) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("no model {}: there is no such file or directory, and none of that name was pulled "
                             "(tandem list shows those; tandem pull fetches one)",
                             model)};
  }
  const bool can_ask = isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
  if (can_ask && ask_yes(fmt::format("{} is not here yet. Fetch it?", model))) return pull_model(store, model);
  return Error{ErrorCode::kNotFound, fmt::format("{0} was not pulled yet; try: tandem pull {0}", model)};
}

void limit_cache(int64_t limit_bytes, const std::vector<std::string>& kept_paths) {
  const auto store = fetch::ModelStore::open(cache_folder());
  if (!store) return;
  const uint64_t freed = store.value().enforce_limit(static_cast<uint64_t>(limit_bytes), kept_paths);
  if (freed > 0) log_info("apps", "cache was over its limit", {{"freed_bytes", std::to_string(freed)}});
}

}  // namespace tandem::apps
