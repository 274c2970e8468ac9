// Any bytes as a request's body: each parser must return, and what it accepts must be inside its limits.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/openai/messages_request.h"
#include "api/openai/messages_shape.h"
#include "api/openai/request.h"
#include "api/openai/responses_request.h"
#include "api/openai/tool_use.h"
#include "base/check.h"

using namespace tandem;
using namespace tandem::openai;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(bytes), size);
  const RequestLimits limits = {1000, 20, 16, 8, 8};
  const auto check_options = [&](const GenerationOptions& options) {
    TANDEM_CHECK(options.num_choices >= 1 && options.num_choices <= limits.max_choices);
    TANDEM_CHECK(options.sampling.num_logprobs <= 20);
    TANDEM_CHECK(options.sampling.temperature >= 0 && options.sampling.temperature <= 2);
    for (TokenId id : options.stop_token_ids) TANDEM_CHECK(id >= 0 && id < 1000);
    for (const auto& bias : options.sampling.logit_bias) TANDEM_CHECK(bias.first >= 0 && bias.first < 1000);
  };
  const auto chat = parse_chat_request(body, limits, {});
  if (const auto* request = std::get_if<ChatRequest>(&chat)) {
    check_options(request->options);
    TANDEM_CHECK(!request->prompt.messages.empty());
  }
  const auto completion = parse_completion_request(body, limits, {});
  if (const auto* request = std::get_if<CompletionRequest>(&completion)) {
    check_options(request->options);
    TANDEM_CHECK(!request->prompts.empty());
  }
  const auto tokenize = parse_tokenize_request(body);
  const auto detokenize = parse_detokenize_request(body, limits);
  for (const bool is_count : {false, true}) {
    const auto messages = parse_messages_request(body, limits, {}, is_count);
    if (const auto* request = std::get_if<ChatRequest>(&messages)) {
      check_options(request->options);
      TANDEM_CHECK(is_count || request->options.max_tokens >= 1u);
      TANDEM_CHECK(!request->prompt.messages.empty());
    } else {
      TANDEM_CHECK(JsonValue::parse(messages_error_json(std::get<ApiError>(messages))));
    }
  }
  const auto responses = parse_responses_request(body, limits, {});
  if (const auto* request = std::get_if<ResponsesRequest>(&responses)) check_options(request->chat.options);
  // A forced call's grammar is JSON as well.
  if (const auto* request = std::get_if<ChatRequest>(&chat)) {
    GenerationOptions options = request->options;
    if (!options.grammar && !apply_tool_use(request->prompt.tool_use, {}, options) && options.grammar) {
      TANDEM_CHECK(JsonValue::parse(options.grammar->source, 2 * JsonValue::kMaxDepth));
    }
  }
  // What goes back to the client must be JSON whatever came in.
  if (const auto* error = std::get_if<ApiError>(&chat)) TANDEM_CHECK(JsonValue::parse(error_json(*error)));
  if (const auto* error = std::get_if<ApiError>(&tokenize)) TANDEM_CHECK(JsonValue::parse(error_json(*error)));
  if (const auto* error = std::get_if<ApiError>(&detokenize)) TANDEM_CHECK(JsonValue::parse(error_json(*error)));
  return 0;
}
