#include "net/fetch/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>

namespace tandem::fetch {

Result<PartFile> PartFile::open(const std::string& path, const std::string& url) {
  const std::string part = path + ".part";
  const int fd = ::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Error{ErrorCode::kInvalidArgument, part + ": " + strerror(errno)};
  PartFile file(fd, path, url);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0)
    return Error{ErrorCode::kUnavailable, part + ": another process is downloading this file"};
  struct stat status{};
  if (fstat(fd, &status) != 0) return file.file_error("stat");
  file.size_bytes_ = static_cast<uint64_t>(status.st_size);
  std::ifstream tag_file(file.tag_path());
  std::string tag_url;
  std::string tag;
  if (std::getline(tag_file, tag_url) && std::getline(tag_file, tag) && tag_url == url) file.entity_tag_ = tag;
  return file;
}

PartFile::PartFile(PartFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      url_(std::move(other.url_)),
      entity_tag_(std::move(other.entity_tag_)),
      size_bytes_(other.size_bytes_) {}

PartFile::~PartFile() {
  if (fd_ >= 0) ::close(fd_);
}

Error PartFile::file_error(const char* what) const {
  return Error{ErrorCode::kInvalidArgument, part_path() + ": " + what + ": " + strerror(errno)};
}

Status PartFile::restart(const std::string& entity_tag) {
  // The old tag goes first: were we to stop in between, new bytes must not pass for the old entity's.
  ::unlink(tag_path().c_str());
  if (ftruncate(fd_, 0) != 0 || lseek(fd_, 0, SEEK_SET) != 0) return file_error("truncate");
  size_bytes_ = 0;
  entity_tag_.clear();
  if (!entity_tag.starts_with('"')) return Done{};
  std::ofstream tag_file(tag_path());
  tag_file << url_ << '\n' << entity_tag << '\n';
  tag_file.close();
  if (!tag_file) return file_error("write of the entity tag");
  entity_tag_ = entity_tag;
  return Done{};
}

Status PartFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_bytes_));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error("write");
    bytes.remove_prefix(static_cast<size_t>(written));
    size_bytes_ += static_cast<uint64_t>(written);
  }
  return Done{};
}

Status PartFile::commit() {
  if (fsync(fd_) != 0) return file_error("sync");
  if (rename(part_path().c_str(), path_.c_str()) != 0) return file_error("rename");
  ::unlink(tag_path().c_str());
  return sync_path(folder_of(path_));
}

void PartFile::remove() {
  ::unlink(tag_path().c_str());
  ::unlink(part_path().c_str());
}

Status sync_path(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Error{ErrorCode::kInvalidArgument, path + ": " + strerror(errno)};
  const int failed = fsync(fd);
  const int code = errno;
  ::close(fd);
  if (failed != 0) return Error{ErrorCode::kInvalidArgument, path + ": sync: " + strerror(code)};
  return Done{};
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace tandem::fetch
