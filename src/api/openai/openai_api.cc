#include "api/openai/openai_api.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <random>

#include "api/openai/messages_request.h"
#include "api/openai/responses_request.h"
#include "base/check.h"
#include "base/log.h"
#include "net/http/credentials.h"

namespace tandem::openai {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxGrammarBytes = 4 << 20;  // a form; other processes get it as well, in one message
constexpr std::string_view kDeadlineHeader = "X-Request-Deadline-Ms";

uint64_t random_u64() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// splitmix64: neighbouring numbers give unrelated ones.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// What a client calls its request is logged and sent back, so it has to be short and plain.
std::string client_request_id(std::string_view given) {
  std::string id(given.substr(0, kMaxRequestIdBytes));
  for (char& c : id) {
    if (c < 0x21 || c > 0x7E) c = '_';
  }
  return id;
}

// The client's trace, or a new one. Headers that contradict each other count as none.
TraceContext trace_of(const http::HttpRequest& request) {
  const std::string_view header = request.header("traceparent");
  const auto is_other = [&](const auto& other) {
    return strcasecmp(other.first.c_str(), "traceparent") == 0 && other.second.data() != header.data();
  };
  const auto given = parse_traceparent(header);
  if (given && std::ranges::none_of(request.headers, is_other)) return child_of(*given);
  return new_trace();
}

RequestLimits request_limits(const engine::GeneratorLimits& generator, const ApiConfig& config) {
  RequestLimits limits;
  limits.vocab_size = generator.vocab_size;
  limits.max_model_len = generator.max_model_len;
  limits.max_logprobs = std::min(config.max_logprobs, generator.max_logprobs);
  limits.max_choices = generator.max_choices;
  // A longer list would be refused for a full queue however often it came again.
  if (generator.max_waiting > 0) limits.max_prompts = std::min(limits.max_prompts, generator.max_waiting);
  limits.max_list_tokens = generator.max_waiting_tokens;
  return limits;
}

ToolCallSupport tool_call_support(const text::TextModel& model, const ApiConfig& config) {
  const text::ToolCallFormat format = config.tool_call_format.value_or(model.tool_call_format);
  constexpr text::ToolCallFormat kMistral = text::ToolCallFormat::kMistral;
  const bool has_short_ids = format == kMistral || model.tool_call_format == kMistral;
  return {format, text::find_tool_markers(model.tokenizer, format), has_short_ids};
}

std::string_view id_prefix(ReplyKind kind) {
  switch (kind) {
    case ReplyKind::kChat:
      return "chatcmpl-";
    case ReplyKind::kCompletion:
      return "cmpl-";
    case ReplyKind::kMessages:
      return "msg_";
    case ReplyKind::kResponses:
      return "resp_";
  }
  return "";
}

std::string_view prompt_field(ReplyKind kind) {
  if (kind == ReplyKind::kCompletion) return "prompt";
  return kind == ReplyKind::kResponses ? "input" : "messages";
}

ApiConfig checked(ApiConfig config) {
  TANDEM_CHECK(!config.served_names.empty());
  return config;
}

std::optional<ApiError> ban_words(const PromptText& prompt_text, GenerationOptions& options) {
  auto words = prompt_text.bad_word_ids(options.bad_words);
  if (const ApiError* error = std::get_if<ApiError>(&words)) return *error;
  options.sampling.bad_words = std::get<std::vector<std::vector<TokenId>>>(std::move(words));
  return std::nullopt;
}

}  // namespace

struct OpenAiApi::Call {
  http::HttpRequest request;
  std::shared_ptr<http::ResponseWriter> writer;
  std::string endpoint;
  ReplyKind kind = ReplyKind::kChat;  // of answers and errors
  std::string id;                     // unique
  std::string request_id;             // the client's, else ours
  std::string tenant;
  std::shared_ptr<void> ticket;
  int64_t arrival_ns = 0;
};

