// Tokenizers and chat templates from model files, against what other implementations computed.

#include <doctest/doctest.h>

#include <cstdlib>

#include "apps/model_text.h"
#include "serve/text/fixture_lines.h"

namespace tandem::text {
namespace {

using Ids = std::vector<TokenId>;

constexpr EncodeOptions kParsed{.add_special = false, .parse_control = true};

TextModel load(const std::string& path) {
  const model::WeightFiles files = must(model::WeightFiles::open(path));
  return must(apps::load_text_model(files));
}

std::string demo_model() {
  const char* path = std::getenv("TANDEM_DEMO_MODEL");
  return path ? path : "";
}

bool has_demo_model() {
  if (!demo_model().empty()) return true;
  std::printf("SKIP demo_model: TANDEM_DEMO_MODEL names no file\n");
  CHECK(!std::getenv("CI"));
  return false;
}

TEST_CASE("SmolLM2 from its GGUF: all 629 lines") {
  if (!has_demo_model()) return;
  const TextModel model = load(demo_model());
  const LineCounts counts =
      compare_lines(model.tokenizer, fixture_lines(TANDEM_FIXTURES "/smollm2/tokenizer.jsonl"));
  CHECK(counts.lines == 629);
  CHECK(counts.wrong_ids == 0);
  CHECK(counts.wrong_round_trips == 0);
  CHECK(model.tokenizer.vocab_size() == 49152);
  CHECK(model.bos_text == "<|im_start|>");
  CHECK(model.eos_text == "<|im_end|>");
}

TEST_CASE("SmolLM2's chat template: 46 lines; the chat path differs just where control tokens are typed") {
  if (!has_demo_model()) return;
  const TextModel model = load(demo_model());
  REQUIRE(model.chat_template);
  int lines = 0, errors = 0;
  std::vector<std::string> differ;
  for (const JsonValue& line : fixture_lines(TANDEM_FIXTURES "/smollm2/templates.jsonl")) {
    const std::string name = text_at(line, "name");
    CAPTURE(name);
    ++lines;
    const std::string context = context_of(line, model.bos_text, model.eos_text);
    const Result<std::string> rendered = model.chat_template->render(context);
    const Result<Ids> chat = model.chat_template->encode_chat(model.tokenizer, context);
    if (line.find("error")) {
      CHECK(!rendered);
      CHECK(!chat);
      ++errors;
      continue;
    }
    REQUIRE(rendered);
    REQUIRE(chat);
    CHECK(rendered.value() == text_at(line, "rendered"));
    const Ids want = ids_at(line, "ids");
    CHECK(must(model.tokenizer.encode(text_at(line, "rendered"), kParsed)) == want);
    CHECK(model.tokenizer.decode(chat.value(), false) == rendered.value());
    if (chat.value() != want) differ.push_back(name);
  }
  CHECK(lines == 46);
  CHECK(errors == 3);
  CHECK(differ == std::vector<std::string>(2, "special tokens inside content are parsed"));
}

TEST_CASE("small vocabularies of each kind: the GGUF and tokenizer.json give the reference's ids") {
  for (const std::string kind : {"bpe", "spm", "unigram"}) {
    CAPTURE(kind);
    const std::string folder = TANDEM_FIXTURES "/tiny/tokenizers/" + kind;
    const TextModel gguf = load(folder + "/vocab.gguf");
    const TextModel json = must(load_tokenizer_dir(folder));
    const std::vector<JsonValue> lines = fixture_lines(folder + "/ids.jsonl");
    for (const Tokenizer* t : {&gguf.tokenizer, &json.tokenizer}) {
      CAPTURE((t == &json.tokenizer));
      const LineCounts counts = compare_lines(*t, lines);
      CHECK(counts.lines == static_cast<int>(lines.size()));
      CHECK(counts.wrong_ids == 0);
      // SentencePiece reads a literal "▁" as a space (3 lines); the unigram vocabulary has no bytes for what it lacks.
      if (kind != "unigram") CHECK(counts.wrong_round_trips == (kind == "spm" ? 3 : 0));
    }
  }
}

}  // namespace
}  // namespace tandem::text
