#pragma once
// Conversation: one person, one model, in the terminal: asks the engine and writes the answer as it comes.

#include <atomic>
#include <string>

#include "api/openai/prompt_text.h"
#include "apps/wiring.h"
#include "base/options.h"

namespace tandem::apps {

struct AnswerEnd {
  std::string text;
  uint32_t num_prompt_tokens = 0;
  uint32_t num_tokens = 0;
  double first_token_s = 0;  // from the question
  double decode_s = 0;       // from the first token to the last
  bool is_cut = false;       // max-tokens, or no room left
};

// Owns the engine, borrows the rest. One thread.
class Conversation {
 public:
  Conversation(const LoadedModel& model, const OptionValues& values, const std::string& name);

  // Adds a user's message, and the answer once it is complete. `interrupted`: set by a signal handler; then the
  // answer is broken off, and the part that came is kept. Writes to stdout.
  Result<AnswerEnd> ask(const std::string& text, const std::atomic<bool>& interrupted);

  // Continues `text` without a template; nothing is remembered.
  Result<AnswerEnd> continue_text(const std::string& text, const std::atomic<bool>& interrupted);

 private:
  Result<AnswerEnd> answer(std::vector<TokenId> prompt, const std::atomic<bool>& interrupted);

  const LoadedModel& model_;
  SamplingParams sampling_;
  uint32_t max_tokens_ = 0;  // 0: the room left
  openai::PromptText prompt_text_;
  JsonValue::Array messages_;
  MetricRegistry registry_;
  SystemClock clock_;
  engine::Engine engine_;
};

}  // namespace tandem::apps