OpenAiApi::OpenAiApi(engine::Generator& generator, const text::TextModel& model, ApiConfig config,
                     MetricRegistry& registry, const Clock& clock, text::GrammarCompiler* grammars)
    : generator_(generator),
      model_(model),
      config_(checked(std::move(config))),
      clock_(clock),
      grammars_(grammars),
      limits_(request_limits(generator.limits(), config_)),
      prompt_text_(model, generator.limits().max_model_len, config_.parse_special),
      tool_calls_(tool_call_support(model, config_)),
      metrics_(registry, config_.served_names[0], generator.limits().max_model_len),
      router_(error_body_at),
      created_(std::time(nullptr)),
      id_base_(random_u64()),
      worker_(config_.worker_queue_limit) {
  for (const ApiKey& key : config_.keys) {
    tenants_.push_back(std::make_unique<Tenant>());
    tenants_.back()->key = key;
  }
  add_routes();
}

void OpenAiApi::add_routes() {
  const auto add = [this](const char* method, const char* path, auto action, ReplyKind kind = ReplyKind::kChat) {
    std::string endpoint = path;
    if (endpoint.back() == '*') endpoint += "id";
    router_.add(method, path, [this, action, endpoint, kind](http::HttpRequest request, auto writer) {
      const auto call = make_call(std::move(request), std::move(writer));
      call->endpoint = endpoint;
      call->kind = kind;
      if (admit(*call)) action(call);
    });
  };
  using CallPointer = std::shared_ptr<Call>;
  const auto add_generation = [&](const char* path, ReplyKind kind) {
    add("POST", path, [this](const CallPointer& call) { generate(call); }, kind);
  };
  add_generation("/v1/chat/completions", ReplyKind::kChat);
  add_generation("/v1/completions", ReplyKind::kCompletion);
  add_generation("/v1/messages", ReplyKind::kMessages);
  add_generation("/v1/responses", ReplyKind::kResponses);
  add(
      "POST", "/v1/messages/count_tokens",
      [this](const CallPointer& call) { on_worker(call, [this, call] { count_tokens(*call); }); },
      ReplyKind::kMessages);
  add("POST", "/v1/embeddings", [this](const CallPointer& call) {
    if (has_room(*call)) on_worker(call, [this, call] { embed(call); });
  });
  add("POST", "/reset_prefix_cache", [this](const CallPointer& call) { reset_prefix_cache(*call); });
  if (!config_.settings.empty()) {
    add("GET", "/server_info", [this](const CallPointer& call) { answer(*call, config_.settings); });
  }
  add("POST", "/tokenize", [this](const CallPointer& call) { on_worker(call, [this, call] { tokenize(*call); }); });
  add("POST", "/detokenize", [this](const CallPointer& call) { on_worker(call, [this, call] { detokenize(*call); }); });
  add("GET", "/v1/models", [this](const CallPointer& call) { list_models(*call); });
  add("GET", "/v1/models/*", [this](const CallPointer& call) { show_model(*call); });
  add("GET", "/load", [this](const CallPointer& call) {
    const engine::GeneratorLoad load = generator_.load();
    JsonWriter json;
    json.begin_object().key("server_load").unsigned_integer(uint64_t{load.num_running} + load.num_waiting);
    answer(*call, json.end_object().take());
  });
}

void OpenAiApi::handle(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) {
  router_(std::move(request), std::move(writer));
}

std::shared_ptr<OpenAiApi::Call> OpenAiApi::make_call(http::HttpRequest request,
                                                      std::shared_ptr<http::ResponseWriter> writer) const {
  auto call = std::make_shared<Call>();
  call->arrival_ns = clock_.now_ns();
  call->request = std::move(request);
  call->writer = std::move(writer);
  call->id = fmt::format("{:016x}{:08x}", id_base_, num_ids_.fetch_add(1));
  call->request_id = client_request_id(call->request.header("X-Request-Id"));
  if (call->request_id.empty()) call->request_id = call->id;
  return call;
}

