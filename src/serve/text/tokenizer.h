#pragma once
// Tokenizer: text to token ids and back. Immutable; any number of threads may use one at once.
//
// Two ways to read a text: with control tokens parsed ("<|im_end|>" becomes one id), for prompts whose
// writer may do all that the server may; and as plain text, from which no control token can come out,
// whatever it says. Invalid UTF-8 is read as U+FFFD.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sampling_params.h"

extern "C" {
struct tt_tokenizer;
struct tt_config;
}

namespace tandem::text {

// What a GGUF file's metadata holds under tokenizer.ggml.*; -1 is an id that the file does not name.
struct TokenizerParts {
  std::string kind;                 // .model: "gpt2", "llama" or "t5"
  std::string pre;                  // .pre, for "gpt2"; an unknown name is an error
  std::vector<std::string> tokens;
  std::vector<int32_t> types;       // .token_type: 1 normal 2 unknown 3 control 4 user 5 unused 6 byte; or empty
  std::vector<float> scores;        // for "llama" and "t5"
  std::vector<std::string> merges;  // for "gpt2"
  int64_t bos = -1;
  int64_t eos = -1;
  int64_t unk = -1;
  int64_t fim_prefix = -1;          // .fim_pre_token_id and so on; all three or none
  int64_t fim_suffix = -1;
  int64_t fim_middle = -1;
  std::optional<bool> add_bos;      // absent: what models of that kind expect
  std::optional<bool> add_eos;
  bool add_space_prefix = true;     // "gpt2" has none
  bool remove_extra_whitespaces = false;  // for "t5"
  std::string charsmap;             // .precompiled_charsmap, bytes; for "t5", may be empty
};

struct EncodeOptions {
  bool add_special = false;    // BOS and EOS as the model wants; never for a rendered chat prompt, which has its own
  bool parse_control = false;  // read the texts of control tokens as those tokens
};

class Tokenizer {
 public:
  // From the bytes of a tokenizer.json (Hugging Face).
  static Result<Tokenizer> from_json(std::string_view json);
  // The same with a parsed tokenizer_config.json, which says BOS and EOS; null: none.
  static Result<Tokenizer> from_json(std::string_view json, const tt_config* config);
  // From a GGUF file's metadata. Everything is copied.
  static Result<Tokenizer> from_parts(const TokenizerParts& parts);

  Tokenizer(Tokenizer&&) noexcept = default;
  Tokenizer& operator=(Tokenizer&&) noexcept = default;

  Result<std::vector<TokenId>> encode(std::string_view text, EncodeOptions options = {}) const;
  // Ids outside the vocabulary stand for nothing. Always valid UTF-8. skip_special leaves out control tokens
  // that the file marks special.
  std::string decode(const std::vector<TokenId>& ids, bool skip_special) const;

  // One more than the highest id.
  size_t vocab_size() const;
  // The bytes that a token stands for, perhaps a part of a character; a control token's are its name. Empty
  // for an unknown id. Lives as long as the tokenizer.
  std::string_view token_bytes(TokenId id) const;
  bool is_control(TokenId id) const;
  std::optional<TokenId> token_id(std::string_view text) const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;

  // For this folder's classes.
  const tt_tokenizer* handle() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(tt_tokenizer* handle) const;
  };
  explicit Tokenizer(tt_tokenizer* handle) : handle_(handle) {}

  std::unique_ptr<tt_tokenizer, Free> handle_;
};

}  // namespace tandem::text
