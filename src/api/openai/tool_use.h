#pragma once
// Which tools a request's answer may call and how: read from the three APIs' fields, and turned into what the prompt,
// the sampler's grammar and the reader of calls need.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/openai/field_reader.h"
#include "api/openai/request.h"

namespace tandem::openai {

// One tool with its name and JSON schema, both as the client gave them (null: absent); `path` is the tool's place,
// `name_field` and `schema_field` the fields in it, for messages.
struct GivenTool {
  std::string path;  // "tools[0]"
  std::string name_field;
  std::string schema_field;
  const JsonValue* name = nullptr;
  const JsonValue* description = nullptr;
  const JsonValue* parameters = nullptr;
};
// What an API's item of `tools` at `path`, an object, gives; none after a fault that is in `fields`.
using ReadTool = std::function<std::optional<GivenTool>(const std::string& path, const JsonValue& tool)>;
// The list `tools`, checked, into `use`; with some, the answer may call them until tool_choice says otherwise.
std::vector<GivenTool> read_tool_list(FieldReader& fields, const ReadTool& read, ToolUse& use);

// Requires that the choice goes with the tools: a required call needs some, a named one that tool.
void check_tool_choice(FieldReader& fields, const ToolUse& use);

// `tools`, `tool_choice` and `parallel_tool_calls` of chat completions.
ToolUse read_chat_tools(FieldReader& fields);
// "none", "auto" or "required"; false for anything else.
bool read_choice_word(const JsonValue& value, ToolUse& use);

// The list as chat templates know it: [{"type":"function","function":{..}}].
JsonValue template_tools(const std::vector<GivenTool>& tools);

// What a server knows about its model's calls.
struct ToolCallSupport {
  text::ToolCallFormat format = text::ToolCallFormat::kNone;
  std::vector<text::ToolMarker> markers;
  bool has_short_ids = false;  // see ToolCallRules
};

// Sets the reader of calls in `options`, and the grammar of a forced call. 400 where the request has a grammar already.
std::optional<ApiError> apply_tool_use(const ToolUse& use, const ToolCallSupport& support, GenerationOptions& options);

// An id for a call: the same for the same answer, choice and call, and no other's.
std::string tool_call_id(std::string_view prefix, std::string_view reply_id, size_t choice, size_t call, bool is_short);

}  // namespace tandem::openai
