#include "api/openai/responses_request.h"

#include <fmt/format.h>

#include "api/openai/chat_messages.h"
#include "api/openai/request_options.h"
#include "api/openai/tool_use.h"

namespace tandem::openai {
namespace {

// Turns input items into a chat's messages: calls that follow an assistant's text belong to its message.
class ItemList {
 public:
  ItemList(FieldReader& fields, JsonValue::Array& out) : fields_(fields), out_(out) {}

  void add(const std::string& path, const JsonValue& item) {
    const JsonValue* type = item.find("type");
    const std::string* given = type ? type->if_string() : nullptr;
    const std::string word = given ? *given : "message";
    if (!item.if_object())
      fields_.fail_kind(path, "an object", item);
    else if (word == "message")
      add_message(path, item);
    else if (word == "function_call")
      add_call(path, item);
    else if (word == "function_call_output")
      add_output(path, item);
    else if (word != "reasoning")  // of an earlier answer: no template takes it
      fields_.fail(path + ".type", fmt::format("items of type \"{}\" are not supported", word));
  }
  void finish() {
    JsonValue::Object more;
    if (!calls_.empty()) more.emplace_back("tool_calls", JsonValue(std::move(calls_)));
    if (has_open_) out_.push_back(chat_message("assistant", std::move(text_), std::move(more)));
    has_open_ = false;
    text_.clear();
    calls_.clear();
  }

 private:
  void add_message(const std::string& path, const JsonValue& item) {
    const JsonValue* role = item.find("role");
    const JsonValue* content = item.find("content");
    if (!role || !role->if_string())
      fields_.fail(path + ".role", fmt::format("expected a string, got {}", role ? role->kind_name() : "nothing"));
    else if (!content || content->is_null())
      fields_.fail(path + ".content", "is missing");
    if (fields_.has_failed()) return;
    const std::string& word = *role->if_string();
    std::string text = content_text(fields_, path + ".content", *content, {"input_text", "output_text", "text"});
    finish();
    if (word == "assistant") {
      has_open_ = true;
      text_ = std::move(text);
      return;
    }
    out_.push_back(chat_message(word == "developer" ? "system" : word, std::move(text)));
  }

  // The member, which has to be a string.
  const JsonValue* string_of(const std::string& path, const JsonValue& item, std::string_view name) {
    const JsonValue* value = item.find(name);
    if (!value || !value->if_string()) {
      fields_.fail(fmt::format("{}.{}", path, name),
                   fmt::format("expected a string, got {}", value ? value->kind_name() : "nothing"));
    }
    return value;
  }

  void add_call(const std::string& path, const JsonValue& item) {
    const JsonValue* id = string_of(path, item, "call_id");
    const JsonValue* name = string_of(path, item, "name");
    const JsonValue* arguments = string_of(path, item, "arguments");
    if (fields_.has_failed()) return;
    JsonValue object = arguments_object(fields_, path + ".arguments", *arguments);
    has_open_ = true;
    calls_.push_back(chat_tool_call(*id, *name, std::move(object)));
  }

  void add_output(const std::string& path, const JsonValue& item) {
    const JsonValue* id = string_of(path, item, "call_id");
    const JsonValue* output = item.find("output");
    if (!output || output->is_null()) fields_.fail(path + ".output", "is missing");
    if (fields_.has_failed()) return;
    std::string text = content_text(fields_, path + ".output", *output, {"input_text", "output_text", "text"});
    finish();
    out_.push_back(chat_message("tool", std::move(text), {{"tool_call_id", *id}}));
  }