// Finds who is asking and whether they may. False: refused.
bool OpenAiApi::admit(Call& call) {
  if (tenants_.empty()) return true;
  const std::string_view given = http::given_key(call.request);
  Tenant* tenant = nullptr;
  for (const auto& known : tenants_) {
    if (http::is_same_key(given, known->key.key)) tenant = known.get();
  }
  if (!tenant) {
    const std::string_view message =
        given.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is wrong";
    refuse(call, {401, "authentication_error", std::string(message), {}, "invalid_api_key", 0});
    return false;
  }
  call.tenant = tenant->key.name;
  const uint32_t num_running = ++tenant->num_running;
  call.ticket = std::shared_ptr<void>(tenant, [](void* held) { --static_cast<Tenant*>(held)->num_running; });
  if (tenant->key.max_concurrent == 0 || num_running <= tenant->key.max_concurrent) return true;
  const std::string message = fmt::format("this API key may have {} requests under way", tenant->key.max_concurrent);
  refuse(call, {429, "rate_limit_error", message, {}, {}, std::max(1.0, generator_.load().retry_after_s)});
  return false;
}

void OpenAiApi::answer(Call& call, std::string json) const {
  metrics_.count_answer(call.endpoint, 200);
  call.writer->send(200, {{"Content-Type", "application/json"}, {"X-Request-Id", call.request_id}}, std::move(json));
}

void OpenAiApi::refuse(Call& call, const ApiError& error) const {
  metrics_.count_answer(call.endpoint, error.status);
  log_line(error.status < 500 ? LogLevel::kInfo : LogLevel::kWarning, "api/openai", "request refused",
           {{"id", call.request_id},
            {"endpoint", call.endpoint},
            {"status", std::to_string(error.status)},
            {"param", error.param.empty() ? "none" : error.param},
            {"code", error.code.empty() ? "none" : error.code}});
  http::Headers headers = error_headers(error);
  headers.emplace_back("X-Request-Id", call.request_id);
  call.writer->send(error.status, std::move(headers), error_body(call.kind, error));
}

std::optional<ApiError> OpenAiApi::check_model(const std::string& name) const {
  const auto& names = config_.served_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return std::nullopt;
  return ApiError{
      404,     "not_found_error", fmt::format("the model \"{}\" is not served here, \"{}\" is", name, names[0]),
      "model", "model_not_found", 0};
}

uint64_t OpenAiApi::next_seed() const {
  if (!config_.seed) return random_u64();
  return mixed(*config_.seed + num_seeds_.fetch_add(1));
}

void OpenAiApi::on_worker(const std::shared_ptr<Call>& call, std::function<void()> job) {
  if (call->request.body.size() <= config_.worker_body_bytes)
    job();
  else if (!worker_.try_post(std::move(job)))
    refuse(*call, api_error({ErrorCode::kUnavailable, "too many requests wait"}, 1));
}

// Before the body is read: under overload a refusal must cost next to nothing. False: refused.
bool OpenAiApi::has_room(Call& call) const {
  const Status room = generator_.check_room(call.tenant);
  if (!room) refuse(call, api_error(room.error(), generator_.load().retry_after_s));
  return static_cast<bool>(room);
}

void OpenAiApi::generate(const std::shared_ptr<Call>& call) {
  if (has_room(*call)) on_worker(call, [this, call] { prepare(call); });
}

void OpenAiApi::prepare(const std::shared_ptr<Call>& call) {
  ReplySetup setup;
  const bool is_chat = call->kind != ReplyKind::kCompletion;
  auto error = is_chat ? prepare_chat(*call, setup) : prepare_completion(*call, setup);
  if (!error) error = prompt_text_.check_shown_prompts(setup.prompts, setup.echo, setup.options);
  if (!error) error = obey_headers(*call, setup.options);
  if (error) {
    if (error->param == "messages") error->param = prompt_field(call->kind);
    refuse(*call, *error);
    return;
  }
  for (const ReplyPrompt& prompt : setup.prompts) {
    auto room = prompt_text_.room_for(prompt.ids.size(), setup.options);
    if (ApiError* fault = std::get_if<ApiError>(&room)) {
      fault->param = prompt_field(call->kind);
      refuse(*call, *fault);
      return;
    }
    setup.max_tokens.push_back(std::get<uint32_t>(room));
  }
  if (setup.options.grammar) return check_grammar(call, std::make_shared<ReplySetup>(std::move(setup)));
  begin_reply(*call, std::move(setup));
}

