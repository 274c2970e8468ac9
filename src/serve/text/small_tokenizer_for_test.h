#pragma once
// Vocabularies small enough to know every id, for tests: bytes, a few merges, and control tokens.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "serve/text/tokenizer.h"

namespace tandem::text {

// GPT-2's printable name of a byte, in UTF-8.
inline std::string byte_name(int byte) {
  int next = 256;
  int code = 0;
  for (int i = 0; i <= byte; ++i) {
    const bool is_printable = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
    code = is_printable ? i : next++;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
}

constexpr TokenId kLl = 257, kHell = 258, kImStart = 259, kImEnd = 260, kEnd = 261, kToolCall = 262;

// Ids 0-255 are the bytes, 256-258 "he", "ll", "hell", then the names above.
inline TokenizerParts byte_level_parts() {
  TokenizerParts parts;
  parts.kind = "gpt2";
  parts.pre = "gpt-2";
  for (int b = 0; b < 256; ++b) parts.tokens.push_back(byte_name(b));
  for (const char* t : {"he", "ll", "hell"}) parts.tokens.push_back(t);
  parts.types.assign(parts.tokens.size(), 1);
  for (const char* t : {"<|im_start|>", "<|im_end|>", "<|end|>"}) parts.tokens.push_back(t), parts.types.push_back(3);
  parts.tokens.push_back("<tool_call>"), parts.types.push_back(4);
  parts.merges = {"h e", "l l", "he ll"};
  parts.bos = kImStart;
  parts.eos = kEnd;
  parts.add_bos = true;
  return parts;
}

// The SentencePiece kinds ("llama", "t5"): scores instead of merges, "▁" for a space, bytes as "<0xNN>". Ids:
// 0 <unk>, 1 <s>, 2 </s>, 3-258 the bytes, then the pieces.
inline TokenizerParts sentencepiece_parts(const std::string& kind) {
  TokenizerParts parts;
  parts.kind = kind;
  parts.tokens = {"<unk>", "<s>", "</s>"};
  parts.types = {2, 3, 3};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    parts.tokens.push_back(name), parts.types.push_back(6);
  }
  const size_t first = parts.tokens.size();
  for (const char* t : {"▁a", "▁ab", "ab", "▁", "a", "b", "<", "/", "s", ">", "0", "x", "4", "1"})
    parts.tokens.push_back(t), parts.types.push_back(1);
  parts.scores.assign(parts.tokens.size(), -20.f);
  for (size_t i = first; i < parts.tokens.size(); ++i) parts.scores[i] = -1.f - 0.1f * static_cast<float>(i - first);
  parts.scores[2] = 0;  // a control piece with the best score of all, as T5 has it
  parts.bos = 1;
  parts.eos = 2;
  parts.unk = 0;
  parts.add_bos = false;
  parts.add_eos = true;
  return parts;
}

// Aborts the test program when `result` is an error: for what a test takes for granted.
template <class T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::abort();
  }
  return std::move(result).value();
}

inline bool has_control(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (TokenId id : ids)
    if (tokenizer.is_control(id)) return true;
  return false;
}

}  // namespace tandem::text
