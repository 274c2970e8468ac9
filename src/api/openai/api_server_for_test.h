#pragma once
// ApiServer: the whole front on a port of 127.0.0.1, over a byte-level vocabulary and a ScriptedGenerator.

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "api/openai/scripted_generator_for_test.h"
#include "api/openai/serving_gate.h"
#include "base/json.h"
#include "base/log.h"
#include "net/http/http_server.h"
#include "serve/text/grammar_compiler.h"
#include "serve/text/small_tokenizer_for_test.h"
#include "testing/raw_client.h"

namespace tandem::openai {

constexpr std::string_view kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// One token a byte.
inline std::vector<TokenId> byte_tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  for (unsigned char byte : text) tokens.push_back(byte);
  return tokens;
}

inline JsonValue json_of(std::string_view text) {
  auto parsed = JsonValue::parse(text);
  REQUIRE_MESSAGE(parsed, std::string(text));
  return std::move(parsed).value();
}

// The value at a path such as "choices.0.text"; null where there is none.
inline const JsonValue& at(const JsonValue& from, std::string_view path) {
  static const JsonValue nothing;
  const JsonValue* here = &from;
  while (!path.empty() && here) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string step(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
    if (const auto* list = here->if_array()) {
      const size_t index = std::stoul(step);
      here = index < list->size() ? &(*list)[index] : nullptr;
    } else {
      here = here->find(step);
    }
  }
  return here ? *here : nothing;
}

inline std::string text_at(const JsonValue& from, std::string_view path) {
  const std::string* text = at(from, path).if_string();
  return text ? *text : "(no text)";
}

inline int64_t int_at(const JsonValue& from, std::string_view path) {
  int64_t value = -1;
  at(from, path).as_int64(value);
  return value;
}

inline std::string json_at(const JsonValue& from, std::string_view path) {
  return JsonWriter().value(at(from, path)).take();
}

struct ApiServer {
  text::TextModel model;
  MetricRegistry registry;
  SystemClock clock;
  // By the prompt's text (see prompt_text) and choice: what is said.
  std::function<Script(const sched::Request&, uint32_t)> script;
  std::unique_ptr<ScriptedGenerator> generator;
  std::unique_ptr<text::GrammarCompiler> grammars;  // null: the server can not hold answers to a form
  std::unique_ptr<OpenAiApi> api;
  std::unique_ptr<ServingGate> gate;
  std::unique_ptr<http::HttpServer> server;

  static text::TextModel small_model(bool has_template = true) {
    auto model = text::must(text::text_model_from_parts(text::byte_level_parts(), has_template ? kChatMl : ""));
    return model;
  }
  static ApiConfig default_config() {
    ApiConfig config;
    config.served_names = {"tiny", "org/alias"};
    config.seed = 1;
    return config;
  }

  explicit ApiServer(std::string says = "Hello!", ApiConfig config = default_config(), bool has_template = true,
                     uint32_t max_model_len = 200, bool has_grammars = false)
      : model(small_model(has_template)) {
    set_log(LogLevel::kError, LogFormat::kText);
    script = [says](const sched::Request&, uint32_t) { return Script{byte_tokens(says), {}, 0}; };
    const auto vocab_size = static_cast<uint32_t>(model.tokenizer.vocab_size());
    generator = std::make_unique<ScriptedGenerator>(
        engine::GeneratorLimits{max_model_len, vocab_size, 64, 128}, text::kEnd,
        [this](const sched::Request& request, uint32_t choice) { return script(request, choice); });
    if (has_grammars) {
      text::GrammarConfig grammar_config;
      grammar_config.logits_size = vocab_size;
      grammar_config.stops = {text::kEnd};
      grammars = std::make_unique<text::GrammarCompiler>(model.tokenizer, grammar_config, registry);
    }
    api = std::make_unique<OpenAiApi>(*generator, model, std::move(config), registry, clock, grammars.get());
    gate = std::make_unique<ServingGate>(registry, "1.2.3");
    gate->open(*api);
    auto started = http::HttpServer::start(
        {}, [this](http::HttpRequest request, auto writer) { (*gate)(std::move(request), std::move(writer)); });
    REQUIRE(started);
    server = std::move(started).value();
  }
  ~ApiServer() {
    server->stop(0);
    generator.reset();
  }

  uint16_t port() const { return server->port(); }

  testing::RawAnswer post(std::string_view path, std::string_view body, std::string_view headers = {}) const {
    return testing::fetch(port(), "POST", path, body, headers);
  }
  testing::RawAnswer get(std::string_view path, std::string_view headers = {}) const {
    return testing::fetch(port(), "GET", path, {}, headers);
  }
  // 200 and its body.
  JsonValue ok(std::string_view path, std::string_view body) const {
    const testing::RawAnswer answer = post(path, body);
    CHECK_MESSAGE(answer.status == 200, answer.body);
    return json_of(answer.body);
  }
  JsonValue complete(std::string_view fields) const { return ok("/v1/completions", "{" + std::string(fields) + "}"); }
  JsonValue chat(std::string_view more_fields = {}) const { return ok("/v1/chat/completions", chat_body(more_fields)); }
  static std::string chat_body(std::string_view more_fields = {}) {
    return R"({"messages":[{"role":"user","content":"hi"}])" +
           (more_fields.empty() ? "" : "," + std::string(more_fields)) + "}";
  }
  std::string metric(std::string_view line_start) const {
    const std::string text = "\n" + get("/metrics").body;
    const size_t from = text.find("\n" + std::string(line_start));
    if (from == std::string::npos) return "(none)";
    const std::string line = text.substr(from + 1, text.find('\n', from + 1) - from - 1);
    return line.substr(line.rfind(' ') + 1);
  }
};

// The JSON of each event of a stream, which must end with [DONE].
inline std::vector<JsonValue> events_of(std::string_view body) {
  std::vector<JsonValue> events;
  bool is_done = false;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    REQUIRE(end != std::string_view::npos);
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    CHECK(!is_done);
    if (event.starts_with(":")) continue;
    REQUIRE(event.starts_with("data: "));
    if (event == "data: [DONE]")
      is_done = true;
    else
      events.push_back(json_of(event.substr(6)));
  }
  CHECK(is_done);
  return events;
}

// What a stream says about one choice, put together again.
struct Streamed {
  std::string text;
  std::string finish_reason;
  int num_finishes = 0;
  int num_chunks = 0;
  JsonValue::Array logprobs;  // of chat: the entries of content; of completions: the objects
};

inline Streamed streamed_choice(const std::vector<JsonValue>& events, int64_t index) {
  Streamed out;
  for (const JsonValue& event : events) {
    for (const JsonValue& choice : *at(event, "choices").if_array()) {
      if (int_at(choice, "index") != index) continue;
      ++out.num_chunks;
      const JsonValue& text = at(choice, "delta").is_null() ? at(choice, "text") : at(choice, "delta.content");
      if (text.if_string()) out.text += *text.if_string();
      if (const auto* reason = at(choice, "finish_reason").if_string()) {
        out.finish_reason = *reason;
        ++out.num_finishes;
      }
      if (const auto* content = at(choice, "logprobs.content").if_array()) {
        out.logprobs.insert(out.logprobs.end(), content->begin(), content->end());
      } else if (at(choice, "logprobs").if_object()) {
        out.logprobs.push_back(at(choice, "logprobs"));
      }
    }
  }
  return out;
}

}  // namespace tandem::openai
