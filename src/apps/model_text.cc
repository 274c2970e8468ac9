#include "apps/model_text.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::apps {

namespace {

std::string key_of(const char* name) { return std::string("tokenizer.ggml.") + name; }

Result<std::vector<std::string>> strings_or_none(const model::Metadata& metadata, const char* name) {
  std::vector<std::string> strings;
  if (!metadata.has(key_of(name))) return strings;
  TRY_ASSIGN(const std::vector<std::string_view> views, metadata.get_strings(key_of(name)));
  strings.assign(views.begin(), views.end());
  return strings;
}

Result<int64_t> id_or_none(const model::Metadata& metadata, const char* name) {
  if (!metadata.has(key_of(name))) return int64_t{-1};
  TRY_ASSIGN(const uint32_t id, metadata.get_u32(key_of(name)));
  return int64_t{id};
}

Result<std::optional<bool>> flag_or_none(const model::Metadata& metadata, const char* name) {
  if (!metadata.has(key_of(name))) return std::optional<bool>();
  TRY_ASSIGN(const bool flag, metadata.get_bool(key_of(name)));
  return std::optional<bool>(flag);
}

}  // namespace

Result<text::TokenizerParts> tokenizer_parts(const model::Metadata& metadata) {
  text::TokenizerParts parts;
  TRY_ASSIGN(parts.kind, metadata.get_string(key_of("model")));
  TRY_ASSIGN(parts.pre, metadata.get_string_or(key_of("pre"), ""));
  TRY_ASSIGN(parts.tokens, strings_or_none(metadata, "tokens"));
  TRY_ASSIGN(parts.merges, strings_or_none(metadata, "merges"));
  if (metadata.has(key_of("token_type"))) {
    TRY_ASSIGN(parts.types, metadata.get_ints(key_of("token_type")));
  }
  if (metadata.has(key_of("scores"))) {
    TRY_ASSIGN(parts.scores, metadata.get_floats(key_of("scores")));
  }
  TRY_ASSIGN(parts.bos, id_or_none(metadata, "bos_token_id"));
  TRY_ASSIGN(parts.eos, id_or_none(metadata, "eos_token_id"));
  TRY_ASSIGN(parts.unk, id_or_none(metadata, "unknown_token_id"));
  // The longer names are the newer ones.
  const auto fim = [&](const char* name, const char* old_name) {
    return id_or_none(metadata, metadata.has(key_of(name)) ? name : old_name);
  };
  TRY_ASSIGN(parts.fim_prefix, fim("fim_pre_token_id", "prefix_token_id"));
  TRY_ASSIGN(parts.fim_suffix, fim("fim_suf_token_id", "suffix_token_id"));
  TRY_ASSIGN(parts.fim_middle, fim("fim_mid_token_id", "middle_token_id"));
  TRY_ASSIGN(parts.add_bos, flag_or_none(metadata, "add_bos_token"));
  TRY_ASSIGN(parts.add_eos, flag_or_none(metadata, "add_eos_token"));
  TRY_ASSIGN(parts.add_space_prefix, metadata.get_bool_or(key_of("add_space_prefix"), true));
  TRY_ASSIGN(parts.remove_extra_whitespaces, metadata.get_bool_or(key_of("remove_extra_whitespaces"), false));
  if (metadata.has(key_of("precompiled_charsmap"))) {
    TRY_ASSIGN(const std::vector<int32_t> bytes, metadata.get_ints(key_of("precompiled_charsmap")));
    for (const int32_t byte : bytes) parts.charsmap.push_back(static_cast<char>(byte));
  }
  return parts;
}

Result<text::TextModel> load_text_model(const model::WeightFiles& files) {
  if (!files.is_gguf()) return text::load_tokenizer_dir(files.directory());
  TRY_ASSIGN(const text::TokenizerParts parts, tokenizer_parts(files.metadata()));
  TRY_ASSIGN(const std::string_view chat_template, files.metadata().get_string_or("tokenizer.chat_template", ""));
  Result<text::TextModel> model = text::text_model_from_parts(parts, chat_template);
  if (!model) return std::move(model).error().during(files.path());
  return model;
}

std::vector<TokenId> end_ids(const model::ModelConfig& config, const text::TextModel& text) {
  std::vector<TokenId> ids = config.eos_ids;
  const std::optional<TokenId> own = text.tokenizer.eos();
  const bool is_new = own && static_cast<uint32_t>(*own) < config.vocab && std::ranges::find(ids, *own) == ids.end();
  if (is_new) ids.push_back(*own);
  return ids;
}

}  // namespace tandem::apps
