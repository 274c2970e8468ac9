#pragma once
// PartFile: PATH.part while it grows, locked against a second process, with the entity tag it belongs to beside it.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::fetch {

class PartFile {
 public:
  // Opens or creates PATH.part. kUnavailable while another process holds it.
  static Result<PartFile> open(const std::string& path, const std::string& url);
  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();  // closes; what was written stays for the next try

  uint64_t size_bytes() const { return size_bytes_; }
  // The strong tag of the entity whose first bytes these are; empty: unknown, so they cannot be continued.
  const std::string& entity_tag() const { return entity_tag_; }

  // Empties it; what follows belongs to this entity. A weak or empty tag means that it cannot be resumed.
  Status restart(const std::string& entity_tag);
  Status append(std::string_view bytes);
  // Makes it PATH: synced, renamed, the folder synced. Nothing else may be called then.
  Status commit();
  void remove();

 private:
  PartFile(int fd, std::string path, std::string url) : fd_(fd), path_(std::move(path)), url_(std::move(url)) {}
  std::string part_path() const { return path_ + ".part"; }
  std::string tag_path() const { return path_ + ".part.tag"; }
  Error file_error(const char* what) const;

  int fd_;
  std::string path_;
  std::string url_;
  std::string entity_tag_;
  uint64_t size_bytes_ = 0;
};

// fsync of a file or folder by name.
Status sync_path(const std::string& path);
// The folder part of a path; "." when it has none.
std::string folder_of(const std::string& path);

}  // namespace tandem::fetch
