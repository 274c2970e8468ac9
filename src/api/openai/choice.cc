#include "api/openai/choice.h"

#include <algorithm>
#include <utility>

namespace tandem::openai {

size_t num_code_points(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

namespace {

// Content goes into the token's text as well.
void add_pieces(ShownToken& token, std::vector<text::AnswerPiece> pieces) {
  for (text::AnswerPiece& piece : pieces) {
    if (piece.kind == text::AnswerPiece::Kind::kContent) token.text += piece.text;
    token.pieces.push_back(std::move(piece));
  }
}

}  // namespace

Choice::Choice(const text::Tokenizer& tokenizer, const GenerationOptions& options, const std::vector<TokenId>& prompt,
               size_t first_offset)
    : options_(options),
      text_(tokenizer, {options.stops, options.include_stop, options.skip_special}),
      offset_(first_offset) {
  text_.seed(prompt);
  if (options.tool_calls) calls_.emplace(options.tool_calls, options.skip_special);
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
    if (calls_) {
      std::vector<text::AnswerPiece> pieces;
      calls_->push(std::exchange(token.text, {}), pieces);
      add_pieces(token, std::move(pieces));
    }
    if (offset_decoder_) offset_ += num_code_points(offset_decoder_->push(token.id));
  }
  num_tokens_ += delta.tokens.size();
  if (finish_) finish_text(shown);
  return shown;
}

// The end releases what was held back for a stop string, a character or a call that did not come.
void Choice::finish_text(std::vector<ShownToken>& shown) {
  const std::string_view rest = text_.has_stopped() ? std::string_view() : text_.finish();
  std::vector<text::AnswerPiece> pieces;
  if (calls_) {
    calls_->push(rest, pieces);
    ends_inside_call_ = calls_->is_inside_call();
    calls_->finish(pieces);
  }
  if (calls_ ? pieces.empty() : rest.empty()) return;
  if (shown.empty()) shown.push_back({-1, {}, {}, std::nullopt, offset_});
  if (calls_)
    add_pieces(shown.back(), std::move(pieces));
  else
    shown.back().text += rest;
}

std::string Choice::shown_text(const sched::ChoiceDelta& delta, size_t index) {
  const bool is_end = delta.finish && index + 1 == delta.tokens.size();
  // The engine decides where a stop string ends the text, so that both always agree.
  const bool may_stop = is_end && delta.finish->by_stop_rule;
  if (is_end && delta.finish->stop_token && !options_.include_stop) return {};
  std::string text(text_.push(delta.tokens[index], may_stop));
  if (calls_) calls_->note_token(delta.tokens[index], text_.num_decoded_bytes());
  return text;
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

std::string_view Choice::answer_reason() const {
  const bool is_stop = finish_ && finish_->reason == sched::FinishReason::kStop;
  if (!is_stop || !calls_ || !calls_->has_calls()) return finish_reason();
  return ends_inside_call_ && !stop_reason().is_null() ? finish_reason() : "tool_calls";
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