// Before anything is sent. A grammar that is new takes some milliseconds, or a part of a second when it is made to.
void OpenAiApi::check_grammar(const std::shared_ptr<Call>& call, std::shared_ptr<ReplySetup> setup) {
  const std::string& param = setup->options.grammar_param;
  if (setup->options.grammar->source.size() > kMaxGrammarBytes) {
    const std::string why = fmt::format("the form of the answer is over {} bytes", kMaxGrammarBytes);
    refuse(*call, invalid_request(param, param.empty() ? why : fmt::format("{}: {}", param, why)));
    return;
  }
  if (grammars_ == nullptr) {
    refuse(*call, invalid_request(param, "this server cannot hold answers to a form"));
    return;
  }
  const auto check = [this, call, setup] {
    const std::string& field = setup->options.grammar_param;
    auto compiled = grammars_->compile(*setup->options.grammar);
    if (compiled) {
      setup->make_masks = std::move(compiled).value();
      begin_reply(*call, std::move(*setup));
    } else if (compiled.error().code == ErrorCode::kInvalidArgument) {
      const std::string& why = compiled.error().message;
      refuse(*call, invalid_request(field, field.empty() ? why : fmt::format("{}: {}", field, why)));
    } else {
      refuse(*call, api_error(compiled.error(), 1));
    }
  };
  if (grammars_->is_known(*setup->options.grammar))
    check();
  else if (!worker_.try_post(check))
    refuse(*call, api_error({ErrorCode::kUnavailable, "too many requests wait"}, 1));
}

void OpenAiApi::begin_reply(Call& call, ReplySetup setup) {
  setup.endpoint = call.endpoint;
  setup.request_id = call.request_id;
  setup.tenant = call.tenant;
  setup.trace = trace_of(call.request);
  const std::string& model = setup.options.model;
  setup.head.is_chat = call.kind != ReplyKind::kCompletion;
  setup.head.kind = call.kind;
  setup.head.id = std::string(id_prefix(call.kind)) + call.id;
  setup.head.created = std::time(nullptr);
  setup.head.model = model.empty() ? config_.served_names[0] : model;
  setup.head.system_fingerprint = config_.system_fingerprint;
  setup.seed = setup.options.seed ? *setup.options.seed : next_seed();
  setup.arrival_ns = call.arrival_ns;
  setup.ticket = std::move(call.ticket);
  const ReplyContext context = {generator_, model_.tokenizer, metrics_, clock_, config_.ping_interval_ms};
  auto reply = std::make_shared<Reply>(context, std::move(setup), call.writer);
  call.writer->post([reply] { reply->start(); });
}

// A deadline may come from a proxy as well as from the client: the earlier one counts.
std::optional<ApiError> OpenAiApi::obey_headers(Call& call, GenerationOptions& options) const {
  if (call.request.header("X-Request-Id").empty() && !options.request_id.empty()) {
    call.request_id = client_request_id(options.request_id);
  }
  const std::string_view given = call.request.header(kDeadlineHeader);
  if (given.empty()) return std::nullopt;
  double deadline_ms = 0;
  const auto read = std::from_chars(given.data(), given.data() + given.size(), deadline_ms);
  if (read.ec != std::errc() || read.ptr != given.data() + given.size() || !(deadline_ms > 0 && deadline_ms <= 1e9)) {
    return invalid_request(std::string(kDeadlineHeader), "the header X-Request-Deadline-Ms: expected a number above 0");
  }
  options.deadline_ms = options.deadline_ms > 0 ? std::min(options.deadline_ms, deadline_ms) : deadline_ms;
  return std::nullopt;
}

Parsed<ChatRequest> OpenAiApi::parse_chat(const Call& call, ReplySetup& setup) const {
  const std::string& body = call.request.body;
  if (call.kind == ReplyKind::kMessages) return parse_messages_request(body, limits_, config_.defaults, false);
  if (call.kind != ReplyKind::kResponses) return parse_chat_request(body, limits_, config_.defaults);
  auto parsed = parse_responses_request(body, limits_, config_.defaults);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  auto& request = std::get<ResponsesRequest>(parsed);
  setup.head.echo = std::move(request.echo);
  return std::move(request.chat);
}

