#pragma once
// OpenAiApi: the OpenAI-compatible HTTP interface over one model's Generator.
//
// A request is read, checked and tokenized on the I/O thread (long ones, and those whose grammar is new, on a thread of
// their own), then a Reply takes over. Destroy in this order: HttpServer, the generator's sinks (that is, the engine),
// OpenAiApi.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/openai/api_error.h"
#include "api/openai/embedding_reply.h"
#include "api/openai/front_metrics.h"
#include "api/openai/prompt_text.h"
#include "api/openai/reply.h"
#include "api/openai/request.h"
#include "api/openai/text_worker.h"
#include "api/openai/tool_use.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "net/http/router.h"
#include "serve/engine/generator.h"
#include "serve/text/grammar_compiler.h"
#include "serve/text/text_model.h"

namespace tandem::openai {

struct ApiKey {
  std::string name;  // for logs and per-tenant fairness
  std::string key;
  uint32_t max_concurrent = 0;  // requests under way; 0: no limit; more are answered 429
  double weight = 1;            // of its share of the tokens when there are not enough for all
};

struct ApiConfig {
  std::vector<std::string> served_names;  // at least one; the first is shown
  std::vector<ApiKey> keys;               // none: open to all
  uint32_t max_logprobs = 64;
  bool parse_special = true;  // raw prompts may hold control tokens, where the request does not say no
  SamplingDefaults defaults;
  std::string system_fingerprint;      // in answers; empty: left out
  std::optional<uint64_t> seed;        // where requests have none; absent: random
  int64_t ping_interval_ms = 15'000;   // of comments in silent streams; 0: none
  sched::Pooling pooling = sched::Pooling::kLast;  // of embeddings, where a request does not say
  std::string settings;  // a JSON object, the answer of GET /server_info; empty: 404
  size_t worker_body_bytes = 8 << 10;  // bodies over it are read and tokenized off the I/O thread
  size_t worker_queue_limit = 1024;
  // How the model writes tool calls; absent: as its chat template does.
  std::optional<text::ToolCallFormat> tool_call_format;
};

class OpenAiApi {
 public:
  // All references outlive the api. `grammars`: of the same model; null: requests that ask for a form are refused.
  OpenAiApi(engine::Generator& generator, const text::TextModel& model, ApiConfig config, MetricRegistry& registry,
            const Clock& clock, text::GrammarCompiler* grammars = nullptr);

  // The handler. Paths outside the API are answered 404.
  void handle(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer);

 private:
  struct Tenant {
    ApiKey key;
    std::atomic<uint32_t> num_running{0};
  };
  struct Call;  // one request on its way to an answer

  void add_routes();
  bool admit(Call& call);
  void generate(const std::shared_ptr<Call>& call);
  void prepare(const std::shared_ptr<Call>& call);
  Parsed<ChatRequest> parse_chat(const Call& call, ReplySetup& setup) const;
  std::optional<ApiError> prepare_chat(const Call& call, ReplySetup& setup) const;
  std::optional<ApiError> prepare_completion(const Call& call, ReplySetup& setup) const;
  void check_grammar(const std::shared_ptr<Call>& call, std::shared_ptr<ReplySetup> setup);
  void begin_reply(Call& call, ReplySetup setup);
  bool has_room(Call& call) const;
  void embed(const std::shared_ptr<Call>& call);
  std::optional<ApiError> prepare_embedding(const Call& call, EmbeddingSetup& setup) const;
  std::optional<ApiError> check_list(const char* field, size_t num_prompts, uint64_t num_tokens) const;
  std::optional<ApiError> obey_headers(Call& call, GenerationOptions& options) const;
  void reset_prefix_cache(Call& call) const;
  void on_worker(const std::shared_ptr<Call>& call, std::function<void()> job);
  void tokenize(Call& call) const;
  void detokenize(Call& call) const;
  void count_tokens(Call& call) const;
  void list_models(Call& call) const;
  void show_model(Call& call) const;
  void answer(Call& call, std::string json) const;
  void refuse(Call& call, const ApiError& error) const;
  std::optional<ApiError> check_model(const std::string& name) const;
  void write_card(JsonWriter& json, const std::string& name) const;
  std::shared_ptr<Call> make_call(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) const;
  uint64_t next_seed() const;

  engine::Generator& generator_;
  const text::TextModel& model_;
  const ApiConfig config_;
  const Clock& clock_;
  text::GrammarCompiler* const grammars_;
  const RequestLimits limits_;
  const PromptText prompt_text_;
  const ToolCallSupport tool_calls_;
  mutable FrontMetrics metrics_;
  std::vector<std::unique_ptr<Tenant>> tenants_;
  http::Router router_;
  const int64_t created_;   // Unix seconds
  const uint64_t id_base_;  // random: ids of two runs differ
  mutable std::atomic<uint64_t> num_ids_{0};
  mutable std::atomic<uint64_t> num_seeds_{0};
  TextWorker worker_;  // last: its jobs use the members above
};

}  // namespace tandem::openai
