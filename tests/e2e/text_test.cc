// Tokenizers and chat templates from model files, against what other implementations computed.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "apps/model_text.h"
#include "serve/text/fixture_lines.h"

namespace tandem::text {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  out += static_cast<char>((0xFF00 >> (more + 1) & 0xFF) | code >> 6 * more);
  for (int i = more; i-- > 0;) out += static_cast<char>(0x80 | (code >> 6 * i & 63));
}

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

TEST_CASE("TOK-04: SmolLM2 from its GGUF: all 629 lines") {
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

// TOK-03 fails when the space prefix is left out, TOK-04 when a pre-tokenizer is another one's, TOK-05 when what a
// vocabulary lacks is not read as bytes.
TEST_CASE("TOK-03, TOK-04, TOK-05: small vocabularies of each kind: GGUF and tokenizer.json give the reference's ids") {
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

// Fails when the two readers differ in a step of the pipeline. What other programs make of random text is not compared.
TEST_CASE("TOK-04: random Unicode: the GGUF and tokenizer.json of a vocabulary give the same ids, and the text again") {
  std::mt19937 random(17);
  const auto code_point = [&random]() -> uint32_t {
    const uint32_t limits[] = {0x80, 0x100, 0x800, 0x3000, 0xD800, 0x20000, 0x110000};
    const uint32_t code = random() % limits[random() % std::size(limits)];
    return code >= 0xD800 && code < 0xE000 ? ' ' : code;
  };
  const char* spice[] = {"\n\n", "\r\n", "\t", "   ", "1234567", "don't", " t", "e\u0301", "...", "<s>", "</s>"};
  for (const std::string kind : {"bpe", "spm"}) {
    const std::string folder = TANDEM_FIXTURES "/tiny/tokenizers/" + kind;
    const TextModel gguf = load(folder + "/vocab.gguf");
    const TextModel json = must(load_tokenizer_dir(folder));
    for (int round = 0; round < 10'000; ++round) {
      std::string text;
      for (int n = 1 + static_cast<int>(random() % 12); n > 0; --n) {
        if (random() % 3 == 0) text += spice[random() % std::size(spice)];
        else append_utf8(text, code_point());
      }
      const Ids ids = must(gguf.tokenizer.encode(text));
      if (ids != must(json.tokenizer.encode(text))) FAIL_CHECK(kind << " differs: " << text);
      const bool may_differ = kind == "spm" && text.find("▁") != std::string::npos;
      if (!may_differ && json.tokenizer.decode(ids, false) != text) FAIL_CHECK(kind << " loses: " << text);
    }
  }
}

// Fails when one of the places that name an end token is not read.
TEST_CASE("SMP-10: the tokens that end a text are those of config, generation_config and tokenizer_config together") {
  namespace fs = std::filesystem;
  const fs::path dir = fs::temp_directory_path() / ("tandem-ends-" + std::to_string(getpid()));
  fs::copy(TANDEM_FIXTURES "/tiny/llama-mha", dir, fs::copy_options::recursive);
  const auto ends = [&dir] {
    const model::WeightFiles files = must(model::WeightFiles::open(dir.string()));
    return apps::end_ids(must(model::read_config(files)), must(apps::load_text_model(files)));
  };
  CHECK(ends() == Ids{500, 497});
  std::ofstream(dir / "generation_config.json") << R"({"eos_token_id":[497]})";
  std::ofstream(dir / "tokenizer_config.json") << R"({"eos_token":"<|end_header_id|>"})";
  CHECK(ends() == Ids{500, 497, 499});
  fs::remove(dir / "generation_config.json");
  CHECK(ends() == Ids{500, 499});
  fs::remove_all(dir);
  const model::WeightFiles gguf = must(model::WeightFiles::open(TANDEM_FIXTURES "/tiny/llama-mha.F16.gguf"));
  CHECK(apps::end_ids(must(model::read_config(gguf)), must(apps::load_text_model(gguf))) == Ids{500});
}

}  // namespace
}  // namespace tandem::text
