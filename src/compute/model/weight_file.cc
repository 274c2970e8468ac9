#include "compute/model/weight_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/hash.h"
#include "base/json.h"
#include "compute/model/fault_text.h"
#include "compute/model/gguf.h"
#include "compute/model/safetensors.h"
#include "compute/model/split_name.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string file_name_of(const std::string& path) { return fs::path(path).filename().string(); }

// Names in the directory that end with `extension`, sorted.
std::vector<std::string> names_with(const std::string& directory, const std::string& extension) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == extension) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Shard file to the tensors that the index places there.
using ShardMap = std::map<std::string, std::vector<std::string>>;

Result<ShardMap> parse_index(std::span<const uint8_t> bytes, const std::string& file) {
  auto root = JsonValue::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, 8);
  if (!root) return file_fault(file, root.error().message);
  const JsonValue* map = root->find("weight_map");
  const JsonValue::Object* members = map == nullptr ? nullptr : map->if_object();
  if (members == nullptr || members->empty()) return file_fault(file, "no weight_map");
  ShardMap shards;
  std::map<std::string_view, int> seen;
  for (const auto& [name, value] : *members) {
    const std::string* shard = value.if_string();
    if (shard == nullptr) return tensor_fault(file, name, "its shard is not a string");
    const bool is_plain = !shard->empty() && shard->find_first_of(std::string_view("/\\\0", 3)) == shard->npos;
    if (!is_plain || (*shard)[0] == '.') return tensor_fault(file, name, quote_name(*shard) + " is no name of a shard");
    if (seen[name]++ != 0) return tensor_fault(file, name, "is there twice");
    shards[*shard].push_back(name);
  }
  return shards;
}

// Of a shard's tensors those that the index names; each of them must be there.
Result<std::vector<TensorEntry>> select(std::vector<TensorEntry> entries, const std::vector<std::string>& names,
                                        const std::string& file) {
  std::map<std::string_view, TensorEntry*> by_name;
  for (TensorEntry& entry : entries) by_name[entry.name] = &entry;
  std::vector<TensorEntry*> found;
  for (const std::string& name : names) {
    const auto it = by_name.find(name);
    if (it == by_name.end()) return tensor_fault(file, name, "the index places it here, but the file lacks it");
    found.push_back(it->second);
  }
  std::vector<TensorEntry> selected;
  for (TensorEntry* entry : found) selected.push_back(std::move(*entry));
  return selected;
}

// A shard's own statement about the set, against its name. `number` counts from 1.
Status check_shard(const Metadata& metadata, const std::string& file, uint32_t number, uint32_t count) {
  TRY_ASSIGN(const uint32_t stated_count, metadata.get_u32_or("split.count", 1));
  TRY_ASSIGN(const uint32_t stated_index, metadata.get_u32_or("split.no", 0));
  if (stated_count == count && stated_index + 1 == number) return Done{};
  const std::string inside = std::to_string(uint64_t{stated_index} + 1) + " of " + std::to_string(stated_count);
  const std::string outside = std::to_string(number) + " of " + std::to_string(count);
  return file_fault(file, "named as shard " + outside + ", but its metadata says " + inside + ": renamed or mixed up");
}

Status check_split_total(const Metadata& first, const Metadata& shard, const std::string& file) {
  for (const char* key : {"split.tensors.count", "general.architecture", "general.name"}) {
    const MetadataValue* a = first.find(key);
    const MetadataValue* b = shard.find(key);
    if (a == nullptr || b == nullptr) continue;
    if (!std::equal(a->bytes.begin(), a->bytes.end(), b->bytes.begin(), b->bytes.end())) {
      return file_fault(file, std::string(key) + " differs from the first shard's: shards of two models");
    }
  }
  return Done{};
}

}  // namespace

Result<WeightFiles> WeightFiles::open(const std::string& path) {
  WeightFiles files;
  files.path_ = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    files.directory_ = path;
    TRY(files.open_directory(path));
    return files;
  }
  if (path.ends_with(".safetensors")) {
    return Error{ErrorCode::kInvalidArgument, path + ": give the model's directory instead of one safetensors file"};
  }
  files.directory_ = fs::path(path).parent_path().string();
  if (files.directory_.empty()) files.directory_ = ".";
  TRY(files.open_gguf(path));
  return files;
}

Result<WeightFiles> WeightFiles::from_gguf_bytes(std::span<const uint8_t> bytes, const std::string& name) {
  WeightFiles files;
  files.is_gguf_ = true;
  files.path_ = name;
  TRY_ASSIGN(GgufContents contents, parse_gguf(bytes, name));
  files.metadata_ = std::move(contents.metadata);
  TRY(files.add_tensors(std::move(contents.tensors)));
  return files;
}

