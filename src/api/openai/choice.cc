#include "api/openai/choice.h"

#include <algorithm>

namespace tandem::openai {

size_t num_code_points(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

Choice::Choice(const text::Tokenizer& tokenizer, const GenerationOptions& options, const std::vector<TokenId>& prompt,
               size_t first_offset)
    : options_(options),
      text_(tokenizer, {options.stops, options.include_stop, options.skip_special}),
      offset_(first_offset) {
  text_.seed(prompt);
  if (options.sampling.num_logprobs >= 0) {
    offset_decoder_.emplace(tokenizer, options.skip_special);
    offset_decoder_->seed(prompt);
  }
}

std::vector<ShownToken> Choice::take(sched::ChoiceDelta delta) {
  std::vector<ShownToken> shown;
  if (is_finished()) return shown;
  finish_ = delta.finish;
  shown.reserve(delta.tokens.size());
  for (size_t i = 0; i < delta.tokens.size(); ++i) {
    ShownToken& token = shown.emplace_back();
    token.id = delta.tokens[i];
    if (i < delta.logprobs.size()) token.logprob = std::move(delta.logprobs[i]);
    token.text_offset = offset_;
    token.text = shown_text(delta, i);
    if (offset_decoder_) offset_ += num_code_points(offset_decoder_->push(token.id));
  }
  num_tokens_ += delta.tokens.size();
  // The end releases what was held back for a stop string or a character that did not come.
  if (finish_ && !text_.has_stopped()) {
    const std::string_view rest = text_.finish();
    if (!rest.empty() && shown.empty()) shown.push_back({-1, {}, std::nullopt, offset_});
    if (!rest.empty()) shown.back().text += rest;
  }
  return shown;
}

std::string Choice::shown_text(const sched::ChoiceDelta& delta, size_t index) {
  const bool is_end = delta.finish && index + 1 == delta.tokens.size();
  // The engine decides where a stop string ends the text, so that both always agree.
  const bool may_stop = is_end && delta.finish->by_stop_rule;
  if (is_end && delta.finish->stop_token && !options_.include_stop) return {};
  return std::string(text_.push(delta.tokens[index], may_stop));
}

std::string_view Choice::finish_reason() const {
  if (!finish_) return "abort";
  switch (finish_->reason) {
    case sched::FinishReason::kStop:
      return "stop";
    case sched::FinishReason::kLength:
      return "length";
    case sched::FinishReason::kCancelled:
      return "abort";
  }
  return "abort";
}

JsonValue Choice::stop_reason() const {
  if (!finish_ || finish_->reason != sched::FinishReason::kStop) return {};
  if (finish_->by_stop_rule) return JsonValue(std::string(text_.stop()));
  const auto& asked = options_.stop_token_ids;
  const bool is_asked =
      finish_->stop_token && std::find(asked.begin(), asked.end(), *finish_->stop_token) != asked.end();
  return is_asked ? JsonValue(int64_t{*finish_->stop_token}) : JsonValue();
}

}  // namespace tandem::openai
