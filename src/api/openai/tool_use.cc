#include "api/openai/tool_use.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"

namespace tandem::openai {
namespace {

constexpr size_t kMaxTools = 1024;
constexpr size_t kMaxToolNameBytes = 128;

bool is_tool_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kMaxToolNameBytes && std::ranges::all_of(name, is_allowed);
}

// The schema with its references to itself brought under `root`, so that it can stand inside another schema.
JsonValue rebased(const JsonValue& schema, const std::string& root) {
  if (const JsonValue::Array* items = schema.if_array()) {
    JsonValue::Array out;
    for (const JsonValue& item : *items) out.push_back(rebased(item, root));
    return JsonValue(std::move(out));
  }
  const JsonValue::Object* members = schema.if_object();
  if (!members) return schema;
  JsonValue::Object out;
  for (const auto& [key, value] : *members) {
    const std::string* target = key == "$ref" ? value.if_string() : nullptr;
    const bool is_local = target && target->starts_with('#');
    out.emplace_back(key, is_local ? JsonValue(root + target->substr(1)) : rebased(value, root));
  }
  return JsonValue(std::move(out));
}

// Arguments are an object, also where the schema does not say so.
JsonValue arguments_schema(const text::ToolSpec& tool) {
  JsonValue::Object out;
  const JsonValue::Object* members = tool.parameters ? tool.parameters->if_object() : nullptr;
  if (!members || !tool.parameters->find("type")) out.emplace_back("type", JsonValue(std::string("object")));
  if (members) out.insert(out.end(), members->begin(), members->end());
  return JsonValue(std::move(out));
}

// [{"name": one of the tools, "parameters": its arguments}, ..]
std::string call_list_schema(const ToolUse& use) {
  JsonWriter json;
  json.begin_object().key("type").string("array").key("minItems").integer(1);
  if (!use.is_parallel) json.key("maxItems").integer(1);
  json.key("items").begin_object().key("anyOf").begin_array();
  for (size_t i = 0; i < use.tools.size(); ++i) {
    json.begin_object().key("type").string("object").key("properties").begin_object();
    json.key("name").begin_object().key("type").string("string").key("enum").begin_array();
    json.string(use.tools[i].name).end_array().end_object();
    json.key("parameters").begin_object().key("$ref").string(fmt::format("#/$defs/tool_{}", i)).end_object();
    json.end_object().key("required").begin_array().string("name").string("parameters").end_array();
    json.key("additionalProperties").boolean(false).end_object();
  }
  json.end_array().end_object().key("$defs").begin_object();
  for (size_t i = 0; i < use.tools.size(); ++i) {
    const std::string name = fmt::format("tool_{}", i);
    json.key(name).value(rebased(arguments_schema(use.tools[i]), "#/$defs/" + name));
  }
  return json.end_object().end_object().take();
}

const text::ToolSpec* find_tool(const ToolUse& use, std::string_view name) {
  const auto found = std::ranges::find_if(use.tools, [&](const text::ToolSpec& tool) { return tool.name == name; });
  return found == use.tools.end() ? nullptr : &*found;
}

void read_chat_choice(FieldReader& fields, const JsonValue& choice, ToolUse& use) {
  if (read_choice_word(choice, use)) return;
  const JsonValue* type = choice.find("type");
  const JsonValue* function = choice.find("function");
  const JsonValue* name = function ? function->find("name") : nullptr;
  if (type && type->if_string() && *type->if_string() != "function") {
    fields.fail("tool_choice", fmt::format("type \"{}\" is not supported, only \"function\"", *type->if_string()));
  } else if (!name || !name->if_string()) {
    fields.fail("tool_choice",
                "expected \"none\", \"auto\", \"required\" or {\"type\":\"function\",\"function\":{\"name\":NAME}}");
  } else {
    use.choice = ToolUse::Choice::kNamed;
    use.named = *name->if_string();
  }
}

// Checked, as every API wants it. Faults go to `fields`.
void add_tool(FieldReader& fields, const GivenTool& given, ToolUse& use) {
  const std::string name_path = given.path + "." + given.name_field;
  const std::string* name = given.name ? given.name->if_string() : nullptr;
  if (use.tools.size() == kMaxTools) {
    fields.fail("tools", fmt::format("at most {} are allowed", kMaxTools));
  } else if (!name) {
    fields.fail(name_path, fmt::format("expected a string, got {}", given.name ? given.name->kind_name() : "nothing"));
  } else if (!is_tool_name(*name)) {
    fields.fail(name_path, fmt::format("expected 1 to {} letters, digits, or any of _-.:/", kMaxToolNameBytes));
  } else if (find_tool(use, *name)) {
    fields.fail(name_path, fmt::format("there are two tools \"{}\"", *name));
  }
  const bool has_schema = given.parameters && !given.parameters->is_null();
  if (has_schema) {
    const std::string schema_path = given.path + "." + given.schema_field;
    const JsonValue* type = given.parameters->find("type");
    if (!given.parameters->if_object())
      fields.fail_kind(schema_path, "an object, a JSON schema", *given.parameters);
    else if (type && (!type->if_string() || *type->if_string() != "object"))
      fields.fail(schema_path, "expected a schema of type \"object\"");
  }
  if (fields.has_failed()) return;
  use.tools.push_back({*name, has_schema ? std::optional(*given.parameters) : std::nullopt});
}

}  // namespace

