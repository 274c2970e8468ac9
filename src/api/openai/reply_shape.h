#pragma once
// ReplyShape: how one API writes an answer, whole or as server-sent events. Reply says what happens and when; a shape
// says what that looks like to the client. One reply, its I/O thread; a shape may remember what it has written.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai/api_error.h"
#include "api/openai/choice.h"
#include "serve/text/tokenizer.h"

namespace tandem::openai {

struct Usage {
  uint64_t num_prompt_tokens = 0;
  uint64_t num_completion_tokens = 0;
  uint64_t num_cached_tokens = 0;
};

// How one choice ended.
struct ChoiceEnd {
  std::string_view reason;  // see Choice::answer_reason
  JsonValue stop_reason;
};

// One choice of a whole answer.
struct WholeChoice {
  std::string text;
  std::vector<text::AnswerPart> parts;  // contents and calls in order, where the answer may call tools
  std::vector<ShownToken> tokens;       // of the echoed prompt too, when that is shown with logprobs
  ChoiceEnd end;
  const std::vector<TokenId>* prompt = nullptr;
  const std::vector<sched::TokenLogprob>* prompt_logprobs = nullptr;  // when asked for
  std::vector<TokenId> ids;  // generated ones
};

enum class ReplyKind : uint8_t { kChat, kCompletion, kMessages, kResponses };

struct ReplyHead {
  bool is_chat = true;  // the prompt is a conversation
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  std::string system_fingerprint;  // of the numerics: equal ones give equal answers. Empty: left out
  ReplyKind kind = ReplyKind::kChat;
  JsonValue::Object echo;  // kResponses: what of the request stands in the answer
};

class ReplyShape {
 public:
  virtual ~ReplyShape() = default;

  virtual std::string whole(const std::vector<WholeChoice>& choices, const Usage& usage) = 0;

  // Events. `prompt`: its ids, in the choice's first event when they were asked for; else null.
  // Before a choice's first token, of conversations.
  virtual std::string role_event(size_t choice, const Usage& usage, const std::vector<TokenId>* prompt) = 0;
  // One token, or the echoed prompt's.
  virtual std::string tokens_event(size_t choice, std::string_view text, std::span<const ShownToken> tokens,
                                   const Usage& usage, const std::vector<TokenId>* prompt) = 0;
  // One token of an answer that may call tools; perhaps no event.
  virtual std::string pieces_events(size_t choice, const ShownToken& token, const Usage& usage) = 0;
  virtual std::string end_event(size_t choice, const ChoiceEnd& end, const Usage& usage) = 0;
  // After the last choice's end.
  virtual std::string last_events(const Usage& usage) = 0;
  // Instead of all that would have followed, the end of the stream included.
  virtual std::string error_events(const ApiError& error) = 0;
  // In a silent stream.
  virtual std::string ping() const { return ": ping\n\n"; }
};

// References outlive the shape.
std::unique_ptr<ReplyShape> make_reply_shape(const text::Tokenizer& tokenizer, const ReplyHead& head,
                                             const GenerationOptions& options);

// The body of an answer that is an error.
std::string error_body(ReplyKind kind, const ApiError& error);

// The same, by the path that was asked for: each API's clients know its own shape, whatever the error.
std::string error_body_at(int status, std::string_view message, std::string_view path);
ReplyKind error_kind_of(std::string_view path);

// "event: NAME", the data, and the empty line. An empty name: the data alone.
std::string sse_event(std::string_view name, std::string_view json);

}  // namespace tandem::openai
