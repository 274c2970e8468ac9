#include "serve/runner/file_hash.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/hash.h"

namespace tandem::runner {
namespace {

constexpr size_t kHashDigits = 32;

// A file's time of change moves in ticks of up to 10 ms: what was written just now may be written again unseen.
constexpr int64_t kSettledNs = 100'000'000;

// What tells whether a file has changed. Empty text: unknown.
struct FileState {
  std::string text;
  int64_t changed_ns = 0;  // the newest, since 1970
};

bool add_state(const std::string& path, FileState& state) {
  struct stat status {};
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(path, error);
  if (error || stat(path.c_str(), &status) != 0) return false;
  state.text += fmt::format("{} {} {} {}.{:09}\n", whole.string(), status.st_ino, status.st_size,
                            status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  state.changed_ns =
      std::max(state.changed_ns, int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec);
  return true;
}

// Of all files that content_hash() reads.
FileState state_of(const model::WeightFiles& files) {
  FileState state;
  bool is_known = true;
  for (const MappedFile& file : files.files()) is_known &= add_state(file.path(), state);
  if (!files.is_gguf()) is_known &= add_state(files.directory() + "/config.json", state);
  return is_known ? state : FileState{};
}

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string read_text(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  std::string text;
  char part[4096];
  for (size_t length; (length = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, length);
  std::fclose(file);
  return text;
}

}  // namespace

std::string cached_file_hash(const model::WeightFiles& files, const std::string& cache_directory) {
  std::error_code ignored;
  std::filesystem::create_directories(cache_directory, ignored);
  const FileState file_state = state_of(files);
  const std::string& state = file_state.text;
  std::string name = std::filesystem::canonical(files.path(), ignored).string();
  if (name.empty()) name = files.path();
  const std::string note = cache_directory + "/" + hash_hex(name.data(), name.size()) + ".hash";
  const std::string remembered = read_text(note);
  if (!state.empty() && remembered.size() == kHashDigits + 1 + state.size() &&
      remembered.compare(kHashDigits + 1, std::string::npos, state) == 0) {
    return remembered.substr(0, kHashDigits);
  }
  const bool is_settled = !state.empty() && now_ns() - file_state.changed_ns > kSettledNs;
  const std::string hash = files.content_hash();
  if (!is_settled) return hash;
  const std::string beside = fmt::format("{}.{}.new", note, getpid());
  if (std::FILE* file = std::fopen(beside.c_str(), "we"); file != nullptr) {
    const std::string text = hash + "\n" + state;
    const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) == 0 && is_written) std::rename(beside.c_str(), note.c_str());
  }
  return hash;
}

}  // namespace tandem::runner
