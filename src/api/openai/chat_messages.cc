#include "api/openai/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/openai/tool_use.h"
#include "serve/text/json_scanner.h"

namespace tandem::openai {

std::string content_text(FieldReader& fields, const std::string& name, const JsonValue& content,
                         std::initializer_list<std::string_view> part_types) {
  if (content.is_null()) return {};
  if (const std::string* text = content.if_string()) return *text;
  const JsonValue::Array* parts = content.if_array();
  if (!parts) {
    fields.fail_kind(name, "a string or a list of parts", content);
    return {};
  }
  std::string joined;
  for (const JsonValue& part : *parts) {
    const JsonValue* type = part.find("type");
    const JsonValue* text = part.find("text");
    if (const std::string* plain = part.if_string()) {
      joined += (joined.empty() ? "" : "\n") + *plain;
    } else if (!type || !type->if_string()) {
      fields.fail(name, "each part needs a \"type\"");
    } else if (std::ranges::find(part_types, *type->if_string()) == part_types.end()) {
      fields.fail(name, fmt::format("parts of type \"{}\" are not supported, only \"{}\"", *type->if_string(),
                                    *part_types.begin()));
    } else if (!text || !text->if_string()) {
      fields.fail(name, fmt::format("a part of type \"{}\" needs a string \"text\"", *type->if_string()));
    } else {
      joined += (joined.empty() ? "" : "\n") + *text->if_string();
    }
  }
  return joined;
}

JsonValue arguments_object(FieldReader& fields, const std::string& name, const JsonValue& arguments) {
  if (arguments.if_object()) return arguments;
  const std::string* text = arguments.if_string();
  if (!text) {
    fields.fail_kind(name, "a string that holds a JSON object", arguments);
    return {};
  }
  if (text->empty()) return JsonValue(JsonValue::Object{});
  // What a model wrote comes back as it was, with whatever numbers.
  auto parsed = JsonValue::parse(*text);
  if (!parsed) {
    if (auto readable = JsonValue::parse(text::with_readable_numbers(*text))) parsed = std::move(readable);
  }
  if (!parsed) {
    fields.fail(name, "expected a string that holds a JSON object: " + parsed.error().message);
    return {};
  }
  if (!parsed->if_object()) fields.fail_kind(name, "a string that holds a JSON object", *parsed);
  return std::move(parsed).value();
}

JsonValue chat_message(std::string role, std::string content, JsonValue::Object more) {
  JsonValue::Object out;
  out.emplace_back("role", JsonValue(std::move(role)));
  out.emplace_back("content", JsonValue(std::move(content)));
  for (auto& member : more) out.push_back(std::move(member));
  return JsonValue(std::move(out));
}

JsonValue chat_tool_call(const JsonValue& id, const JsonValue& name, JsonValue arguments) {
  JsonValue::Object function;
  function.emplace_back("name", name);
  function.emplace_back("arguments", std::move(arguments));
  JsonValue::Object out;
  out.emplace_back("id", id);
  out.emplace_back("type", JsonValue(std::string("function")));
  out.emplace_back("function", JsonValue(std::move(function)));
  return JsonValue(std::move(out));
}

namespace {

JsonValue tool_call(FieldReader& fields, const std::string& name, const JsonValue& call) {
  const JsonValue* function = call.find("function");
  if (!function || !function->if_object()) {
    fields.fail(name, "expected an object with a \"function\"");
    return {};
  }
  JsonValue::Object out_function;
  for (const auto& [key, value] : *function->if_object()) {
    const bool is_arguments = key == "arguments" && !value.is_null();
    out_function.emplace_back(key,
                              is_arguments ? arguments_object(fields, name + ".function.arguments", value) : value);
  }
  JsonValue::Object out;
  for (const auto& [key, value] : *call.if_object()) {
    if (key != "function") out.emplace_back(key, value);
  }
  // Once, however often the client wrote it: copies for each would be as many as the square of the body.
  out.emplace_back("function", JsonValue(std::move(out_function)));
  return JsonValue(std::move(out));
}

JsonValue tool_calls(FieldReader& fields, const std::string& name, const JsonValue& calls) {
  const JsonValue::Array* list = calls.if_array();
  if (!list) {
    fields.fail_kind(name, "a list", calls);
    return {};
  }
  JsonValue::Array out;
  for (size_t i = 0; i < list->size(); ++i)
    out.push_back(tool_call(fields, fmt::format("{}[{}]", name, i), (*list)[i]));
  return JsonValue(std::move(out));
}

JsonValue message(FieldReader& fields, const std::string& name, const JsonValue& from) {
  if (!from.if_object()) {
    fields.fail_kind(name, "an object", from);
    return {};
  }
  const JsonValue* role = from.find("role");
  if (!role || !role->if_string()) {
    fields.fail(name + ".role", fmt::format("expected a string, got {}", role ? role->kind_name() : "nothing"));
    return {};
  }
  const JsonValue* content = from.find("content");
  const JsonValue* calls = from.find("tool_calls");
  const bool has_calls = calls && !calls->is_null();
  if ((!content || content->is_null()) && !has_calls && *role->if_string() != "assistant") {
    fields.fail(name + ".content", "is missing");
  }
  JsonValue::Object out;
  // Models are trained with "system"; "developer" is the newer word for it.
  out.emplace_back("role", JsonValue(std::string(*role->if_string() == "developer" ? "system" : *role->if_string())));
  out.emplace_back("content", JsonValue(content ? content_text(fields, name + ".content", *content) : std::string()));
  if (has_calls) out.emplace_back("tool_calls", tool_calls(fields, name + ".tool_calls", *calls));
  for (const auto& [key, value] : *from.if_object()) {
    if (key != "role" && key != "content" && key != "tool_calls" && !value.is_null()) out.emplace_back(key, value);
  }
  return JsonValue(std::move(out));
}

void read_tools(FieldReader& fields, ChatPrompt& prompt) {
  prompt.tool_use = read_chat_tools(fields);
  const JsonValue* tools = fields.get("tools");
  if (tools && prompt.tool_use.choice != ToolUse::Choice::kNone) prompt.tools = *tools;
}

}  // namespace

ChatPrompt read_chat_prompt(FieldReader& fields) {
  ChatPrompt prompt;
  const JsonValue* messages = fields.get("messages");
  if (!messages) {
    fields.fail("messages", "is missing");
    return prompt;
  }
  const JsonValue::Array* list = messages->if_array();
  if (!list)
    fields.fail_kind("messages", "a list of messages", *messages);
  else if (list->empty())
    fields.fail("messages", "is empty");
  if (fields.has_failed()) return prompt;
  for (size_t i = 0; i < list->size(); ++i) {
    prompt.messages.push_back(message(fields, fmt::format("messages[{}]", i), (*list)[i]));
  }
  read_tools(fields, prompt);
  if (const JsonValue* documents = fields.get("documents")) {
    if (documents->if_array())
      prompt.documents = *documents;
    else
      fields.fail_kind("documents", "a list", *documents);
  }
  const std::optional<bool> adds_prompt = fields.optional_flag("add_generation_prompt");
  prompt.continue_final_message = fields.flag("continue_final_message", false);
  if (prompt.continue_final_message && adds_prompt.value_or(false)) {
    fields.fail("continue_final_message", "cannot be had with add_generation_prompt");
  }
  prompt.add_generation_prompt = adds_prompt.value_or(!prompt.continue_final_message);
  const std::string effort = fields.text("reasoning_effort");
  if (!effort.empty()) prompt.template_variables.emplace_back("reasoning_effort", JsonValue(effort));
  if (const JsonValue* variables = fields.get("chat_template_kwargs")) {
    if (const JsonValue::Object* members = variables->if_object()) {
      prompt.template_variables.insert(prompt.template_variables.end(), members->begin(), members->end());
    } else {
      fields.fail_kind("chat_template_kwargs", "an object", *variables);
    }
  }
  return prompt;
}

}  // namespace tandem::openai
