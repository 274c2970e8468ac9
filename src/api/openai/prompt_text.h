#pragma once
// From what a client wrote to prompt ids: templates, control tokens, limits. Any thread.

#include <string>
#include <vector>

#include "api/openai/reply.h"
#include "api/openai/request.h"
#include "serve/text/text_model.h"

namespace tandem::openai {

class PromptText {
 public:
  // parse_special: whether raw prompts may hold control tokens; a request can only say no.
  PromptText(const text::TextModel& model, uint32_t max_model_len, bool parse_special);

  // 400 when the model has no template, or the template refuses the messages.
  Parsed<std::vector<TokenId>> chat_ids(const ChatPrompt& prompt, const GenerationOptions& options) const;
  // Once, before the request's prompts; 400 where the model takes none or it is too long.
  std::optional<ApiError> encode_suffix(CompletionRequest& request) const;
  // `index`: which of the request's prompts, `field`: where they were, for the message; echo: also what is shown of it.
  Parsed<ReplyPrompt> completion_prompt(const CompletionRequest& request, size_t index,
                                        const std::string& field = "prompt") const;
  Parsed<std::vector<TokenId>> text_ids(const std::string& text, bool add_special,
                                        std::optional<bool> parse_special) const;

  // 400 for a text too long for the model whatever its tokens are, before the work of making them.
  std::optional<ApiError> check_text_size(size_t size_bytes) const;
  // 400 for an answer that would show more of its prompts than is good: each answer shows them anew.
  std::optional<ApiError> check_shown_prompts(const std::vector<ReplyPrompt>& prompts, bool echo,
                                              const GenerationOptions& options) const;

  // The tokens of words that must not come, at the beginning of a text and after a space.
  Parsed<std::vector<std::vector<TokenId>>> bad_word_ids(const std::vector<std::string>& words) const;

  // How many tokens may follow, at most what was asked for; or 400 with both numbers.
  Parsed<uint32_t> room_for(size_t num_prompt_tokens, const GenerationOptions& options) const;

 private:
  std::vector<TokenId> infill_ids(const std::vector<TokenId>& suffix, std::vector<TokenId> prompt, bool has_bos) const;
  std::optional<ApiError> cut_after_last_message(const ChatPrompt& prompt, const text::ChatTemplate& chat_template,
                                                 const std::string& context, std::vector<TokenId>& ids) const;
  void set_echo(const TextOrIds& from, bool skip_special, bool has_offsets, ReplyPrompt& prompt) const;

  const text::TextModel& model_;
  uint32_t max_model_len_;
  bool parse_special_;
  size_t longest_token_bytes_ = 1;
  bool adds_end_ = false;  // the model puts its end token behind every text; a prompt is to be continued
};

}  // namespace tandem::openai