  FieldReader& fields_;
  JsonValue::Array& out_;
  bool has_open_ = false;  // an assistant's message that may get calls yet
  std::string text_;
  JsonValue::Array calls_;
};

void read_input(FieldReader& fields, ChatPrompt& prompt) {
  const std::string instructions = fields.text("instructions");
  if (!instructions.empty()) prompt.messages.push_back(chat_message("system", instructions));
  const JsonValue* input = fields.get("input");
  if (!input) {
    fields.fail("input", "is missing");
  } else if (const std::string* text = input->if_string()) {
    prompt.messages.push_back(chat_message("user", *text));
  } else if (const JsonValue::Array* list = input->if_array()) {
    if (list->empty()) fields.fail("input", "is empty");
    ItemList items(fields, prompt.messages);
    for (size_t i = 0; i < list->size() && !fields.has_failed(); ++i)
      items.add(fmt::format("input[{}]", i), (*list)[i]);
    items.finish();
  } else {
    fields.fail_kind("input", "a string or a list of items", *input);
  }
}

void read_choice(FieldReader& fields, ToolUse& use) {
  const JsonValue* choice = fields.get("tool_choice");
  if (!choice || read_choice_word(*choice, use)) return;
  const JsonValue* type = choice->find("type");
  const JsonValue* name = choice->find("name");
  if (type && type->if_string() && *type->if_string() == "function" && name && name->if_string()) {
    use.choice = ToolUse::Choice::kNamed;
    use.named = *name->if_string();
  } else {
    fields.fail("tool_choice", "expected \"none\", \"auto\", \"required\" or {\"type\":\"function\",\"name\":NAME}");
  }
}

void read_tools(FieldReader& fields, ChatPrompt& prompt) {
  ToolUse& use = prompt.tool_use;
  use.is_parallel = fields.flag("parallel_tool_calls", true);
  const auto read = [&fields](const std::string& path, const JsonValue& tool) -> std::optional<GivenTool> {
    const JsonValue* type = tool.find("type");
    if (!type || !type->if_string() || *type->if_string() != "function") {
      fields.fail(path + ".type", "only tools of type \"function\" are supported");
      return std::nullopt;
    }
    return GivenTool{path, "name", "parameters", tool.find("name"), tool.find("description"), tool.find("parameters")};
  };
  const std::vector<GivenTool> given = read_tool_list(fields, read, use);
  read_choice(fields, use);
  check_tool_choice(fields, use);
  if (!given.empty() && use.choice != ToolUse::Choice::kNone) prompt.tools = template_tools(given);
}

// text.format.
void read_text_format(FieldReader& fields, GenerationOptions& options) {
  const JsonValue* text = fields.get("text");
  if (text && !text->if_object()) fields.fail_kind("text", "an object", *text);
  const JsonValue* format = text ? text->find("format") : nullptr;
  if (!format || format->is_null()) return;
  const JsonValue* type = format->find("type");
  const std::string* word = type ? type->if_string() : nullptr;
  const JsonValue* schema = format->find("schema");
  if (options.grammar) {
    fields.fail("text.format", fmt::format("asks for one form of answer and {} for another", options.grammar_param));
  } else if (!word) {
    fields.fail_kind("text.format", "an object with a string \"type\"", *format);
  } else if (*word == "json_object") {
    options.grammar = sched::Grammar{sched::GrammarKind::kJsonSchema, R"({"type":"object"})"};
    options.grammar_param = "text.format";
  } else if (*word == "json_schema") {
    if (!schema || !schema->if_object())
      fields.fail("text.format.schema",
                  fmt::format("expected an object, got {}", schema ? schema->kind_name() : "nothing"));
    else
      options.grammar = sched::Grammar{sched::GrammarKind::kJsonSchema, JsonWriter().value(*schema).take()};
    options.grammar_param = "text.format.schema";
  } else if (*word != "text") {
    fields.fail("text.format.type", fmt::format("\"{}\" is not \"text\", \"json_object\" or \"json_schema\"", *word));
  }
  if (options.grammar) options.grammar_param = "text.format";
}

// What would need something kept of earlier requests, or what we do not do.
void refuse_what_we_do_not_do(FieldReader& fields) {
  for (const std::string_view name : {"previous_response_id", "conversation"}) {
    if (fields.get(name)) {
      fields.fail(name, "is not supported: no answer is kept here. Send the whole conversation as input");
    }
  }
  if (fields.get("prompt")) fields.fail("prompt", "is not supported: no prompt is kept here");
  if (fields.flag("background", false)) fields.fail("background", "is not supported");
  if (fields.integer("top_logprobs", 0, 0, 20) > 0) fields.fail("top_logprobs", "is not supported here");
}

JsonValue::Object echo_of(FieldReader& fields, const ChatRequest& request) {
  const auto word = [](const char* text) { return JsonValue(std::string(text)); };
  const auto given_or = [&](std::string_view name, JsonValue otherwise) {
    const JsonValue* value = fields.get(name);
    return value ? *value : std::move(otherwise);
  };
  const auto shortest = [](float number) { return JsonValue::parse(JsonWriter().number(number).take()).value(); };
  const auto max_tokens = request.options.max_tokens;
  JsonValue::Object echo;
  echo.emplace_back("instructions", given_or("instructions", {}));
  echo.emplace_back("max_output_tokens", max_tokens ? JsonValue(*max_tokens) : JsonValue());
  echo.emplace_back("metadata", given_or("metadata", JsonValue(JsonValue::Object{})));
  echo.emplace_back("parallel_tool_calls", JsonValue(request.prompt.tool_use.is_parallel));
  echo.emplace_back("previous_response_id", JsonValue());
  echo.emplace_back("reasoning", given_or("reasoning", JsonValue(JsonValue::Object{})));
  echo.emplace_back("service_tier", word("default"));
  echo.emplace_back("store", JsonValue(false));
  echo.emplace_back("temperature", shortest(request.options.sampling.temperature));
  echo.emplace_back(
      "text",
      given_or("text", JsonValue(JsonValue::Object{{"format", JsonValue(JsonValue::Object{{"type", word("text")}})}})));
  echo.emplace_back("tool_choice", given_or("tool_choice", word("auto")));
  echo.emplace_back("tools", given_or("tools", JsonValue(JsonValue::Array{})));
  echo.emplace_back("top_p", shortest(request.options.sampling.top_p));
  echo.emplace_back("truncation", given_or("truncation", word("disabled")));
  return echo;
}

}  // namespace

Parsed<ResponsesRequest> parse_responses_request(std::string_view body, const RequestLimits& limits,
                                                 const SamplingDefaults& defaults) {
  auto json = parse_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&json)) return *error;
  FieldReader fields(std::get<JsonValue>(json));
  ResponsesRequest request;
  GenerationOptions& options = request.chat.options;
  refuse_what_we_do_not_do(fields);
  options = read_options(fields, limits, defaults);
  check_one_answer(fields, options);
  options.max_tokens = fields.optional_unsigned("max_output_tokens", 1);
  read_text_format(fields, options);
  read_input(fields, request.chat.prompt);
  read_tools(fields, request.chat.prompt);
  if (const JsonValue* reasoning = fields.get("reasoning")) {
    const JsonValue* effort = reasoning->find("effort");
    if (effort && effort->if_string()) request.chat.prompt.template_variables.emplace_back("reasoning_effort", *effort);
  }
  check_copies(fields, options, 1);
  request.echo = echo_of(fields, request.chat);
  if (fields.has_failed()) return fields.error();
  return request;
}

}  // namespace tandem::openai
