// libFuzzer: any request body with any tokens for an answer, through the API, the engine and the scheduler. The answer
// must be JSON and UTF-8, whole and streamed alike, and leave nothing behind. Input: flags, how many of the next bytes
// are the model's tokens, those, and the body.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "api/openai/openai_api.h"
#include "base/check.h"
#include "base/log.h"
#include "base/utf8.h"
#include "serve/engine/engine.h"
#include "serve/sched/scripted_executor.h"
#include "serve/text/small_tokenizer_for_test.h"

using namespace tandem;
using namespace tandem::openai;

namespace {

constexpr std::string_view kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

// An answer on its way, and what was posted to its connection's thread: this one.
struct Collected final : http::ResponseWriter {
  void send(int code, http::Headers, std::string text) override {
    TANDEM_CHECK(status == 0);
    status = code;
    body = std::move(text);
    is_ended = true;
  }
  void begin_stream(int code, http::Headers, http::StreamIdle) override {
    TANDEM_CHECK(status == 0);
    status = code;
    is_stream = true;
  }
  void write(std::string chunk) override {
    TANDEM_CHECK(is_stream && !is_ended);
    body += chunk;
  }
  void end() override {
    TANDEM_CHECK(is_stream && !is_ended);
    is_ended = true;
  }
  void on_disconnect(std::function<void()> callback) override { disconnect = std::move(callback); }
  void post(std::function<void()> task) override { tasks.push_back(std::move(task)); }

  void run_tasks() {
    while (!tasks.empty()) {
      const auto task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }

  int status = 0;
  std::string body;
  bool is_stream = false;
  bool is_ended = false;
  std::function<void()> disconnect;
  std::deque<std::function<void()>> tasks;
};

struct Serving {
  text::TextModel model = text::must(text::text_model_from_parts(text::byte_level_parts(), kTemplate));
  MetricRegistry registry;
  SystemClock clock;
  std::string_view script;  // one token a byte; the highest two stand for control tokens
  sched::ScriptedExecutor executor{{64, 16, 256, 0}};
  engine::Engine engine{config(), executor, clock, registry};
  OpenAiApi api{engine, model, api_config(), registry, clock};

  Serving() {
    set_log(LogLevel::kError, LogFormat::kText);
    executor.set_next_token([this](const sched::BatchItem& item) { return next_token(item); });
  }

  static engine::EngineConfig config() {
    engine::EngineConfig config;
    config.model_name = "m";
    config.vocab_size = text::kToolCall + 1;
    config.max_choices = 4;
    config.sched.num_blocks = 64;
    config.sched.max_num_seqs = 8;
    config.sched.max_num_batched_tokens = 64;
    config.sched.max_model_len = 150;
    config.sched.window_ms = 0;
    config.sched.eos_ids = {text::kEnd};
    return config;
  }
  static ApiConfig api_config() {
    ApiConfig config;
    config.served_names = {"m"};
    config.seed = 1;
    config.worker_body_bytes = SIZE_MAX;  // all on this thread
    return config;
  }

  TokenId next_token(const sched::BatchItem& item) const {
    const size_t at = item.tokens.size() - item.num_prompt_tokens;
    TokenId token = text::kEnd;
    if (at < script.size()) {
      const auto byte = static_cast<uint8_t>(script[(at + item.sampling->choice) % script.size()]);
      token = byte == 0xFF ? text::kImEnd : byte == 0xFE ? text::kHell : byte;
    }
    for (TokenId tries = 0; tries < text::kToolCall; ++tries, token = (token + 1) % text::kToolCall) {
      if (std::ranges::find(item.sampling->banned, token) == item.sampling->banned.end()) break;
    }
    return token;
  }