std::optional<ApiError> OpenAiApi::prepare_chat(const Call& call, ReplySetup& setup) const {
  auto parsed = parse_chat(call, setup);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  auto& request = std::get<ChatRequest>(parsed);
  if (auto error = check_model(request.options.model)) return error;
  if (auto error = apply_tool_use(request.prompt.tool_use, tool_calls_, request.options)) return error;
  auto ids = prompt_text_.chat_ids(request.prompt, request.options);
  if (const ApiError* error = std::get_if<ApiError>(&ids)) return *error;
  setup.prompts.push_back({std::get<std::vector<TokenId>>(std::move(ids)), {}, {}});
  setup.options = std::move(request.options);
  return ban_words(prompt_text_, setup.options);
}

std::optional<ApiError> OpenAiApi::prepare_completion(const Call& call, ReplySetup& setup) const {
  auto parsed = parse_completion_request(call.request.body, limits_, config_.defaults);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  auto& request = std::get<CompletionRequest>(parsed);
  if (auto error = check_model(request.options.model)) return error;
  if (auto error = prompt_text_.encode_suffix(request)) return error;
  uint64_t num_tokens = 0;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    auto prompt = prompt_text_.completion_prompt(request, i);
    if (const ApiError* error = std::get_if<ApiError>(&prompt)) return *error;
    setup.prompts.push_back(std::get<ReplyPrompt>(std::move(prompt)));
    num_tokens += setup.prompts.back().ids.size();
  }
  if (auto error = check_list("prompt", setup.prompts.size(), num_tokens)) return error;
  setup.echo = request.echo;
  setup.options = std::move(request.options);
  return ban_words(prompt_text_, setup.options);
}

// A list that no queue can take would be refused for a full one however often it came again.
std::optional<ApiError> OpenAiApi::check_list(const char* field, size_t num_prompts, uint64_t num_tokens) const {
  const uint64_t most = limits_.max_list_tokens;
  if (most == 0 || num_prompts < 2 || num_tokens <= most) return std::nullopt;
  return invalid_request(field, fmt::format("{} tokens in {} prompts, at most {} may wait: send fewer at once",
                                            num_tokens, num_prompts, most));
}

void OpenAiApi::embed(const std::shared_ptr<Call>& call) {
  EmbeddingSetup setup;
  auto error = prepare_embedding(*call, setup);
  if (!error) error = obey_headers(*call, setup.request.input.options);
  if (error) {
    refuse(*call, *error);
    return;
  }
  setup.endpoint = call->endpoint;
  setup.request_id = call->request_id;
  setup.tenant = call->tenant;
  setup.trace = trace_of(call->request);
  setup.id = "embd-" + call->id;
  setup.created = std::time(nullptr);
  const std::string& model = setup.request.input.options.model;
  setup.model = model.empty() ? config_.served_names[0] : model;
  setup.arrival_ns = call->arrival_ns;
  setup.ticket = std::move(call->ticket);
  const ReplyContext context = {generator_, model_.tokenizer, metrics_, clock_, config_.ping_interval_ms};
  auto reply = std::make_shared<EmbeddingReply>(context, std::move(setup), call->writer);
  call->writer->post([reply] { reply->start(); });
}

std::optional<ApiError> OpenAiApi::prepare_embedding(const Call& call, EmbeddingSetup& setup) const {
  auto parsed = parse_embedding_request(call.request.body, limits_, config_.pooling);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  setup.request = std::get<EmbeddingRequest>(std::move(parsed));
  CompletionRequest& input = setup.request.input;
  if (auto error = check_model(input.options.model)) return error;
  uint64_t num_tokens = 0;
  for (size_t i = 0; i < input.prompts.size(); ++i) {
    auto prompt = prompt_text_.completion_prompt(input, i, "input");
    if (const ApiError* error = std::get_if<ApiError>(&prompt)) return *error;
    setup.inputs.push_back(std::move(std::get<ReplyPrompt>(prompt).ids));
    num_tokens += setup.inputs.back().size();
  }
  if (auto error = check_list("input", setup.inputs.size(), num_tokens)) return error;
  input.prompts.clear();
  return std::nullopt;
}

