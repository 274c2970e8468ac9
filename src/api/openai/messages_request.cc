#include "api/openai/messages_request.h"

#include <fmt/format.h>

#include <map>

#include "api/openai/chat_messages.h"
#include "api/openai/request_options.h"
#include "api/openai/tool_use.h"

namespace tandem::openai {
namespace {

constexpr size_t kMaxCalledNameBytes = 128;  // as tools have; each result of a call repeats the name

// Turns the messages into a chat's: a user's tool results become messages of their own.
class MessageList {
 public:
  MessageList(FieldReader& fields, JsonValue::Array& out) : fields_(fields), out_(out) {}

  void add(const std::string& path, const JsonValue& message) {
    const JsonValue* role = message.find("role");
    const std::string* word = role ? role->if_string() : nullptr;
    const JsonValue* content = message.find("content");
    if (!message.if_object()) {
      fields_.fail_kind(path, "an object", message);
    } else if (!word || (*word != "user" && *word != "assistant")) {
      fields_.fail(path + ".role", "expected \"user\" or \"assistant\"");
    } else if (!content || content->is_null()) {
      fields_.fail(path + ".content", "is missing");
    } else if (const std::string* text = content->if_string()) {
      out_.push_back(chat_message(*word, *text));
    } else if (const JsonValue::Array* blocks = content->if_array()) {
      add_blocks(path + ".content", *word, *blocks);
    } else {
      fields_.fail_kind(path + ".content", "a string or a list of blocks", *content);
    }
  }

 private:
  void add_blocks(const std::string& path, const std::string& role, const JsonValue::Array& blocks) {
    std::string text;
    bool has_text = false;
    JsonValue::Array calls;
    const size_t num_before = out_.size();
    const auto flush = [&] {
      if (has_text) out_.push_back(chat_message(role, text));
      text.clear();
      has_text = false;
    };
    for (size_t i = 0; i < blocks.size() && !fields_.has_failed(); ++i) {
      const std::string block_path = fmt::format("{}[{}]", path, i);
      const JsonValue& block = blocks[i];
      const JsonValue* type = block.find("type");
      const std::string* word = type ? type->if_string() : nullptr;
      if (!word) {
        fields_.fail(block_path + ".type",
                     fmt::format("expected a string, got {}", type ? type->kind_name() : "nothing"));
      } else if (*word == "text") {
        text += (has_text ? "\n" : "") + text_of(block_path, block);
        has_text = true;
      } else if (*word == "tool_use" && role == "assistant") {
        add_call(block_path, block, calls);
      } else if (*word == "tool_result" && role == "user") {
        flush();
        add_result(block_path, block);
      } else if (role != "assistant" || (*word != "thinking" && *word != "redacted_thinking")) {
        fields_.fail(block_path + ".type", fmt::format("blocks of type \"{}\" are not supported here", *word));
      }
    }
    if (!calls.empty())
      out_.push_back(chat_message(role, text, {{"tool_calls", JsonValue(std::move(calls))}}));
    else if (has_text || out_.size() == num_before)
      out_.push_back(chat_message(role, text));
  }

  std::string text_of(const std::string& path, const JsonValue& block) {
    const JsonValue* text = block.find("text");
    if (text && text->if_string()) return *text->if_string();
    fields_.fail(path + ".text", fmt::format("expected a string, got {}", text ? text->kind_name() : "nothing"));
    return {};
  }

  // The member, which has to be a string.
  const JsonValue& string_of(const std::string& path, const JsonValue& block, std::string_view name) {
    static const JsonValue nothing;
    const JsonValue* value = block.find(name);
    if (value && value->if_string()) return *value;
    fields_.fail(fmt::format("{}.{}", path, name),
                 fmt::format("expected a string, got {}", value ? value->kind_name() : "nothing"));
    return nothing;
  }

  void add_call(const std::string& path, const JsonValue& block, JsonValue::Array& calls) {
    const JsonValue& id = string_of(path, block, "id");
    const JsonValue& name = string_of(path, block, "name");
    const JsonValue* input = block.find("input");
    if (!input || !input->if_object()) {
      fields_.fail(path + ".input", fmt::format("expected an object, got {}", input ? input->kind_name() : "nothing"));
    }
    if (!fields_.has_failed() && name.if_string()->size() > kMaxCalledNameBytes) {
      fields_.fail(path + ".name", fmt::format("over {} bytes", kMaxCalledNameBytes));
    }
    if (fields_.has_failed()) return;
    names_[*id.if_string()] = name;
    calls.push_back(chat_tool_call(id, name, *input));
  }

