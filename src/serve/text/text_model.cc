#include "serve/text/text_model.h"

#include <memory>

#include "base/log.h"
#include "base/mapped_file.h"
#include "serve/text/text_handle.h"

namespace tandem::text {

namespace {

using Config = std::unique_ptr<tt_config, FreeWith<tt_config_free>>;

// kNotFound when there is no such file.
Result<std::string> read_file(const std::string& path) {
  TRY_ASSIGN(MappedFile file, MappedFile::open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

// As read_file, but a missing file is an empty text.
Result<std::string> read_if_there(const std::string& path) {
  Result<std::string> bytes = read_file(path);
  if (!bytes && bytes.error().code == ErrorCode::kNotFound) return std::string();
  return bytes;
}

Result<Config> parse_config(const std::string& json, const std::string& path) {
  OutText error;
  Config config(tt_config_parse(raw_str(json.empty() ? "{}" : json), error.out()));
  if (!config) return error.error(ErrorCode::kCorrupt).during(path);
  return config;
}

std::string template_named(const Config& config, std::string_view name) {
  return std::string(view_of(tt_config_template(config.get(), raw_str(name))));
}

// A template that does not compile costs the chats, not the model.
std::optional<ChatTemplate> compile_if_any(const std::string& source, std::string& error) {
  if (source.empty()) return std::nullopt;
  Result<ChatTemplate> compiled = ChatTemplate::compile(source);
  if (compiled) return std::move(compiled).value();
  error = compiled.error().message;
  log_warning("serve/text", "the model's chat template can not be compiled; chats are refused", {{"error", error}});
  return std::nullopt;
}

void use_templates(const std::string& source, const std::string& tool_source, TextModel& model) {
  model.chat_template = compile_if_any(source, model.template_error);
  model.tool_template = compile_if_any(tool_source, model.template_error);
  model.tool_call_format = detect_tool_call_format(tool_source.empty() ? source : tool_source);
}

std::string text_of(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::string(tokenizer.token_bytes(*id)) : std::string();
}

// By the names that models give them.
std::optional<InfillTokens> infill_tokens_of(const Tokenizer& tokenizer) {
  constexpr const char* kNames[][3] = {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
                                       {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
                                       {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
                                       {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}};
  for (const auto& [prefix, suffix, middle] : kNames) {
    const auto first = tokenizer.token_id(prefix), second = tokenizer.token_id(suffix);
    const auto third = tokenizer.token_id(middle);
    if (first && second && third) return InfillTokens{*first, *second, *third};
  }
  return std::nullopt;
}

}  // namespace

const ChatTemplate* TextModel::template_for(bool has_tools) const {
  if (has_tools && tool_template) return &*tool_template;
  return chat_template ? &*chat_template : nullptr;
}

Result<TextModel> load_tokenizer_dir(const std::string& directory) {
  const std::string base = directory + "/";
  TRY_ASSIGN(std::string json, read_file(base + "tokenizer.json"));
  TRY_ASSIGN(std::string config_json, read_if_there(base + "tokenizer_config.json"));
  TRY_ASSIGN(Config config, parse_config(config_json, base + "tokenizer_config.json"));

  TRY_ASSIGN(std::string source, read_if_there(base + "chat_template.jinja"));
  std::string tool_source;
  if (source.empty()) {
    source = template_named(config, "default");
    tool_source = template_named(config, "tool_use");
  }
  if (source.empty()) {
    // {"chat_template": "..."}: the same key, so the same reader.
    TRY_ASSIGN(std::string template_json, read_if_there(base + "chat_template.json"));
    TRY_ASSIGN(Config holder, parse_config(template_json, base + "chat_template.json"));
    source = template_named(holder, "default");
  }

  Result<Tokenizer> tokenizer = Tokenizer::from_json(json, config.get());
  if (!tokenizer) return std::move(tokenizer).error().during(directory);
  const auto infill = infill_tokens_of(*tokenizer);
  TextModel model{std::move(tokenizer).value(),
                  std::nullopt,
                  std::nullopt,
                  std::string(view_of(tt_config_bos(config.get()))),
                  std::string(view_of(tt_config_eos(config.get()))),
                  infill,
                  ToolCallFormat::kNone,
                  {}};
  use_templates(source, tool_source, model);
  return model;
}

Result<TextModel> text_model_from_parts(const TokenizerParts& parts, std::string_view chat_template) {
  TRY_ASSIGN(Tokenizer tokenizer, Tokenizer::from_parts(parts));
  std::string bos = text_of(tokenizer, tokenizer.bos());
  std::string eos = text_of(tokenizer, tokenizer.eos());
  auto infill = infill_tokens_of(tokenizer);
  const auto is_token = [&](int64_t id) { return id >= 0 && static_cast<size_t>(id) < tokenizer.vocab_size(); };
  if (is_token(parts.fim_prefix) && is_token(parts.fim_suffix) && is_token(parts.fim_middle)) {
    infill = InfillTokens{static_cast<TokenId>(parts.fim_prefix), static_cast<TokenId>(parts.fim_suffix),
                          static_cast<TokenId>(parts.fim_middle)};
  }
  TextModel model{std::move(tokenizer), std::nullopt, std::nullopt, std::move(bos), std::move(eos), infill,
                  ToolCallFormat::kNone, {}};
  use_templates(std::string(chat_template), {}, model);
  return model;
}

}  // namespace tandem::text
