#include "serve/text/text_model.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "serve/text/small_tokenizer_for_test.h"

namespace tandem::text {
namespace {

using Ids = std::vector<TokenId>;
using Files = std::vector<std::pair<std::string, std::string>>;

constexpr char kChat[] = R"({"messages":[{"role":"user","content":"a"}]})";
constexpr EncodeOptions kWhole{.add_special = true, .parse_control = false};

// The letters a, b and their pair, "<s>" and "</s>" as added tokens, and BOS from the post-processor.
constexpr char kTokenizerJson[] = R"({
  "added_tokens": [
    {"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true},
    {"id": 4, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

// A directory with the given files, removed at the end.
class Directory {
 public:
  explicit Directory(const Files& files) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("tandem_text_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directory(path_);
    for (const auto& [name, content] : files) std::ofstream(path_ / name) << content;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Result<TextModel> load() const { return load_tokenizer_dir(path_.string()); }

 private:
  std::filesystem::path path_;
};

std::string rendered(const ChatTemplate* chat) { return chat ? must(chat->render(kChat)) : "none"; }

TEST_CASE("a directory with tokenizer.json only") {
  const TextModel model = must(Directory(Files{{"tokenizer.json", kTokenizerJson}}).load());
  CHECK(must(model.tokenizer.encode("ab", kWhole)) == Ids{3, 2});
  CHECK(!model.chat_template);
  CHECK(model.template_for(true) == nullptr);
  CHECK(model.bos_text == "");
  CHECK(!model.tokenizer.bos());
}

TEST_CASE("BOS and EOS are strings or objects") {
  const char* config = R"({"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"},
                           "clean_up_tokenization_spaces": true, "chat_template": null})";
  const TextModel model =
      must(Directory({{"tokenizer.json", kTokenizerJson}, {"tokenizer_config.json", config}}).load());
  CHECK(model.bos_text == "<s>");
  CHECK(model.eos_text == "</s>");
  CHECK(model.tokenizer.bos() == 3);
  CHECK(model.tokenizer.eos() == 4);
  CHECK(!model.chat_template);
}

TEST_CASE("the template is a string, a list, a file of its own, or JSON of its own; the file wins") {
  const auto with = [](const char* chat_template) {
    return std::pair<std::string, std::string>("tokenizer_config.json",
                                               std::string("{\"chat_template\": ") + chat_template + "}");
  };
  const std::pair<std::string, std::string> tokenizer("tokenizer.json", kTokenizerJson);
  const std::pair<std::string, std::string> file("chat_template.jinja", "file");
  const std::pair<std::string, std::string> json("chat_template.json", R"({"chat_template": "json"})");
  const char* list = R"([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}])";

  const TextModel as_string = must(Directory({tokenizer, with("\"string\""), json}).load());
  CHECK(rendered(as_string.template_for(false)) == "string");
  CHECK(rendered(as_string.template_for(true)) == "string");
  const TextModel as_list = must(Directory({tokenizer, with(list)}).load());
  CHECK(rendered(as_list.template_for(false)) == "plain");
  CHECK(rendered(as_list.template_for(true)) == "tools");
  CHECK(rendered(must(Directory({tokenizer, with(list), file}).load()).template_for(true)) == "file");
  CHECK(rendered(must(Directory({tokenizer, json}).load()).template_for(false)) == "json");
}

TEST_CASE("the classes that decide about BOS in their configuration do; for others tokenizer.json rules") {
  const auto ids = [](const std::string& config) {
    const std::string all = R"({"bos_token": "<s>", "eos_token": "</s>", )" + config + "}";
    const TextModel model =
        must(Directory({{"tokenizer.json", kTokenizerJson}, {"tokenizer_config.json", all}}).load());
    return must(model.tokenizer.encode("ab", kWhole));
  };
  CHECK(ids(R"("tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false)") == Ids{2});
  CHECK(ids(R"("tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "add_eos_token": true)") == Ids{3, 2, 4});
  CHECK(ids(R"("tokenizer_class": "LlamaTokenizer")") == Ids{3, 2});
  CHECK(ids(R"("tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": false)") == Ids{3, 2});
}

TEST_CASE("what is wrong in a directory is an error that names the file") {
  const auto message = [](const Files& files) {
    Result<TextModel> model = Directory(files).load();
    return model ? std::string() : model.error().message;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const std::pair<std::string, std::string> tokenizer("tokenizer.json", kTokenizerJson);
  CHECK(has(message({}), "tokenizer.json"));
  CHECK(Directory(Files{}).load().error().code == ErrorCode::kNotFound);
  CHECK(has(message({{"tokenizer.json", "{}"}}), "tokenizer.json"));
  CHECK(has(message({tokenizer, {"tokenizer_config.json", "["}}), "tokenizer_config.json"));
  CHECK(has(message({tokenizer, {"tokenizer_config.json", "[]"}}), "tokenizer_config.json"));
  const auto model_json = [](const std::string& model) {
    const char* decoder = R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
    return std::pair<std::string, std::string>(
        "tokenizer.json", std::string("{\"decoder\": ") + decoder + ", \"model\": " + model + "}");
  };
  CHECK(has(message({model_json(R"({"type": "WordPiece", "vocab": {}})")}), "WordPiece"));
  CHECK(has(message({model_json(R"({"type": "BPE", "vocab": {"a": 4294967295}, "merges": []})")}), "out of range"));
  CHECK(has(message({model_json(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]})")}), "model"));
}

TEST_CASE("a GGUF's parts and template make a model with the same face") {
  const TextModel model = must(text_model_from_parts(byte_level_parts(), "{{ bos_token }}x"));
  CHECK(model.bos_text == "<|im_start|>");
  CHECK(model.eos_text == "<|end|>");
  CHECK(rendered(model.template_for(true)) == "x");
  CHECK(!must(text_model_from_parts(byte_level_parts(), "")).chat_template);
}

// The fault put in: a template that does not compile was an error of the whole model.
TEST_CASE("TPL-05 a template that does not compile leaves the model usable and is named with its line") {
  const std::string source = "{% for m in messages %}\n{{ m.content }}\n{% if %}\n{% endfor %}";
  const TextModel from_parts = must(text_model_from_parts(byte_level_parts(), source));
  const TextModel from_directory =
      must(Directory(Files{{"tokenizer.json", kTokenizerJson}, {"chat_template.jinja", source}}).load());
  for (const TextModel* model : {&from_parts, &from_directory}) {
    CHECK(model->template_for(false) == nullptr);
    CHECK(model->template_for(true) == nullptr);
    CHECK(model->template_error.find("3") != std::string::npos);
  }
  CHECK(must(text_model_from_parts(byte_level_parts(), "{{ strftime_now('%Y') }}{% generation %}{% endgeneration %}"))
            .template_error.empty());
}

TEST_CASE("tokens for infilling are found by their names, and where a GGUF names their ids, by those") {
  CHECK(!must(text_model_from_parts(byte_level_parts(), "")).infill);
  TokenizerParts parts = byte_level_parts();
  for (const char* name : {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}) {
    CHECK(!must(text_model_from_parts(parts, "")).infill);
    parts.tokens.push_back(name), parts.types.push_back(3);
  }
  const auto by_name = must(text_model_from_parts(parts, "")).infill;
  REQUIRE(by_name);
  CHECK(by_name->prefix == kToolCall + 1);
  CHECK(by_name->suffix == kToolCall + 2);
  CHECK(by_name->middle == kToolCall + 3);
  parts.fim_prefix = kImStart;
  parts.fim_suffix = kImEnd;
  CHECK(must(text_model_from_parts(parts, "")).infill->prefix == kToolCall + 1);  // two of three name nothing
  parts.fim_middle = 1 << 20;
  CHECK(must(text_model_from_parts(parts, "")).infill->prefix == kToolCall + 1);
  parts.fim_middle = kEnd;
  const auto by_id = must(text_model_from_parts(parts, "")).infill;
  CHECK(by_id->prefix == kImStart);
  CHECK(by_id->middle == kEnd);
}

}  // namespace
}  // namespace tandem::text