  std::shared_ptr<Collected> ask(bool is_chat, std::string_view body) {
    auto writer = std::make_shared<Collected>();
    http::HttpRequest request;
    request.method = "POST";
    request.path = is_chat ? "/v1/chat/completions" : "/v1/completions";
    request.headers = {{"Content-Type", "application/json"}};
    request.body = std::string(body);
    api.handle(std::move(request), writer);
    writer->run_tasks();
    while (engine.run_once()) writer->run_tasks();
    writer->run_tasks();
    TANDEM_CHECK(writer->is_ended);
    TANDEM_CHECK(engine.scheduler().is_idle() && engine.scheduler().pool().num_owned() == 0);
    TANDEM_CHECK(is_valid_utf8(writer->body));
    return writer;
  }
};

// By choice: text and how it ended.
using Choices = std::map<int64_t, std::pair<std::string, std::string>>;

void add_choices(const JsonValue& from, Choices& to) {
  const JsonValue* choices = from.find("choices");
  if (choices == nullptr || choices->if_array() == nullptr) return;
  for (const JsonValue& choice : *choices->if_array()) {
    int64_t index = -1;
    TANDEM_CHECK(choice.find("index") && choice.find("index")->as_int64(index));
    auto& [text, reason] = to[index];
    const JsonValue* message = choice.find("message") ? choice.find("message") : choice.find("delta");
    const JsonValue* shown = message ? message->find("content") : choice.find("text");
    if (shown && shown->if_string()) text += *shown->if_string();
    const JsonValue* why = choice.find("finish_reason");
    if (why == nullptr || why->if_string() == nullptr) continue;
    TANDEM_CHECK(reason.empty());  // once
    reason = *why->if_string();
  }
}

// Nothing when the answer is an error, which is JSON too.
std::optional<Choices> choices_of(const Collected& answer) {
  Choices choices;
  if (!answer.is_stream) {
    const auto parsed = JsonValue::parse(answer.body);
    TANDEM_CHECK(static_cast<bool>(parsed));
    if (answer.status != 200) return std::nullopt;
    add_choices(*parsed, choices);
    return choices;
  }
  std::string_view rest = answer.body;
  bool is_done = false, has_error = false;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    TANDEM_CHECK(end != std::string_view::npos && !is_done && rest.starts_with("data: "));
    const std::string_view event = rest.substr(6, end - 6);
    rest.remove_prefix(end + 2);
    is_done = event == "[DONE]";
    if (is_done) continue;
    const auto parsed = JsonValue::parse(event);
    TANDEM_CHECK(static_cast<bool>(parsed));
    has_error |= parsed->find("error") != nullptr;
    add_choices(*parsed, choices);
  }
  TANDEM_CHECK(is_done);
  if (has_error) return std::nullopt;
  return choices;
}

// The body with "stream" as given, and a seed; nothing when it is no object.
std::optional<std::string> with_stream(std::string_view body, bool stream) {
  const auto parsed = JsonValue::parse(body);
  if (!parsed || parsed->if_object() == nullptr) return std::nullopt;
  JsonWriter out;
  out.begin_object();
  for (const auto& [name, value] : *parsed->if_object()) {
    if (name != "stream" && name != "stream_options") out.key(name).value(value);
  }
  out.key("stream").boolean(stream);
  return out.end_object().take();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static Serving& serving = *new Serving;
  if (size < 2) return 0;
  const bool is_chat = bytes[0] & 1;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 2, size - 2);
  serving.script = rest.substr(0, bytes[1]);
  const std::string_view body = rest.substr(serving.script.size());
  choices_of(*serving.ask(is_chat, body));
  const auto whole_body = with_stream(body, false);
  if (!whole_body) return 0;
  const auto whole_answer = serving.ask(is_chat, *whole_body);
  const auto stream_answer = serving.ask(is_chat, *with_stream(body, true));
  const auto whole = choices_of(*whole_answer);
  const auto streamed = choices_of(*stream_answer);
  TANDEM_CHECK(whole.has_value() == streamed.has_value());
  if (whole) TANDEM_CHECK(*whole == *streamed);
  return 0;
}