  void add_result(const std::string& path, const JsonValue& block) {
    const JsonValue& id = string_of(path, block, "tool_use_id");
    if (fields_.has_failed()) return;
    const JsonValue* content = block.find("content");
    JsonValue::Object more = {{"tool_call_id", id}};
    // Some templates name the tool whose result it is.
    if (const auto name = names_.find(*id.if_string()); name != names_.end()) more.emplace_back("name", name->second);
    std::string text = content ? content_text(fields_, path + ".content", *content) : std::string();
    out_.push_back(chat_message("tool", std::move(text), std::move(more)));
  }

  FieldReader& fields_;
  JsonValue::Array& out_;
  std::map<std::string, JsonValue> names_;  // of tools, by the calls' ids
};

void read_messages(FieldReader& fields, ChatPrompt& prompt) {
  if (const JsonValue* system = fields.get("system")) {
    prompt.messages.push_back(chat_message("system", content_text(fields, "system", *system)));
  }
  const JsonValue* messages = fields.get("messages");
  const JsonValue::Array* list = messages ? messages->if_array() : nullptr;
  if (!messages)
    fields.fail("messages", "is missing");
  else if (!list)
    fields.fail_kind("messages", "a list of messages", *messages);
  else if (list->empty())
    fields.fail("messages", "is empty");
  if (fields.has_failed()) return;
  MessageList out(fields, prompt.messages);
  for (size_t i = 0; i < list->size(); ++i) out.add(fmt::format("messages[{}]", i), (*list)[i]);
  if (fields.has_failed()) return;
  // The beginning of the answer, which goes on from there.
  const JsonValue* last_role = list->back().find("role");
  if (*last_role->if_string() != "assistant") return;
  if (prompt.messages.back().find("tool_calls")) {
    fields.fail("messages", "the last one is a call of a tool: its result has to follow");
  }
  prompt.continue_final_message = true;
  prompt.add_generation_prompt = false;
}

void read_choice(FieldReader& fields, ToolUse& use) {
  const JsonValue* choice = fields.get("tool_choice");
  if (!choice) return;
  const JsonValue* type = choice->find("type");
  const std::string* word = type ? type->if_string() : nullptr;
  const JsonValue* name = choice->find("name");
  if (word && *word == "tool" && name && name->if_string()) {
    use.choice = ToolUse::Choice::kNamed;
    use.named = *name->if_string();
  } else if (word && *word == "any") {
    use.choice = ToolUse::Choice::kRequired;
  } else if (!word || (*word != "auto" && *word != "none")) {
    fields.fail("tool_choice", "expected {\"type\":\"auto\"}, \"any\", \"none\", or \"tool\" with a \"name\"");
  } else if (*word == "none") {
    use.choice = ToolUse::Choice::kNone;
  }
  if (const JsonValue* single = choice->find("disable_parallel_tool_use"); single && single->if_bool()) {
    use.is_parallel = !*single->if_bool();
  }
}

void read_tools(FieldReader& fields, ChatPrompt& prompt) {
  ToolUse& use = prompt.tool_use;
  const auto read = [&fields](const std::string& path, const JsonValue& tool) -> std::optional<GivenTool> {
    const JsonValue* type = tool.find("type");
    if (type && !type->is_null() && (!type->if_string() || *type->if_string() != "custom")) {
      fields.fail(path + ".type", "only tools that the client runs, of type \"custom\", are supported");
      return std::nullopt;
    }
    return GivenTool{
        path, "name", "input_schema", tool.find("name"), tool.find("description"), tool.find("input_schema")};
  };
  const std::vector<GivenTool> given = read_tool_list(fields, read, use);
  read_choice(fields, use);
  check_tool_choice(fields, use);
  if (!given.empty() && use.choice != ToolUse::Choice::kNone) prompt.tools = template_tools(given);
}

}  // namespace

Parsed<ChatRequest> parse_messages_request(std::string_view body, const RequestLimits& limits,
                                           const SamplingDefaults& defaults, bool is_count) {
  auto json = parse_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&json)) return *error;
  FieldReader fields(std::get<JsonValue>(json));
  ChatRequest request;
  request.options = read_options(fields, limits, defaults);
  read_stop_strings(fields, "stop_sequences", request.options);
  check_one_answer(fields, request.options);
  if (!is_count && !request.options.max_tokens) fields.fail("max_tokens", "is missing");
  if (request.options.max_tokens == 0u) fields.fail("max_tokens", "expected an integer not below 1, got 0");
  if (const JsonValue* servers = fields.get("mcp_servers");
      servers && servers->if_array() && !servers->if_array()->empty())
    fields.fail("mcp_servers", "is not supported");
  read_messages(fields, request.prompt);
  read_tools(fields, request.prompt);
  check_copies(fields, request.options, 1);
  if (fields.has_failed()) return fields.error();
  return request;
}

}  // namespace tandem::openai
