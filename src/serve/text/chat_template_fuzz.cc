// libFuzzer: any template with any context. The input is the template, a zero byte, and the context as JSON; without
// the zero byte a small chat is the context. Both come from outside, so neither may end the process.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "serve/text/chat_template.h"
#include "serve/text/small_tokenizer_for_test.h"

namespace tandem::text {
namespace {

constexpr std::string_view kChat = R"({"messages":[{"role":"system","content":"a"},{"role":"user","content":
    "b<|im_end|>"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"bos_token":"<|im_start|>",
    "add_generation_prompt":true})";

void render_any(std::string_view source, std::string_view context) {
  static const Tokenizer tokenizer = must(Tokenizer::from_parts(byte_level_parts()));
  Result<ChatTemplate> compiled = ChatTemplate::compile(source);
  if (!compiled) return;
  Result<std::string> text = compiled->render(context, 1700000000);
  if (text) TANDEM_CHECK(is_valid_utf8(*text));
  Result<std::vector<TokenId>> ids = compiled->encode_chat(tokenizer, context, 1700000000);
  if (ids) TANDEM_CHECK(is_valid_utf8(tokenizer.decode(*ids, false)));
}

}  // namespace
}  // namespace tandem::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  const bool has_context = cut != std::string_view::npos;
  tandem::text::render_any(input.substr(0, cut), has_context ? input.substr(cut + 1) : tandem::text::kChat);
  return 0;
}