void OpenAiApi::reset_prefix_cache(Call& call) const {
  if (generator_.reset_prefix_cache()) return answer(call, R"({"status":"ok"})");
  refuse(call, {501, "not_implemented_error", "there is no prefix cache here that can be dropped", {}, {}, 0});
}

void OpenAiApi::tokenize(Call& call) const {
  auto parsed = parse_tokenize_request(call.request.body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return refuse(call, *error);
  const auto& request = std::get<TokenizeRequest>(parsed);
  if (auto error = check_model(request.model)) return refuse(call, *error);
  if (auto error = prompt_text_.check_text_size(request.text ? request.text->size() : 0)) {
    error->param = "prompt";
    return refuse(call, *error);
  }
  auto ids = request.text ? prompt_text_.text_ids(*request.text, request.add_special_tokens, request.parse_special)
                          : prompt_text_.chat_ids(request.chat, {});
  if (const ApiError* error = std::get_if<ApiError>(&ids)) return refuse(call, *error);
  const auto& tokens = std::get<std::vector<TokenId>>(ids);
  JsonWriter json;
  json.begin_object().key("count").unsigned_integer(tokens.size());
  json.key("max_model_len").unsigned_integer(generator_.limits().max_model_len).key("tokens").begin_array();
  for (TokenId id : tokens) json.integer(id);
  json.end_array().key("token_strs");
  if (request.return_token_strs) {
    json.begin_array();
    for (TokenId id : tokens) json.string(model_.tokenizer.token_bytes(id));
    json.end_array();
  } else {
    json.null();
  }
  answer(call, json.end_object().take());
}

void OpenAiApi::detokenize(Call& call) const {
  auto parsed = parse_detokenize_request(call.request.body, limits_);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return refuse(call, *error);
  const auto& request = std::get<DetokenizeRequest>(parsed);
  if (auto error = check_model(request.model)) return refuse(call, *error);
  JsonWriter json;
  json.begin_object().key("prompt").string(model_.tokenizer.decode(request.tokens, false));
  answer(call, json.end_object().take());
}

void OpenAiApi::count_tokens(Call& call) const {
  auto parsed = parse_messages_request(call.request.body, limits_, config_.defaults, true);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return refuse(call, *error);
  const auto& request = std::get<ChatRequest>(parsed);
  if (auto error = check_model(request.options.model)) return refuse(call, *error);
  const auto ids = prompt_text_.chat_ids(request.prompt, request.options);
  if (const ApiError* error = std::get_if<ApiError>(&ids)) return refuse(call, *error);
  JsonWriter json;
  json.begin_object().key("input_tokens").unsigned_integer(std::get<std::vector<TokenId>>(ids).size());
  answer(call, json.end_object().take());
}

void OpenAiApi::write_card(JsonWriter& json, const std::string& name) const {
  json.begin_object().key("id").string(name).key("object").string("model").key("created").integer(created_);
  json.key("owned_by").string("tandem").key("root").string(config_.served_names[0]).key("parent").null();
  json.key("max_model_len").unsigned_integer(generator_.limits().max_model_len).end_object();
}

void OpenAiApi::list_models(Call& call) const {
  JsonWriter json;
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (const std::string& name : config_.served_names) write_card(json, name);
  answer(call, json.end_array().end_object().take());
}

void OpenAiApi::show_model(Call& call) const {
  const std::string name = call.request.path.substr(std::string_view("/v1/models/").size());
  auto error = check_model(name);
  if (name.empty()) error = ApiError{404, "not_found_error", "the path names no model", {}, {}, 0};
  if (error) return refuse(call, *error);
  JsonWriter json;
  write_card(json, name);
  answer(call, json.take());
}

}  // namespace tandem::openai
