#include "api/openai/reply_shape.h"

#include "api/openai/messages_shape.h"
#include "api/openai/reply_format.h"
#include "api/openai/responses_shape.h"

namespace tandem::openai {

std::unique_ptr<ReplyShape> make_reply_shape(const text::Tokenizer& tokenizer, const ReplyHead& head,
                                             const GenerationOptions& options) {
  switch (head.kind) {
    case ReplyKind::kMessages:
      return std::make_unique<MessagesShape>(head, options);
    case ReplyKind::kResponses:
      return std::make_unique<ResponsesShape>(head, options);
    case ReplyKind::kChat:
    case ReplyKind::kCompletion:
      break;
  }
  return std::make_unique<ReplyFormat>(tokenizer, head, options);
}

std::string error_body(ReplyKind kind, const ApiError& error) {
  return kind == ReplyKind::kMessages ? messages_error_json(error) : error_json(error);
}

ReplyKind error_kind_of(std::string_view path) {
  const bool is_messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
  return is_messages ? ReplyKind::kMessages : ReplyKind::kChat;
}

std::string error_body_at(int status, std::string_view message, std::string_view path) {
  return error_body(error_kind_of(path), error_of_status(status, message));
}

std::string sse_event(std::string_view name, std::string_view json) {
  std::string event;
  if (!name.empty()) event.append("event: ").append(name).append("\n");
  return event.append("data: ").append(json).append("\n\n");
}

}  // namespace tandem::openai
