#include "serve/text/tool_call.h"

namespace tandem::text {
namespace {

std::vector<std::string_view> marker_texts(ToolCallFormat format) {
  switch (format) {
    case ToolCallFormat::kHermes:
      return {"<tool_call>", "</tool_call>"};
    case ToolCallFormat::kLlama3:
      return {"<|python_tag|>"};
    case ToolCallFormat::kMistral:
      return {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
    default:
      return {};
  }
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

void append_piece(std::vector<AnswerPart>& parts, const AnswerPiece& piece) {
  if (piece.kind == AnswerPiece::Kind::kCall) {
    parts.push_back({true, piece.text, {}});
    return;
  }
  const bool is_call = piece.kind == AnswerPiece::Kind::kArguments;
  if (parts.empty() || parts.back().is_call != is_call) parts.push_back({is_call, {}, {}});
  parts.back().text += piece.text;
}

std::optional<ToolCallFormat> tool_call_format_named(std::string_view name) {
  if (name == "hermes") return ToolCallFormat::kHermes;
  if (name == "llama3") return ToolCallFormat::kLlama3;
  if (name == "mistral") return ToolCallFormat::kMistral;
  if (name == "none") return ToolCallFormat::kNone;
  return std::nullopt;
}

ToolCallFormat detect_tool_call_format(std::string_view template_source) {
  if (has(template_source, "[TOOL_CALLS]")) return ToolCallFormat::kMistral;
  if (has(template_source, "<tool_call>")) return ToolCallFormat::kHermes;
  // Llama 3.2's templates know no python_tag, but ask for the calls in these words.
  const bool is_llama = has(template_source, "<|python_tag|>") ||
                        (has(template_source, "<|start_header_id|>") && has(template_source, "\"parameters\""));
  return is_llama ? ToolCallFormat::kLlama3 : ToolCallFormat::kNone;
}

std::vector<ToolMarker> find_tool_markers(const Tokenizer& tokenizer, ToolCallFormat format) {
  std::vector<ToolMarker> markers;
  for (const std::string_view text : marker_texts(format)) {
    const auto id = tokenizer.token_id(text);
    if (!id || !tokenizer.is_control(*id)) continue;
    markers.push_back({*id, std::string(text), !has(tokenizer.decode({*id}, true), text)});
  }
  return markers;
}

}  // namespace tandem::text