std::vector<GivenTool> read_tool_list(FieldReader& fields, const ReadTool& read, ToolUse& use) {
  const JsonValue* tools = fields.get("tools");
  const JsonValue::Array* list = tools ? tools->if_array() : nullptr;
  if (tools && !list) fields.fail_kind("tools", "a list", *tools);
  std::vector<GivenTool> given;
  for (size_t i = 0; list && i < list->size() && !fields.has_failed(); ++i) {
    const JsonValue& tool = (*list)[i];
    const std::string path = fmt::format("tools[{}]", i);
    if (!tool.if_object()) {
      fields.fail_kind(path, "an object", tool);
    } else if (auto one = read(path, tool)) {
      add_tool(fields, *one, use);
      given.push_back(std::move(*one));
    }
  }
  use.choice = use.tools.empty() ? ToolUse::Choice::kNone : ToolUse::Choice::kAuto;
  return given;
}

void check_tool_choice(FieldReader& fields, const ToolUse& use) {
  const bool is_forced = use.choice == ToolUse::Choice::kRequired || use.choice == ToolUse::Choice::kNamed;
  if (is_forced && use.tools.empty()) fields.fail("tool_choice", "asks for a call, but there are no tools");
  if (use.choice == ToolUse::Choice::kNamed && !find_tool(use, use.named)) {
    fields.fail("tool_choice", fmt::format("names the tool \"{}\", which is not among the tools", use.named));
  }
}

bool read_choice_word(const JsonValue& value, ToolUse& use) {
  const std::string* word = value.if_string();
  if (!word) return false;
  if (*word == "none")
    use.choice = ToolUse::Choice::kNone;
  else if (*word == "auto")
    use.choice = ToolUse::Choice::kAuto;
  else if (*word == "required")
    use.choice = ToolUse::Choice::kRequired;
  else
    return false;
  return true;
}

ToolUse read_chat_tools(FieldReader& fields) {
  ToolUse use;
  use.is_parallel = fields.flag("parallel_tool_calls", true);
  const auto read = [&fields](const std::string& path, const JsonValue& tool) -> std::optional<GivenTool> {
    const JsonValue* type = tool.find("type");
    const JsonValue* function = tool.find("function");
    if (type && (!type->if_string() || *type->if_string() != "function")) {
      fields.fail(path + ".type", "only tools of type \"function\" are supported");
      return std::nullopt;
    }
    if (!function || !function->if_object()) {
      fields.fail(path + ".function",
                  fmt::format("expected an object, got {}", function ? function->kind_name() : "nothing"));
      return std::nullopt;
    }
    return GivenTool{path + ".function",     "name",  "parameters",
                     function->find("name"), nullptr, function->find("parameters")};
  };
  read_tool_list(fields, read, use);
  if (const JsonValue* choice = fields.get("tool_choice")) read_chat_choice(fields, *choice, use);
  check_tool_choice(fields, use);
  return use;
}

JsonValue template_tools(const std::vector<GivenTool>& tools) {
  JsonValue::Array out;
  for (const GivenTool& tool : tools) {
    JsonValue::Object function;
    if (tool.name) function.emplace_back("name", *tool.name);
    if (tool.description && !tool.description->is_null()) function.emplace_back("description", *tool.description);
    // Templates read the parameters of every tool.
    const bool has_schema = tool.parameters && !tool.parameters->is_null();
    const auto kind = [](const char* of) { return JsonValue(std::string(of)); };
    function.emplace_back("parameters",
                          has_schema ? *tool.parameters
                                     : JsonValue(JsonValue::Object{{"type", kind("object")},
                                                                   {"properties", JsonValue(JsonValue::Object{})}}));
    out.push_back(
        JsonValue(JsonValue::Object{{"type", kind("function")}, {"function", JsonValue(std::move(function))}}));
  }
  return JsonValue(std::move(out));
}

std::optional<ApiError> apply_tool_use(const ToolUse& use, const ToolCallSupport& support, GenerationOptions& options) {
  if (use.choice == ToolUse::Choice::kNone) return std::nullopt;
  auto rules = std::make_shared<text::ToolCallRules>();
  rules->format = support.format;
  rules->tools = use.tools;
  rules->is_parallel = use.is_parallel;
  rules->has_short_ids = support.has_short_ids;
  if (use.choice == ToolUse::Choice::kAuto) {
    if (support.format == text::ToolCallFormat::kNone || use.tools.empty()) return std::nullopt;
    rules->markers = support.markers;
    options.tool_calls = std::move(rules);
    return std::nullopt;
  }
  if (options.grammar) {
    return invalid_request("tool_choice", "tool_choice: a forced call leaves no room for another form of the answer");
  }
  sched::Grammar grammar;
  if (use.choice == ToolUse::Choice::kNamed) {
    rules->format = text::ToolCallFormat::kJsonArguments;
    rules->only_tool = use.named;
    grammar.source = JsonWriter().value(arguments_schema(*find_tool(use, use.named))).take();
  } else {
    rules->format = text::ToolCallFormat::kJsonList;
    grammar.source = call_list_schema(use);
  }
  options.grammar = std::move(grammar);
  options.grammar_param = "tools";
  options.tool_calls = std::move(rules);
  return std::nullopt;
}

std::string tool_call_id(std::string_view prefix, std::string_view reply_id, size_t choice, size_t call,
                         bool is_short) {
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const size_t num_digits = is_short ? 9 : 24;
  std::string id(is_short ? std::string_view() : prefix);
  uint64_t digits = 0;
  for (size_t i = 0; i < num_digits; ++i) {
    if (i % 8 == 0) {
      const std::string seed = fmt::format("{}/{}/{}/{}", reply_id, choice, call, i);
      digits = hash_64(seed.data(), seed.size());
    }
    id.push_back(kDigits[digits % kDigits.size()]);
    digits /= kDigits.size();
  }
  return id;
}

}  // namespace tandem::openai
