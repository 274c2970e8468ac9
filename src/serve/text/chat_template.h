#pragma once
// ChatTemplate: a model's Jinja template, rendered as the Hugging Face library renders it. Immutable; any
// number of threads may use one at once. A render is bounded: a template that loops on ends with an error.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/text/tokenizer.h"

extern "C" {
struct tt_template;
}

namespace tandem::text {

class ChatTemplate {
 public:
  static Result<ChatTemplate> compile(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept = default;
  ChatTemplate& operator=(ChatTemplate&&) noexcept = default;

  // context_json: an object with messages (an array), tools, documents, add_generation_prompt, bos_token,
  // eos_token and any further variable. now: Unix seconds for strftime_now in the local time zone; negative
  // takes the clock. A template's own raise_exception gives its message as the error, kInvalidArgument.
  Result<std::string> render(std::string_view context_json, int64_t now = -1) const;

  // Renders and tokenizes in one step, such that nothing within messages, tools or documents becomes a
  // control token. The way to turn a chat request into ids; adds no BOS besides the template's own.
  Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, std::string_view context_json,
                                           int64_t now = -1) const;

 private:
  struct Free {
    void operator()(tt_template* handle) const;
  };
  explicit ChatTemplate(tt_template* handle) : handle_(handle) {}

  std::unique_ptr<tt_template, Free> handle_;
};

}  // namespace tandem::text
