#include "cluster/registry/view_json.h"

#include <utility>

#include "base/json.h"

namespace tandem::registry {
namespace {

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
  if (value.find("metrics") != nullptr) {
    TRY_ASSIGN(node.metrics, text_of(value, "metrics", where));
  }
  if (node.id.empty()) return corrupt(where, "has an empty id");
  if (!known_role) return corrupt(where, "has an unknown role " + role);
  if (!known_state) return corrupt(where, "has an unknown state " + state);
  node.role = *known_role;
  node.state = *known_state;
  return node;
}

Result<JsonValue> object_in(const std::string& text, const std::string& where) {
  auto parsed = JsonValue::parse(text);
  if (!parsed) return corrupt(where, "is no JSON: " + parsed.error().message);
  if (parsed->if_object() == nullptr) return corrupt(where, "is not an object");
  return parsed;
}

Result<const JsonValue::Array*> list_of(const JsonValue& object, const char* key) {
  const JsonValue* list = object.find(key);
  if (list == nullptr || list->if_array() == nullptr) return corrupt("the registry", std::string("has no list ") + key);
  return list->if_array();
}

void write_node(JsonWriter& json, const NodeRecord& node) {
  json.begin_object().key("id").string(node.id).key("incarnation").unsigned_integer(node.incarnation);
  json.key("pid").unsigned_integer(node.pid);
  json.key("role").string(role_name(node.role)).key("role_epoch").unsigned_integer(node.role_epoch);
  json.key("state").string(state_name(node.state));
  json.key("control").string(node.control).key("data").string(node.data);
  if (!node.metrics.empty()) json.key("metrics").string(node.metrics);
  json.end_object();
}

void write_config(JsonWriter& json, const View& view) {
  json.key("config_revision").unsigned_integer(view.config_revision).key("config").begin_object();
  for (const auto& [key, value] : view.config) json.key(key).string(value);
  json.end_object();
}

// The revisions too.
Status read_config(const JsonValue& object, View& view) {
  TRY_ASSIGN(view.revision, number_of(object, "revision", "the registry"));
  TRY_ASSIGN(view.config_revision, number_of(object, "config_revision", "the registry"));
  const JsonValue* config = object.find("config");
  if (config == nullptr || config->if_object() == nullptr) return corrupt("the registry", "has no object config");
  for (const auto& [key, value] : *config->if_object()) {
    if (value.if_string() == nullptr) return corrupt("config." + key, "is not a text");
    view.config.insert_or_assign(key, *value.if_string());
  }
  return Done{};
}

}  // namespace

std::string to_json(const View& view) {
  JsonWriter json;
  json.begin_object().key("revision").unsigned_integer(view.revision);
  json.key("nodes").begin_array();
  for (const auto& [id, node] : view.nodes) write_node(json, node);
  json.end_array();
  write_config(json, view);
  return json.end_object().take();
}

Result<View> view_from_json(const std::string& text) {
  TRY_ASSIGN(const JsonValue parsed, object_in(text, "the registry"));
  View view;
  TRY(read_config(parsed, view));
  TRY_ASSIGN(const JsonValue::Array* nodes, list_of(parsed, "nodes"));
  for (size_t i = 0; i < nodes->size(); ++i) {
    const std::string where = "nodes[" + std::to_string(i) + "]";
    TRY_ASSIGN(NodeRecord node, node_of((*nodes)[i], where));
    if (view.nodes.contains(node.id)) return corrupt(where, "is called " + node.id + " like another");
    view.nodes.emplace(node.id, std::move(node));
  }
  return view;
}

std::string node_to_json(const NodeRecord& node) {
  JsonWriter json;
  write_node(json, node);
  return json.take();
}

Result<NodeRecord> node_from_json(const std::string& text, const std::string& where) {
  TRY_ASSIGN(const JsonValue value, object_in(text, where));
  return node_of(value, where);
}

std::string head_to_json(const View& view) {
  JsonWriter json;
  json.begin_object().key("revision").unsigned_integer(view.revision).key("members").begin_array();
  for (const auto& [id, node] : view.nodes) json.string(id);
  json.end_array();
  write_config(json, view);
  return json.end_object().take();
}

Result<Head> head_from_json(const std::string& text) {
  TRY_ASSIGN(const JsonValue parsed, object_in(text, "the registry"));
  Head head;
  TRY(read_config(parsed, head.view));
  TRY_ASSIGN(const JsonValue::Array* members, list_of(parsed, "members"));
  for (const JsonValue& member : *members) {
    if (member.if_string() == nullptr) return corrupt("members", "holds what is not a text");
    head.members.insert(*member.if_string());
  }
  return head;
}

}  // namespace tandem::registry
