#include "cluster/registry/file_registry.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cluster/registry/view_edits.h"
#include "cluster/registry/view_json.h"

namespace tandem::registry {
namespace {

constexpr size_t kMaxFileBytes = 16 << 20;

Error system_error(const std::string& what) {
  return {ErrorCode::kUnavailable, what + ": " + strerror(errno)};
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<View> FileRegistry::read() const {
  const File file(path_, O_RDONLY);
  if (file.fd() < 0 && errno == ENOENT) return View{};
  if (file.fd() < 0) return system_error(path_);
  std::string text;
  char piece[65536];
  for (ssize_t count = 0; (count = ::read(file.fd(), piece, sizeof piece)) != 0;) {
    if (count < 0) return system_error(path_);
    text.append(piece, static_cast<size_t>(count));
    if (text.size() > kMaxFileBytes) return Error{ErrorCode::kCorrupt, path_ + ": too long for a registry"};
  }
  auto view = view_from_json(text);
  if (!view) return std::move(view).error().during(path_);
  return view;
}

Status FileRegistry::write(const View& view) const {
  const std::string next = path_ + ".new";
  const std::string text = to_json(view);
  {
    const File file(next, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.fd() < 0) return system_error(next);
    for (size_t written = 0; written < text.size();) {
      const ssize_t count = ::write(file.fd(), text.data() + written, text.size() - written);
      if (count < 0) return system_error(next);
      written += static_cast<size_t>(count);
    }
    if (fsync(file.fd()) != 0) return system_error(next);
  }
  if (rename(next.c_str(), path_.c_str()) != 0) return system_error(path_);
  return Done{};
}

template <class Edit>
auto FileRegistry::change(Edit edit) -> decltype(edit(std::declval<View&>())) {
  const std::string lock_path = path_ + ".lock";
  const File lock(lock_path, O_RDWR | O_CREAT);
  if (lock.fd() < 0 || flock(lock.fd(), LOCK_EX) != 0) return system_error(lock_path);
  TRY_ASSIGN(View view, read());
  const uint64_t before = view.revision;
  auto result = edit(view);
  if (view.revision != before) TRY(write(view));
  return result;
}

Result<NodeRecord> FileRegistry::join(const NodeRecord& node) {
  return change([&](View& view) { return registry::join(view, node); });
}
Status FileRegistry::set_state(const std::string& id, uint64_t incarnation, NodeState state) {
  return change([&](View& view) { return registry::set_state(view, id, incarnation, state); });
}
Status FileRegistry::leave(const std::string& id, uint64_t incarnation) {
  return change([&](View& view) { return registry::leave(view, id, incarnation); });
}
Result<uint64_t> FileRegistry::flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) {
  return change([&](View& view) { return registry::flip_role(view, id, role_epoch, role); });
}
Result<uint64_t> FileRegistry::set_config(const std::string& key, const std::string& value, uint64_t config_revision) {
  return change([&](View& view) { return registry::set_config(view, key, value, config_revision); });
}

Result<std::optional<View>> FileRegistry::poll(uint64_t revision) {
  TRY_ASSIGN(View view, read());
  if (view.revision <= revision) return std::optional<View>();
  return std::optional<View>(std::move(view));
}

}  // namespace tandem::registry
