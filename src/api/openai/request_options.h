#pragma once
// Reads the fields that chat and plain completions share.

#include "api/openai/field_reader.h"
#include "api/openai/request.h"

namespace tandem::openai {

// The fields that generation_config.json has as well, in the ranges that requests have.
SamplingDefaults read_defaults(FieldReader& fields, const SamplingDefaults& otherwise);

GenerationOptions read_options(FieldReader& fields, const RequestLimits& limits, const SamplingDefaults& defaults);

// Those of them that say how prompts become tokens and how they are queued.
GenerationOptions read_prompt_options(FieldReader& fields);

// Adds the strings of the field `name` to those that end an answer.
void read_stop_strings(FieldReader& fields, std::string_view name, GenerationOptions& options);

// For APIs that know only one answer: n and best_of may be 1.
void check_one_answer(FieldReader& fields, const GenerationOptions& options);

// Refuses lists and strings too long to be kept once per prompt and answer.
void check_copies(FieldReader& fields, const GenerationOptions& options, size_t num_prompts);

// The body as an object, or 400.
Parsed<JsonValue> parse_body(std::string_view body);

}  // namespace tandem::openai
