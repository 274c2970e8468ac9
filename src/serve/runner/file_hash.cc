#include "serve/runner/file_hash.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/hash.h"

namespace tandem::runner {
namespace {

constexpr size_t kHashDigits = 32;

// Changes whenever one of the files does.
std::string state_of(const model::WeightFiles& files) {
  std::string text;
  for (const MappedFile& file : files.files()) {
    struct stat status {};
    if (stat(file.path().c_str(), &status) != 0) return {};
    text += fmt::format("{} {} {}.{:09}\n", file.path(), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  const std::string config = files.directory() + "/config.json";
  struct stat status {};
  if (!files.is_gguf() && stat(config.c_str(), &status) == 0) {
    text += fmt::format("{} {} {}.{:09}\n", config, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return text;
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
  const std::string state = state_of(files);
  const std::string note = cache_directory + "/" + hash_hex(files.path().data(), files.path().size()) + ".hash";
  const std::string remembered = read_text(note);
  if (!state.empty() && remembered.size() == kHashDigits + 1 + state.size() &&
      remembered.compare(kHashDigits + 1, std::string::npos, state) == 0) {
    return remembered.substr(0, kHashDigits);
  }
  const std::string hash = files.content_hash();
  const std::string beside = fmt::format("{}.{}.new", note, getpid());
  if (std::FILE* file = std::fopen(beside.c_str(), "we"); file != nullptr) {
    const std::string text = hash + "\n" + state;
    const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) == 0 && is_written) std::rename(beside.c_str(), note.c_str());
  }
  return hash;
}

}  // namespace tandem::runner
