#include "cluster/registry/file_registry.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/json.h"
#include "cluster/registry/view_edits.h"

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

Error corrupt(const std::string& where, const std::string& what) { return {ErrorCode::kCorrupt, where + " " + what}; }

Result<std::string> text_of(const JsonValue& object, const char* key, const std::string& where) {
  const JsonValue* value = object.find(key);
  if (value == nullptr || value->if_string() == nullptr) return corrupt(where, std::string("has no text ") + key);
  return *value->if_string();
}

Result<uint64_t> number_of(const JsonValue& object, const char* key, const std::string& where) {
  const JsonValue* value = object.find(key);
  uint64_t number = 0;
  if (value == nullptr || !value->as_uint64(number)) return corrupt(where, std::string("has no number ") + key);
  return number;
}

Result<NodeRecord> node_of(const JsonValue& value, const std::string& where) {
  if (value.if_object() == nullptr) return corrupt(where, "is not an object");
  NodeRecord node;
  TRY_ASSIGN(node.id, text_of(value, "id", where));
  TRY_ASSIGN(node.incarnation, number_of(value, "incarnation", where));
  TRY_ASSIGN(const std::string role, text_of(value, "role", where));
  TRY_ASSIGN(node.role_epoch, number_of(value, "role_epoch", where));
  TRY_ASSIGN(const std::string state, text_of(value, "state", where));
  TRY_ASSIGN(node.control, text_of(value, "control", where));
  TRY_ASSIGN(node.data, text_of(value, "data", where));
  const auto known_role = role_of(role);
  const auto known_state = state_of(state);
  if (value.find("pid") != nullptr) {
    TRY_ASSIGN(node.pid, number_of(value, "pid", where));
  }
  if (node.id.empty()) return corrupt(where, "has an empty id");
  if (!known_role) return corrupt(where, "has an unknown role " + role);
  if (!known_state) return corrupt(where, "has an unknown state " + state);
  node.role = *known_role;
  node.state = *known_state;
  return node;
}

}  // namespace

std::string to_json(const View& view) {
  JsonWriter json;
  json.begin_object().key("revision").unsigned_integer(view.revision);
  json.key("nodes").begin_array();
  for (const auto& [id, node] : view.nodes) {
    json.begin_object().key("id").string(id).key("incarnation").unsigned_integer(node.incarnation);
    json.key("pid").unsigned_integer(node.pid);
    json.key("role").string(role_name(node.role)).key("role_epoch").unsigned_integer(node.role_epoch);
    json.key("state").string(state_name(node.state));
    json.key("control").string(node.control).key("data").string(node.data).end_object();
  }
  json.end_array().key("config_revision").unsigned_integer(view.config_revision).key("config").begin_object();
  for (const auto& [key, value] : view.config) json.key(key).string(value);
  json.end_object().end_object();
  return json.take();
}

Result<View> view_from_json(const std::string& text) {
  auto parsed = JsonValue::parse(text);
  if (!parsed) return Error{ErrorCode::kCorrupt, parsed.error().message};
  if (parsed->if_object() == nullptr) return corrupt("the registry", "is not an object");
  View view;
  TRY_ASSIGN(view.revision, number_of(*parsed, "revision", "the registry"));
  TRY_ASSIGN(view.config_revision, number_of(*parsed, "config_revision", "the registry"));
  const JsonValue* nodes = parsed->find("nodes");
  if (nodes == nullptr || nodes->if_array() == nullptr) return corrupt("the registry", "has no list nodes");
  for (size_t i = 0; i < nodes->if_array()->size(); ++i) {
    const std::string where = "nodes[" + std::to_string(i) + "]";
    TRY_ASSIGN(NodeRecord node, node_of((*nodes->if_array())[i], where));
    if (view.nodes.contains(node.id)) return corrupt(where, "is called " + node.id + " like another");
    view.nodes.emplace(node.id, std::move(node));
  }
  const JsonValue* config = parsed->find("config");
  if (config == nullptr || config->if_object() == nullptr) return corrupt("the registry", "has no object config");
  for (const auto& [key, value] : *config->if_object()) {
    if (value.if_string() == nullptr) return corrupt("config." + key, "is not a text");
    view.config.insert_or_assign(key, *value.if_string());
  }
  return view;
}

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
