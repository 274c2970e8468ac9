#include "serve/text/chat_template.h"

#include "serve/text/text_handle.h"

namespace tandem::text {

void ChatTemplate::Free::operator()(tt_template* handle) const { tt_template_free(handle); }

Result<ChatTemplate> ChatTemplate::compile(std::string_view source) {
  OutText error;
  tt_template* handle = tt_template_compile(raw_str(source), error.out());
  if (!handle) return error.error(ErrorCode::kCorrupt);
  return ChatTemplate(handle);
}

Result<std::string> ChatTemplate::render(std::string_view context_json, int64_t now) const {
  OutText text;
  OutText error;
  if (!tt_template_render(handle_.get(), raw_str(context_json), now, text.out(), error.out()))
    return error.error(ErrorCode::kInvalidArgument);
  return text.str();
}

Result<std::vector<TokenId>> ChatTemplate::encode_chat(const Tokenizer& tokenizer, std::string_view context_json,
                                                       int64_t now) const {
  OutIds ids;
  OutText error;
  if (!tt_chat_encode(handle_.get(), tokenizer.handle(), raw_str(context_json), now, ids.out(), error.out()))
    return error.error(ErrorCode::kInvalidArgument);
  return ids.take();
}

}  // namespace tandem::text
