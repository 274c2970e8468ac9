#pragma once
// POST /v1/messages, Anthropic's Messages API, read into what a chat is. Source of the fields: its public reference.

#include <string_view>

#include "api/openai/request.h"

namespace tandem::openai {

// Of a tool_result's text, a system's and a message's, blocks are joined by line breaks. `thinking` blocks of earlier
// answers are left out: no template takes them. is_count: for count_tokens, where no max_tokens is needed.
Parsed<ChatRequest> parse_messages_request(std::string_view body, const RequestLimits& limits,
                                           const SamplingDefaults& defaults, bool is_count);

}  // namespace tandem::openai