Status WeightFiles::open_gguf(const std::string& path) {
  is_gguf_ = true;
  const auto name = parse_split_name(path);
  const uint32_t count = name ? name->count : 1;
  std::vector<std::string> paths;
  std::vector<std::string> missing;
  for (uint32_t number = 1; name && number <= count; ++number) {
    paths.push_back(split_path(*name, number));
    if (!exists(paths.back())) missing.push_back(file_name_of(paths.back()));
  }
  if (!name) paths.push_back(path);
  if (name && !exists(path)) return Error{ErrorCode::kNotFound, path + ": no such file"};
  if (!missing.empty()) return Error{ErrorCode::kNotFound, path + ": missing shards: " + list_names(missing)};

  for (uint32_t number = 1; number <= count; ++number) {
    const std::string& shard_path = paths[number - 1];
    TRY_ASSIGN(MappedFile file, MappedFile::open(shard_path));
    TRY_ASSIGN(GgufContents contents, parse_gguf(file.bytes(), shard_path));
    TRY(check_shard(contents.metadata, shard_path, number, count));
    if (number == 1) metadata_ = contents.metadata;
    TRY(check_split_total(metadata_, contents.metadata, shard_path));
    files_.push_back(std::move(file));
    TRY(add_tensors(std::move(contents.tensors)));
  }
  if (count > 1 && metadata_.has("split.tensors.count")) {
    TRY_ASSIGN(const uint32_t total, metadata_.get_u32("split.tensors.count"));
    if (total != tensors_.size()) {
      const std::string found = std::to_string(tensors_.size());
      return file_fault(path, "the shards hold " + found + " tensors, the set should have " + std::to_string(total));
    }
  }
  return Done{};
}

Status WeightFiles::open_directory(const std::string& path) {
  ShardMap shards;
  const bool has_index = exists(path + "/" + kIndexName);
  if (has_index) {
    TRY_ASSIGN(const MappedFile index, MappedFile::open(path + "/" + kIndexName));
    TRY_ASSIGN(shards, parse_index(index.bytes(), path + "/" + kIndexName));
  } else if (exists(path + "/" + kSingleName)) {
    shards[kSingleName] = {};
  } else {
    return open_gguf_directory(path);
  }
  std::vector<std::string> missing;
  for (const auto& shard : shards) {
    if (!exists(path + "/" + shard.first)) missing.push_back(shard.first);
  }
  if (!missing.empty()) {
    const std::string index_path = path + "/" + kIndexName;
    return Error{ErrorCode::kNotFound, index_path + ": names files that are absent: " + list_names(missing)};
  }
  for (const auto& [shard, names] : shards) {
    TRY_ASSIGN(MappedFile file, MappedFile::open(path + "/" + shard));
    TRY_ASSIGN(std::vector<TensorEntry> entries, parse_safetensors_weights(file.bytes(), file.path()));
    if (has_index) {
      TRY_ASSIGN(entries, select(std::move(entries), names, file.path()));
    }
    files_.push_back(std::move(file));
    TRY(add_tensors(std::move(entries)));
  }
  for (const std::string& stray : names_with(path, ".safetensors")) {
    if (!shards.contains(stray)) warnings_.push_back(path + "/" + stray + ": not named by the index, ignored");
  }
  return Done{};
}

Status WeightFiles::open_gguf_directory(const std::string& path) {
  std::vector<std::string> models;  // one path a model: of a set the first shard that is there
  std::map<std::string, int> prefixes;
  for (const std::string& name : names_with(path, ".gguf")) {
    const auto split = parse_split_name(name);
    if (!split || prefixes[split->prefix]++ == 0) models.push_back(name);
  }
  if (models.size() == 1) return open_gguf(path + "/" + models[0]);
  if (models.size() > 1) {
    return Error{ErrorCode::kInvalidArgument, path + ": holds several GGUF models, give one: " + list_names(models)};
  }
  std::string reason = ": holds neither " + std::string(kSingleName) + ", " + kIndexName + " nor a .gguf file";
  if (!names_with(path, ".bin").empty()) reason += "; PyTorch .bin weights are not read";
  return Error{ErrorCode::kNotFound, path + reason};
}

Status WeightFiles::add_tensors(std::vector<TensorEntry> entries) {
  for (TensorEntry& entry : entries) {
    const auto [it, is_new] = index_.emplace(entry.name, tensors_.size());
    if (!is_new) return tensor_fault(entry.file, entry.name, "is also in " + tensors_[it->second].file);
    tensors_.push_back(std::move(entry));
  }
  return Done{};
}

const TensorEntry* WeightFiles::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::string WeightFiles::content_hash() const {
  Hasher hasher;
  const auto feed = [&hasher](std::span<const uint8_t> bytes) {
    const uint64_t size = bytes.size();
    hasher.update(&size, sizeof(size));
    hasher.update(bytes.data(), bytes.size());
  };
  for (const MappedFile& file : files_) feed(file.bytes());
  if (!is_gguf_) {
    const auto config = MappedFile::open(directory_ + "/config.json");
    if (config) feed(config.value().bytes());
  }
  return hasher.hex();
}

}  // namespace tandem::model
