#pragma once
// Brings chat messages into the one form that templates take: contents are strings, tool arguments objects.

#include <initializer_list>
#include <string>
#include <string_view>

#include "api/openai/field_reader.h"
#include "api/openai/request.h"

namespace tandem::openai {

// Reads messages, tools, tool_choice, documents and the template's variables.
ChatPrompt read_chat_prompt(FieldReader& fields);

// The text of a content: a string as it is, parts of one of the types joined by line breaks, null as nothing.
std::string content_text(FieldReader& fields, const std::string& name, const JsonValue& content,
                         std::initializer_list<std::string_view> part_types = {"text"});

// Clients replay a call's arguments as the text they got; templates want the object.
JsonValue arguments_object(FieldReader& fields, const std::string& name, const JsonValue& arguments);

// One message as templates take it: role and content first.
JsonValue chat_message(std::string role, std::string content, JsonValue::Object more = {});
// A call of an assistant's message.
JsonValue chat_tool_call(const JsonValue& id, const JsonValue& name, JsonValue arguments);

}  // namespace tandem::openai
