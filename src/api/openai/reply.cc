#include "api/openai/reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/log.h"
#include "serve/text/text_stop_rule.h"

namespace tandem::openai {

namespace {

constexpr uint64_t kSeedStride = 0x9E3779B97F4A7C15;  // seeds of different requests are far from each other's strides

double mean_logprob(const std::vector<ShownToken>& tokens, size_t num_echoed) {
  double sum = 0;
  size_t count = 0;
  for (size_t i = num_echoed; i < tokens.size(); ++i) {
    if (!tokens[i].logprob) continue;
    sum += tokens[i].logprob->logprob;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

}  // namespace

// Hands updates from the engine thread to the I/O thread.
class Reply::Sink final : public sched::TokenSink {
 public:
  Sink(std::shared_ptr<Reply> reply, size_t prompt) : reply_(std::move(reply)), prompt_(prompt) {}

  void publish(sched::Update update) override {
    auto kept = std::make_shared<sched::Update>(std::move(update));
    reply_->writer_->post([reply = reply_, prompt = prompt_, kept] { reply->on_update(prompt, std::move(*kept)); });
  }

 private:
  std::shared_ptr<Reply> reply_;
  size_t prompt_;
};

Reply::Reply(ReplyContext context, ReplySetup setup, std::shared_ptr<http::ResponseWriter> writer)
    : context_(context),
      setup_(std::move(setup)),
      shape_(make_reply_shape(context_.tokenizer, setup_.head, setup_.options)),
      writer_(std::move(writer)) {
  times_.arrival_ns = setup_.arrival_ns;
  num_cached_.resize(setup_.prompts.size());
  prompt_logprobs_.resize(setup_.prompts.size());
  for (const ReplyPrompt& prompt : setup_.prompts) {
    usage_.num_prompt_tokens += prompt.ids.size();
    const size_t first_offset = num_code_points(prompt.echo_text);
    for (uint32_t i = 0; i < setup_.options.num_choices; ++i) {
      choices_.push_back(
          {Choice(context_.tokenizer, setup_.options, prompt.ids, first_offset), {}, {}, {}, false, 0, {}});
    }
  }
}

sched::Request Reply::request_for(size_t prompt) const {
  const GenerationOptions& options = setup_.options;
  sched::Request request;
  request.client_id = setup_.request_id;
  request.tenant = setup_.tenant;
  request.trace = setup_.trace;
  if (prompt > 0) request.trace.span = new_span_id();
  request.prompt = setup_.prompts[prompt].ids;
  request.sampling = options.sampling;
  // The same prompt twice in a list gets two answers, but for a seed that the client has chosen.
  request.sampling.seed = setup_.seed + (options.seed ? 0 : prompt * kSeedStride);
  // The best of more are chosen by it, whether or not it is shown.
  const bool chooses = options.num_choices > options.num_shown;
  request.sampling.num_logprobs = std::max(options.sampling.num_logprobs, chooses ? 0 : -1);
  request.num_choices = options.num_choices;
  request.max_tokens = setup_.max_tokens[prompt];
  request.min_tokens = static_cast<uint32_t>(std::min<uint64_t>(options.min_tokens, request.max_tokens));
  request.ignore_eos = options.ignore_eos;
  request.stop_token_ids = options.stop_token_ids;
  request.prompt_logprobs = options.prompt_logprobs;
  if (shows_echo_tokens()) request.prompt_logprobs = std::max(request.prompt_logprobs, options.sampling.num_logprobs);
  if (request.max_tokens == 0) request.prompt_logprobs = std::max(request.prompt_logprobs, 0);
  request.priority = options.priority;
  if (options.deadline_ms > 0) {
    request.deadline_ns = setup_.arrival_ns + static_cast<int64_t>(options.deadline_ms * 1e6);
  }
  request.cache_salt = options.cache_salt;
  if (!options.stops.empty()) {
    request.stop_strings = options.stops;
    request.shows_special = !options.skip_special;
    const text::OutputTextOptions shown = {options.stops, options.include_stop, options.skip_special};
    request.make_stop_rule = [&tokenizer = context_.tokenizer, shown, ids = request.prompt] {
      return std::make_unique<text::TextStopRule>(tokenizer, shown, ids);
    };
  }
  if (options.grammar) {
    request.grammar = options.grammar;
    request.make_token_mask = setup_.make_masks();
  }
  return request;
}

void Reply::start() {
  const auto self = shared_from_this();
  for (size_t i = 0; i < setup_.prompts.size(); ++i) {
    auto submitted = context_.generator.submit(request_for(i), std::make_shared<Sink>(self, i));
    if (!submitted) {
      fail(api_error(submitted.error(), context_.generator.load().retry_after_s), {});
      return;
    }
    requests_.push_back(*submitted);
    context_.metrics.observe_start(setup_.prompts[i].ids.size(), setup_.options.num_shown, setup_.max_tokens[i]);
  }
  is_started_ = true;
  if (setup_.options.is_stream) {
    // Some proxies hold events back unless told not to.
    const http::Headers headers = {{"Content-Type", "text/event-stream"},
                                   {"Cache-Control", "no-cache"},
                                   {"X-Accel-Buffering", "no"},
                                   {"X-Request-Id", setup_.request_id}};
    writer_->begin_stream(200, headers, {context_.ping_interval_ms, shape_->ping()});
  }
  writer_->on_disconnect([weak = weak_from_this()] {
    const auto reply = weak.lock();
    if (!reply || reply->is_over_) return;
    reply->cancel_all();
    for (const ChoiceState& state : reply->choices_) {
      if (state.choice.is_finished()) continue;
      reply->context_.metrics.observe_choice_end("abort", state.choice.num_tokens(), state.times);
    }
    reply->finish(499);
  });
  for (auto& [prompt, update] : std::exchange(early_, {})) on_update(prompt, std::move(update));
}

void Reply::on_update(size_t prompt, sched::Update update) {
  if (is_over_) return;
  if (!is_started_) {
    early_.emplace_back(prompt, std::move(update));
    return;
  }
  // Each update says it anew.
  usage_.num_cached_tokens += update.num_cached_tokens - std::exchange(num_cached_[prompt], update.num_cached_tokens);
  std::string events;
  if (update.error) {
    fail(api_error(*update.error, context_.generator.load().retry_after_s), {});
    return;
  }
  if (setup_.options.prompt_logprobs >= 0 && !update.prompt_logprobs.empty()) {
    prompt_logprobs_[prompt] = update.prompt_logprobs;
  }
  const bool has_begun = choices_[prompt * setup_.options.num_choices].has_begun;
  const bool brings_echo = !update.prompt_logprobs.empty() || !update.deltas.empty();  // one token has no logprobs
  if (shows_echo_tokens() && !has_begun && brings_echo) take_echo(prompt, std::move(update.prompt_logprobs), events);
  bool is_cancelled = false;
  for (sched::ChoiceDelta& delta : update.deltas) {
    if (delta.choice >= setup_.options.num_choices) continue;
    is_cancelled |= delta.finish && delta.finish->reason == sched::FinishReason::kCancelled;
    take_delta(prompt, std::move(delta), events);
  }
  if (is_cancelled) {  // not by us: we listen no more after we have cancelled
    fail(api_error({ErrorCode::kUnavailable, "the server ended the request"}, 1), std::move(events));
    return;
  }
  if (update.is_last) ++num_prompts_done_;
  if (num_prompts_done_ == setup_.prompts.size())
    complete(std::move(events));
  else if (setup_.options.is_stream && !events.empty())
    writer_->write(std::move(events));
}

void Reply::take_delta(size_t prompt, sched::ChoiceDelta delta, std::string& events) {
  const size_t index = prompt * setup_.options.num_choices + delta.choice;
  ChoiceState& state = choices_[index];
  if (state.choice.is_finished()) return;
  const bool is_first = state.choice.num_tokens() == 0;
  const size_t num_tokens = delta.tokens.size();
  std::vector<ShownToken> shown = state.choice.take(std::move(delta));
  usage_.num_completion_tokens += num_tokens;
  if (num_tokens > 0) measure(state, is_first);
  begin_choice(prompt, index, events);
  show(index, std::move(shown), events);
  if (!state.choice.is_finished()) return;
  context_.metrics.observe_choice_end(state.choice.finish_reason(), state.choice.num_tokens(), state.times);
  if (setup_.options.is_stream && !state.choice.is_cancelled()) {
    events += shape_->end_event(index, {state.choice.answer_reason(), state.choice.stop_reason()}, usage_);
  }
}

// The first event of a choice goes out together with its first token, not before: load tools take the first one with
// a choice in it for the first token.
void Reply::begin_choice(size_t prompt, size_t index, std::string& events) {
  ChoiceState& state = choices_[index];
  if (state.has_begun) return;
  state.has_begun = true;
  const ReplyPrompt& from = setup_.prompts[prompt];
  const std::vector<TokenId>* ids = setup_.options.return_token_ids ? &from.ids : nullptr;
  if (!setup_.options.is_stream) {
    state.text = from.echo_text + state.text;
  } else if (setup_.head.is_chat) {
    events += shape_->role_event(index, usage_, ids);
  } else if (setup_.echo) {
    events += shape_->tokens_event(index, from.echo_text, state.tokens, usage_, ids);
    state.tokens.clear();
  } else if (ids) {
    events += shape_->tokens_event(index, {}, {}, usage_, ids);
  }
}

void Reply::take_echo(size_t prompt, std::vector<sched::TokenLogprob> logprobs, std::string& events) {
  const ReplyPrompt& from = setup_.prompts[prompt];
  std::vector<ShownToken> shown(from.ids.size());
  for (size_t i = 0; i < shown.size(); ++i) {
    shown[i].id = from.ids[i];
    shown[i].text_offset = from.offsets[i];
    if (i == 0 || i - 1 >= logprobs.size()) continue;
    sched::TokenLogprob& logprob = shown[i].logprob.emplace(std::move(logprobs[i - 1]));
    // There are more when prompt_logprobs asked for more.
    const auto num_top = static_cast<size_t>(setup_.options.sampling.num_logprobs);
    if (logprob.top.size() > num_top) logprob.top.resize(num_top);
  }
  const size_t first = prompt * setup_.options.num_choices;
  for (size_t i = 0; i < setup_.options.num_choices; ++i) {
    choices_[first + i].tokens = shown;
    begin_choice(prompt, first + i, events);
  }
}

void Reply::show(size_t index, std::vector<ShownToken> shown, std::string& events) {
  ChoiceState& state = choices_[index];
  const GenerationOptions& options = setup_.options;
  for (ShownToken& token : shown) {
    if (!options.is_stream) {
      state.text += token.text;
      for (const text::AnswerPiece& piece : token.pieces) append_piece(state.parts, piece);
      state.tokens.push_back(std::move(token));
      continue;
    }
    if (options.tool_calls) {
      events += shape_->pieces_events(index, token, usage_);
      continue;
    }
    // The token that ended the choice need not be shown by itself.
    const bool is_silent_end = state.choice.is_finished() && &token == &shown.back() && token.text.empty();
    if (is_silent_end && !token.logprob && !options.return_token_ids) continue;
    events += shape_->tokens_event(index, token.text, {&token, 1}, usage_, nullptr);
  }
}

void Reply::measure(ChoiceState& state, bool is_first) {
  const int64_t now_ns = context_.clock.now_ns();
  times_.last_token_ns = now_ns;
  if (times_.first_token_ns == 0) {
    times_.first_token_ns = now_ns;
    context_.metrics.observe_first_token(times_);
  }
  if (is_first)
    state.times.first_token_ns = now_ns;
  else
    context_.metrics.observe_gap(static_cast<double>(now_ns - state.last_token_ns) * 1e-9);
  state.last_token_ns = state.times.last_token_ns = now_ns;
}

void Reply::complete(std::string events) {
  const bool is_whole = std::all_of(choices_.begin(), choices_.end(),
                                    [](const ChoiceState& state) { return state.choice.is_finished(); });
  if (!is_whole) {
    fail(api_error({ErrorCode::kInternal, "a choice has no end"}, 0), std::move(events));
    return;
  }
  if (setup_.options.is_stream) {
    events += shape_->last_events(usage_);
    writer_->write(std::move(events));
    writer_->end();
  } else {
    send_whole();
  }
  uint64_t num_longest = 0;
  for (const ChoiceState& state : choices_) num_longest = std::max(num_longest, state.choice.num_tokens());
  context_.metrics.observe_request_end(times_, num_longest, context_.clock.now_ns());
  finish(200);
}

// With best_of, of each prompt the n choices of the highest mean logprob, best first.
std::vector<size_t> Reply::shown_choices() const {
  const size_t num_choices = setup_.options.num_choices, num_shown = setup_.options.num_shown;
  std::vector<size_t> shown;
  std::vector<double> scores;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const size_t num_echoed = shows_echo_tokens() ? setup_.prompts[i / num_choices].ids.size() : 0;
    scores.push_back(num_shown < num_choices ? mean_logprob(choices_[i].tokens, num_echoed) : 0);
  }
  for (size_t first = 0; first < choices_.size(); first += num_choices) {
    std::vector<size_t> order(num_choices);
    std::iota(order.begin(), order.end(), first);
    std::ranges::stable_sort(order, std::greater(), [&scores](size_t i) { return scores[i]; });
    shown.insert(shown.end(), order.begin(), order.begin() + static_cast<ptrdiff_t>(num_shown));
  }
  return shown;
}

void Reply::send_whole() {
  std::vector<WholeChoice> wholes;
  for (const size_t i : shown_choices()) {
    ChoiceState& state = choices_[i];
    const size_t prompt = i / setup_.options.num_choices;
    WholeChoice& whole = wholes.emplace_back();
    whole.text = std::move(state.text);
    whole.parts = std::move(state.parts);
    whole.prompt = &setup_.prompts[prompt].ids;
    if (setup_.options.prompt_logprobs >= 0) whole.prompt_logprobs = &prompt_logprobs_[prompt];
    const size_t num_echoed = shows_echo_tokens() ? whole.prompt->size() : 0;
    for (size_t t = num_echoed; t < state.tokens.size(); ++t) {
      if (state.tokens[t].id >= 0) whole.ids.push_back(state.tokens[t].id);
    }
    whole.tokens = std::move(state.tokens);
    whole.end = {state.choice.answer_reason(), state.choice.stop_reason()};
  }
  writer_->send(200, {{"Content-Type", "application/json"}, {"X-Request-Id", setup_.request_id}},
                shape_->whole(wholes, usage_));
}

void Reply::fail(const ApiError& error, std::string events) {
  cancel_all();
  if (is_started_ && setup_.options.is_stream) {
    events += shape_->error_events(error);
    writer_->write(std::move(events));
    writer_->end();
  } else {
    http::Headers headers = error_headers(error);
    headers.emplace_back("X-Request-Id", setup_.request_id);
    writer_->send(error.status, std::move(headers), error_body(setup_.head.kind, error));
  }
  finish(error.status);
}

void Reply::cancel_all() {
  for (sched::RequestId request : requests_) context_.generator.cancel(request);
}

void Reply::finish(int status) {
  is_over_ = true;
  setup_.ticket.reset();
  context_.metrics.count_answer(setup_.endpoint, status);
  const double total_ms = static_cast<double>(context_.clock.now_ns() - times_.arrival_ns) * 1e-6;
  const double first_ms = static_cast<double>(times_.first_token_ns - times_.arrival_ns) * 1e-6;
  log_line(status < 500 ? LogLevel::kInfo : LogLevel::kWarning, "api/openai", "request",
           {{"id", setup_.request_id},
            {"trace", trace_id_hex(setup_.trace)},
            {"endpoint", setup_.endpoint},
            {"status", std::to_string(status)},
            {"prompt_tokens", std::to_string(usage_.num_prompt_tokens)},
            {"completion_tokens", std::to_string(usage_.num_completion_tokens)},
            {"ttft_ms", times_.first_token_ns ? fmt::format("{:.1f}", first_ms) : "none"},
            {"ms", fmt::format("{:.1f}", total_ms)}});
}

}  // namespace tandem::openai
