#pragma once
// Reply: one request on its way from the Generator back to the client. It submits one request per prompt, turns
// updates into text and JSON, and ends them when the client goes away.
//
// Lives on the connection's I/O thread; the engine's updates are posted there. Held by its sinks, so it is gone once
// the generator has said its last word about every prompt.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/openai/front_metrics.h"
#include "api/openai/reply_shape.h"
#include "base/clock.h"
#include "net/http/http_types.h"
#include "serve/engine/generator.h"
#include "serve/text/grammar_compiler.h"

namespace tandem::openai {

// What a reply needs of the server. Outlives it.
struct ReplyContext {
  engine::Generator& generator;
  const text::Tokenizer& tokenizer;
  FrontMetrics& metrics;
  const Clock& clock;
  int64_t ping_interval_ms = 15'000;
};

struct ReplyPrompt {
  std::vector<TokenId> ids;
  std::string echo_text;        // empty: not echoed
  std::vector<size_t> offsets;  // of each id in echo_text, in code points; with echo and logprobs
};

struct ReplySetup {
  std::string endpoint;    // for metrics and log
  std::string request_id;  // the client's or ours; echoed and logged, never relied on
  std::string tenant;
  TraceContext trace;  // of the first prompt; the others' spans are beside it
  ReplyHead head;
  GenerationOptions options;
  std::vector<ReplyPrompt> prompts;
  bool echo = false;
  uint64_t seed = 0;
  std::vector<uint32_t> max_tokens;  // per prompt, what there is room for
  std::function<text::TokenMaskMaker()> make_masks;  // per prompt; with a grammar only, which it holds
  int64_t arrival_ns = 0;
  std::shared_ptr<void> ticket;  // held as long as the request is under way
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  Reply(ReplyContext context, ReplySetup setup, std::shared_ptr<http::ResponseWriter> writer);

  // Submits, or answers with the error. Once, on the I/O thread.
  void start();

 private:
  struct ChoiceState {
    Choice choice;
    std::vector<ShownToken> tokens;  // whole answers keep them
    std::string text;
    std::vector<text::AnswerPart> parts;
    bool has_begun = false;  // its first event is out
    int64_t last_token_ns = 0;
    RequestTimes times;
  };
  class Sink;

  sched::Request request_for(size_t prompt) const;
  void on_update(size_t prompt, sched::Update update);
  void take_delta(size_t prompt, sched::ChoiceDelta delta, std::string& events);
  void begin_choice(size_t prompt, size_t choice, std::string& events);
  void take_echo(size_t prompt, std::vector<sched::TokenLogprob> logprobs, std::string& events);
  void show(size_t choice, std::vector<ShownToken> shown, std::string& events);
  void measure(ChoiceState& state, bool is_first);
  void complete(std::string events);
  void send_whole();
  std::vector<size_t> shown_choices() const;
  void fail(const ApiError& error, std::string events);
  void cancel_all();
  void finish(int status);
  bool shows_echo_tokens() const { return setup_.echo && setup_.options.sampling.num_logprobs >= 0; }

  ReplyContext context_;
  ReplySetup setup_;
  std::unique_ptr<ReplyShape> shape_;
  std::shared_ptr<http::ResponseWriter> writer_;
  std::vector<ChoiceState> choices_;
  std::vector<sched::RequestId> requests_;
  std::vector<std::pair<size_t, sched::Update>> early_;  // updates that came while requests were being submitted
  Usage usage_;
  std::vector<uint32_t> num_cached_;  // tokens of each prompt that were in the prefix cache
  std::vector<std::vector<sched::TokenLogprob>> prompt_logprobs_;  // by prompt; where the answer shows them
  RequestTimes times_;
  size_t num_prompts_done_ = 0;
  bool is_started_ = false;
  bool is_over_ = false;
};

}  // namespace tandem::openai
