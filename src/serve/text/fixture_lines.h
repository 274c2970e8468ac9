#pragma once
// Reads reference files of JSON lines, for tests. A fault in them ends the test program.

#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/text/small_tokenizer_for_test.h"

namespace tandem::text {

inline std::vector<JsonValue> fixture_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<JsonValue> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(must(JsonValue::parse(line)));
  if (lines.empty()) {
    std::fprintf(stderr, "no lines in %s\n", path.c_str());
    std::abort();
  }
  return lines;
}

inline std::string text_at(const JsonValue& line, std::string_view key) {
  const JsonValue* value = line.find(key);
  return value && value->if_string() ? *value->if_string() : std::string();
}

inline bool flag_at(const JsonValue& line, std::string_view key, bool otherwise) {
  const JsonValue* value = line.find(key);
  return value && value->if_bool() ? *value->if_bool() : otherwise;
}

inline std::vector<TokenId> ids_at(const JsonValue& line, std::string_view key) {
  std::vector<TokenId> ids;
  const JsonValue* value = line.find(key);
  if (!value || !value->if_array()) return ids;
  for (const JsonValue& id : *value->if_array()) {
    int64_t number = -1;
    id.as_int64(number);
    ids.push_back(static_cast<TokenId>(number));
  }
  return ids;
}

// A template line as the context of a render: all that the line has but the expectations, and BOS and EOS.
inline std::string context_of(const JsonValue& line, const std::string& bos, const std::string& eos) {
  JsonWriter out;
  out.begin_object();
  for (const auto& [key, value] : *line.if_object())
    if (key != "name" && key != "rendered" && key != "ids" && key != "error") out.key(key).value(value);
  out.key("bos_token").string(bos);
  out.key("eos_token").string(eos);
  out.end_object();
  return out.take();
}

// How many lines of {text, ids, special, roundtrip?} do not come out as they should. Prints those whose ids differ.
// "roundtrip": false says that decoding does not give the text back.
struct LineCounts {
  int lines = 0;
  int wrong_ids = 0;
  int wrong_round_trips = 0;
};

inline LineCounts compare_lines(const Tokenizer& tokenizer, const std::vector<JsonValue>& lines) {
  LineCounts counts;
  for (const JsonValue& line : lines) {
    if (!line.find("text")) continue;  // the header
    const std::string text = text_at(line, "text");
    const bool is_special = flag_at(line, "special", false);
    const std::vector<TokenId> want = ids_at(line, "ids");
    const std::vector<TokenId> got = must(tokenizer.encode(text, {.add_special = false, .parse_control = is_special}));
    ++counts.lines;
    if (got != want) {
      ++counts.wrong_ids;
      std::printf("ids differ (%s, special %d): \"%.60s\"\n", text_at(line, "kind").c_str(), is_special, text.c_str());
      for (TokenId id : want) std::printf(" %d", id);
      std::printf(" expected, got");
      for (TokenId id : got) std::printf(" %d", id);
      std::printf("\n");
    }
    const bool comes_back = tokenizer.decode(want, false) == text;
    counts.wrong_round_trips += comes_back != flag_at(line, "roundtrip", true);
  }
  return counts;
}

}  // namespace tandem::text
