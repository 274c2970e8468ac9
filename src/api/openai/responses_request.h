#pragma once
// POST /v1/responses, OpenAI's Responses API, read into what a chat is. Source of the fields: its public reference.
//
// Nothing is kept between requests: `store` is accepted and has no effect, previous_response_id is refused.

#include <string_view>

#include "api/openai/request.h"

namespace tandem::openai {

struct ResponsesRequest {
  ChatRequest chat;
  JsonValue::Object echo;  // what of the request stands in the answer
};

Parsed<ResponsesRequest> parse_responses_request(std::string_view body, const RequestLimits& limits,
                                                 const SamplingDefaults& defaults);

}  // namespace tandem::openai
