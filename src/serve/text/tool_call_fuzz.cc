// libFuzzer: any text in any cut as a model's answer with tools. The input is the format's number, how the text is cut,
// and the text. The cut may change nothing, and every piece is whole characters where the text is.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "serve/text/tool_call_parser.h"

namespace tandem::text {
namespace {

std::shared_ptr<const ToolCallRules> rules_for(uint8_t number) {
  auto rules = std::make_shared<ToolCallRules>();
  rules->format = static_cast<ToolCallFormat>(1 + number % 5);
  rules->tools.push_back({"f", std::nullopt});
  rules->only_tool = "f";
  rules->is_parallel = number < 128;
  if (number & 64) rules->markers = {{1, "<tool_call>", true}, {2, "[TOOL_CALLS]", true}};
  return rules;
}

// piece_bytes: 0 is the whole text at once. A byte 0x01 in the text stands for the format's marker token.
std::vector<AnswerPart> parsed(uint8_t number, std::string_view text, size_t piece_bytes) {
  const auto rules = rules_for(number);
  ToolCallParser parser(rules);
  const bool is_valid = is_valid_utf8(text);
  std::vector<AnswerPart> parts;
  std::vector<AnswerPiece> out;
  const auto take = [&] {
    for (const AnswerPiece& piece : out) {
      if (is_valid) TANDEM_CHECK(is_valid_utf8(piece.text));
      append_piece(parts, piece);
    }
    out.clear();
  };
  while (!text.empty()) {
    size_t size = piece_bytes == 0 ? text.size() : std::min(piece_bytes, text.size());
    const bool is_marker = text[0] == '\x01' && !rules->markers.empty();
    if (is_marker) size = 1;
    size = std::min(size, std::max<size_t>(1, text.find('\x01')));
    if (is_marker)
      parser.push(rules->markers[rules->format == ToolCallFormat::kMistral].text, true, out);
    else
      parser.push(text.substr(0, size), false, out);
    text.remove_prefix(size);
    take();
  }
  parser.finish(out);
  take();
  return parts;
}

}  // namespace
}  // namespace tandem::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto whole = tandem::text::parsed(data[0], text, 0);
  TANDEM_CHECK(tandem::text::parsed(data[0], text, 1 + data[1] % 16) == whole);
  bool has_call = false;
  std::string content;
  for (const auto& part : whole) {
    has_call |= part.is_call;
    content += part.text;
  }
  if (!has_call && !(data[0] & 64)) TANDEM_CHECK(content == text);
  return 0;
}
