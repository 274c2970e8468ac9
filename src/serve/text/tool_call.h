#pragma once
// What an answer that may call tools consists of, and by which rules calls are found in a model's text. Plain data.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/sampling_params.h"
#include "serve/text/tokenizer.h"

namespace tandem::text {

// How a model writes calls. The models' own formats:
enum class ToolCallFormat : uint8_t {
  kNone,
  kHermes,   // <tool_call>{"name":..,"arguments":{..}}</tool_call>, or Qwen3-Coder's <function=NAME><parameter=..>
  kLlama3,   // {"name":..,"parameters":{..}} instead of text, several with ";", perhaps after <|python_tag|>
  kMistral,  // [TOOL_CALLS][{"name":..,"arguments":{..}}], or [TOOL_CALLS]NAME[ARGS]{..} for each
  // What we make a model write when it has to call:
  kJsonList,       // [{"name":..,"parameters":{..}}]
  kJsonArguments,  // the arguments of one tool that is known before
};

struct ToolSpec {
  std::string name;
  std::optional<JsonValue> parameters;  // a JSON schema
};

// A text of the format that is one control token in the vocabulary: only that token counts, for the same letters may
// be what somebody typed.
struct ToolMarker {
  TokenId id = 0;
  std::string text;
  bool is_hidden = false;  // gives no text where special tokens are skipped
};

struct ToolCallRules {
  ToolCallFormat format = ToolCallFormat::kNone;
  std::vector<ToolSpec> tools;
  std::vector<ToolMarker> markers;
  std::string only_tool;    // kJsonArguments: whose arguments the text is
  bool is_parallel = true;  // else calls after the first are left out
  bool has_short_ids = false;  // the model's template takes ids of nine letters and digits only
};

// A part of an answer, in the order of the text.
struct AnswerPiece {
  enum class Kind : uint8_t { kContent, kCall, kArguments };
  Kind kind = Kind::kContent;
  size_t call = 0;   // which; of a call and its arguments
  std::string text;  // content, the tool's name, or a piece of the arguments

  bool operator==(const AnswerPiece&) const = default;
};

// Puts pieces together: contents and calls in order, each whole.
struct AnswerPart {
  bool is_call = false;
  std::string name;
  std::string text;  // content or arguments

  bool operator==(const AnswerPart&) const = default;
};
void append_piece(std::vector<AnswerPart>& parts, const AnswerPiece& piece);

// "hermes", "llama3", "mistral", "none"; nothing for another name.
std::optional<ToolCallFormat> tool_call_format_named(std::string_view name);
// By the texts that a chat template writes around calls; kNone where it knows of none.
ToolCallFormat detect_tool_call_format(std::string_view template_source);
// Those texts of the format that are control tokens here.
std::vector<ToolMarker> find_tool_markers(const Tokenizer& tokenizer, ToolCallFormat format);

}  // namespace tandem::text
