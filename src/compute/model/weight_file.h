#pragma once
// WeightFiles: every tensor of one model, and its GGUF metadata, mapped read-only. Opens a .gguf file (any shard of a
// split one stands for the whole set), a directory in Hugging Face layout, or a directory that holds one GGUF model.
// Owns the mappings; views into it live as long as it does and survive a move. Immutable after open; any thread.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "compute/model/metadata.h"
#include "compute/model/tensor_entry.h"

namespace tandem::model {

class WeightFiles {
 public:
  // Everything that can be checked without reading weights is checked: bounds, shapes, types, duplicates, the
  // completeness of a set. Errors name the file, the tensor and the reason. Only files that the index or the split
  // names are read; others beside them become warnings().
  static Result<WeightFiles> open(const std::string& path);

  // One GGUF file that is in memory already, for fuzzing and tests. Borrows `bytes`.
  static Result<WeightFiles> from_gguf_bytes(std::span<const uint8_t> bytes, const std::string& name);

  const TensorEntry* find(std::string_view name) const;  // null when absent
  const std::vector<TensorEntry>& tensors() const { return tensors_; }

  bool is_gguf() const { return is_gguf_; }
  const Metadata& metadata() const { return metadata_; }    // of the first shard; empty for a directory
  const std::string& path() const { return path_; }         // as given to open()
  const std::string& directory() const { return directory_; }  // where config.json is; of a GGUF, where the file is
  const std::vector<std::string>& warnings() const { return warnings_; }

  // The mapped files in shard order, e.g. to advise the kernel about them.
  const std::vector<MappedFile>& files() const { return files_; }

  // XXH3-128 (hex) over each file's size, header and tensor bytes, in shard order, and over config.json for a
  // directory. Reads everything, so it can take seconds: cache it beside size and mtime.
  std::string content_hash() const;

 private:
  WeightFiles() = default;
  Status open_gguf(const std::string& path);
  Status open_directory(const std::string& path);
  Status open_gguf_directory(const std::string& path);
  Status add_tensors(std::vector<TensorEntry> entries);

  bool is_gguf_ = false;
  std::string path_;
  std::string directory_;
  std::vector<MappedFile> files_;
  Metadata metadata_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name to position in tensors_
  std::vector<std::string> warnings_;
};

}  // namespace tandem::model
