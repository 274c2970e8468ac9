#include "serve/text/tokenizer.h"

#include "serve/text/text_handle.h"

namespace tandem::text {

namespace {

std::vector<tt_str> raw_list(const std::vector<std::string>& strings) {
  std::vector<tt_str> list;
  list.reserve(strings.size());
  for (const std::string& s : strings) list.push_back(raw_str(s));
  return list;
}

std::optional<TokenId> known(int64_t id) {
  if (id < 0) return std::nullopt;
  return static_cast<TokenId>(id);
}

// What files that leave the flag out mean by it, as their other readers take it.
bool adds_bos_by_default(const TokenizerParts& parts) {
  if (parts.kind == "llama") return true;
  if (parts.kind != "gpt2") return false;
  for (const char* pre : {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"})
    if (parts.pre == pre) return true;
  return false;
}

}  // namespace

void Tokenizer::Free::operator()(tt_tokenizer* handle) const { tt_tokenizer_free(handle); }

Result<Tokenizer> Tokenizer::from_json(std::string_view json) { return from_json(json, nullptr); }

Result<Tokenizer> Tokenizer::from_json(std::string_view json, const tt_config* config) {
  OutText error;
  tt_tokenizer* handle = tt_tokenizer_from_json(raw_str(json), config, error.out());
  if (!handle) return error.error(ErrorCode::kCorrupt);
  return Tokenizer(handle);
}

Result<Tokenizer> Tokenizer::from_parts(const TokenizerParts& parts) {
  if (!parts.types.empty() && parts.types.size() != parts.tokens.size())
    return Error{ErrorCode::kCorrupt, "tokenizer: " + std::to_string(parts.tokens.size()) + " tokens but " +
                                          std::to_string(parts.types.size()) + " token types"};
  if (!parts.scores.empty() && parts.scores.size() != parts.tokens.size())
    return Error{ErrorCode::kCorrupt, "tokenizer: " + std::to_string(parts.tokens.size()) + " tokens but " +
                                          std::to_string(parts.scores.size()) + " scores"};
  const std::vector<tt_str> tokens = raw_list(parts.tokens);
  const std::vector<tt_str> merges = raw_list(parts.merges);
  tt_parts raw{};
  raw.kind = raw_str(parts.kind);
  raw.pre = raw_str(parts.pre);
  raw.tokens = tokens.data();
  raw.n_tokens = tokens.size();
  raw.types = parts.types.empty() ? nullptr : parts.types.data();
  raw.scores = parts.scores.empty() ? nullptr : parts.scores.data();
  raw.merges = merges.data();
  raw.n_merges = merges.size();
  raw.bos = parts.bos;
  raw.eos = parts.eos;
  raw.unk = parts.unk;
  raw.add_bos = parts.add_bos.value_or(adds_bos_by_default(parts));
  raw.add_eos = parts.add_eos.value_or(parts.kind == "t5");
  raw.add_space_prefix = parts.add_space_prefix;
  raw.remove_extra_whitespaces = parts.remove_extra_whitespaces;
  raw.charsmap = raw_str(parts.charsmap);
  OutText error;
  tt_tokenizer* handle = tt_tokenizer_from_parts(&raw, error.out());
  if (!handle) return error.error(ErrorCode::kCorrupt).during("tokenizer");
  return Tokenizer(handle);
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  OutIds ids;
  OutText error;
  if (!tt_encode(handle(), raw_str(text), options.add_special, options.parse_control, ids.out(), error.out()))
    return error.error(ErrorCode::kInvalidArgument);
  return ids.take();
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, bool skip_special) const {
  OutText text;
  OutText error;
  // It fails on a null handle only, which no Tokenizer has.
  tt_decode(handle(), raw_ids(ids), ids.size(), skip_special, text.out(), error.out());
  return text.str();
}

size_t Tokenizer::vocab_size() const { return tt_vocab_size(handle()); }

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return view_of(tt_token_bytes(handle(), static_cast<uint32_t>(id)));
}

bool Tokenizer::is_control(TokenId id) const { return tt_token_is_control(handle(), static_cast<uint32_t>(id)); }

std::optional<TokenId> Tokenizer::token_id(std::string_view text) const {
  return known(tt_token_id(handle(), raw_str(text)));
}

std::optional<TokenId> Tokenizer::bos() const { return known(tt_tokenizer_bos(handle())); }

std::optional<TokenId> Tokenizer::eos() const { return known(tt_tokenizer_eos(handle())); }

}  // namespace tandem::text
