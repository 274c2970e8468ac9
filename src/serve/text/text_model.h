#pragma once
// TextModel: the text side of one model: its tokenizer, chat templates and the texts of BOS and EOS, from a
// Hugging Face directory or from a GGUF file's metadata. Immutable; any thread.

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/text/chat_template.h"
#include "serve/text/tokenizer.h"
#include "serve/text/tool_call.h"

namespace tandem::text {

// The control tokens around what an answer is to go between.
struct InfillTokens {
  TokenId prefix = 0, suffix = 0, middle = 0;
};

struct TextModel {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;  // none: chat requests can not be served without one from elsewhere
  std::optional<ChatTemplate> tool_template;  // a second one for requests with tools, where the model has it
  std::string bos_text;                       // the template's bos_token and eos_token; empty: none
  std::string eos_text;
  std::optional<InfillTokens> infill;         // none: the model cannot fill in
  ToolCallFormat tool_call_format = ToolCallFormat::kNone;  // that the template for tools speaks
  // Why the model's own template could not be compiled; empty: it has none, or it could. Everything but chats works.
  std::string template_error;

  // The template for a request with or without tools; null where the model has none.
  const ChatTemplate* template_for(bool has_tools) const;
};

// Reads tokenizer.json, tokenizer_config.json (may be missing) and the template: chat_template.jinja, else
// tokenizer_config.json's chat_template (a string, or a list with the names "default" and "tool_use"), else
// chat_template.json. Errors name the file.
Result<TextModel> load_tokenizer_dir(const std::string& directory);

// From tokenizer.ggml.* and tokenizer.chat_template (empty: none).
Result<TextModel> text_model_from_parts(const TokenizerParts& parts, std::string_view chat_template);

}  // namespace tandem::text
