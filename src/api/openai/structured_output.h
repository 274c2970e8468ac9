#pragma once
// Reads what an answer has to fit: response_format (OpenAI's), structured_outputs and guided_* (vLLM's).
//
// At most one kind; a fault names the field. Whether a grammar compiles is for who has a tokenizer to say.

#include "api/openai/field_reader.h"
#include "api/openai/request.h"

namespace tandem::openai {

// Sets `grammar` and `grammar_param`, when the request asks for something.
void read_structured_output(FieldReader& fields, GenerationOptions& options);

}  // namespace tandem::openai
