#include "apps/conversation.h"

#include <cstdio>
#include <random>

#include <fmt/format.h>

#include "base/bounded_queue.h"
#include "serve/text/output_text.h"

namespace tandem::apps {
namespace {

constexpr double kPoll_s = 0.05;              // how late an interrupt may be seen
constexpr size_t kMaxUpdates = size_t{1} << 20;  // one a token: never full

class QueueSink final : public sched::TokenSink {
 public:
  void publish(sched::Update update) override { updates.try_push(std::move(update)); }
  BoundedQueue<sched::Update> updates{kMaxUpdates};
};

SamplingParams sampling_of(const OptionValues& values) {
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(values.number("temperature"));
  sampling.top_k = values.integer("top-k");
  sampling.top_p = static_cast<float>(values.number("top-p"));
  sampling.min_p = static_cast<float>(values.number("min-p"));
  sampling.repetition_penalty = static_cast<float>(values.number("repetition-penalty"));
  std::random_device random;
  sampling.seed = values.has("seed") ? static_cast<uint64_t>(values.integer("seed"))
                                     : static_cast<uint64_t>(random()) << 32 | random();
  return sampling;
}

JsonValue message_of(const char* role, const std::string& text) {
  return JsonValue(JsonValue::Object{{"role", JsonValue(std::string(role))}, {"content", JsonValue(text)}});
}

void write_out(std::string_view text, AnswerEnd& end) {
  end.text += text;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

Conversation::Conversation(const LoadedModel& model, const OptionValues& values, const std::string& name)
    : model_(model),
      sampling_(sampling_of(values)),
      max_tokens_(values.has("max-tokens") ? static_cast<uint32_t>(values.integer("max-tokens")) : 0),
      prompt_text_(*model.text, model.runner->max_model_len(), values.is_on("parse-special")),
      engine_(engine_config(values, model, name), *model.runner, clock_, registry_) {
  if (values.has("system")) messages_.push_back(message_of("system", values.text("system")));
  engine_.start();
}

Result<AnswerEnd> Conversation::ask(const std::string& text, const std::atomic<bool>& interrupted) {
  messages_.push_back(message_of("user", text));
  openai::ChatPrompt prompt;
  prompt.messages = messages_;
  auto ids = prompt_text_.chat_ids(prompt, {});
  if (const auto* error = std::get_if<openai::ApiError>(&ids)) {
    messages_.pop_back();
    const char* advice = error->code == "no_chat_template" ? " (or continue plain text with --raw)" : "";
    return Error{ErrorCode::kInvalidArgument, error->message + advice};
  }
  auto end = answer(std::get<std::vector<TokenId>>(std::move(ids)), interrupted);
  if (end) messages_.push_back(message_of("assistant", end->text));
  else messages_.pop_back();
  return end;
}

Result<AnswerEnd> Conversation::continue_text(const std::string& text, const std::atomic<bool>& interrupted) {
  auto ids = prompt_text_.text_ids(text, true, std::nullopt);
  if (const auto* error = std::get_if<openai::ApiError>(&ids)) {
    return Error{ErrorCode::kInvalidArgument, error->message};
  }
  return answer(std::get<std::vector<TokenId>>(std::move(ids)), interrupted);
}

Result<AnswerEnd> Conversation::answer(std::vector<TokenId> prompt, const std::atomic<bool>& interrupted) {
  const uint32_t longest = engine_.limits().max_model_len;
  if (prompt.empty() || prompt.size() >= longest) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("the prompt has {} tokens; this model takes 1 to {} (see --max-model-len and --kv-memory)",
                             prompt.size(), longest - 1)};
  }
  AnswerEnd end;
  end.num_prompt_tokens = static_cast<uint32_t>(prompt.size());
  text::OutputText output(model_.text->tokenizer, {});
  output.seed(prompt);
  sched::Request request;
  request.sampling = sampling_;
  request.max_tokens = longest - end.num_prompt_tokens;
  if (max_tokens_ != 0) request.max_tokens = std::min(request.max_tokens, max_tokens_);
  request.prompt = std::move(prompt);

  const auto sink = std::make_shared<QueueSink>();
  const double begin_s = clock_.now_s();
  double first_s = 0, last_s = 0;
  TRY_ASSIGN(const sched::RequestId id, engine_.submit(std::move(request), sink));
  for (bool is_last = false; !is_last;) {
    if (interrupted) engine_.cancel(id);
    for (const sched::Update& update : sink->updates.wait_drain(kPoll_s)) {
      if (update.error) return *update.error;
      for (const sched::ChoiceDelta& delta : update.deltas) {
        last_s = clock_.now_s();
        if (end.num_tokens == 0 && !delta.tokens.empty()) first_s = last_s;
        for (const TokenId token : delta.tokens) {
          ++end.num_tokens;
          const bool is_stop = delta.finish && delta.finish->stop_token && token == delta.tokens.back();
          if (!is_stop) write_out(output.push(token), end);
        }
        if (delta.finish) end.is_cut = delta.finish->reason == sched::FinishReason::kLength;
      }
      is_last = is_last || update.is_last;
    }
  }
  write_out(output.finish(), end);
  end.first_token_s = first_s - begin_s;
  end.decode_s = last_s - first_s;
  return end;
}

}  // namespace tandem::apps
