#pragma once
// Brings chat messages into the one form that templates take: contents are strings, tool arguments objects.

#include "api/openai/field_reader.h"
#include "api/openai/request.h"

namespace tandem::openai {

// Reads messages, tools, tool_choice, documents and the template's variables.
ChatPrompt read_chat_prompt(FieldReader& fields);

}  // namespace tandem::openai
