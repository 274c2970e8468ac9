#include "serve/text/tool_call_parser.h"

#include <doctest/doctest.h>

#include <array>
#include <random>

#include "base/utf8.h"
#include "serve/text/output_text.h"
#include "serve/text/small_tokenizer_for_test.h"
#include "serve/text/tool_call_reader.h"

namespace tandem::text {
namespace {

using Format = ToolCallFormat;

ToolCallRules rules_for(Format format) {
  ToolCallRules rules;
  rules.format = format;
  const char* schema = R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
                           "deep":{"type":"object"},"maybe":{"type":["integer","null"]},
                           "either":{"anyOf":[{"type":"number"},{"type":"null"}]},
                           "loose":{"oneOf":[{"type":"integer"},{"type":"string"}]}}})";
  rules.tools.push_back({"get_weather", must(JsonValue::parse(schema))});
  rules.tools.push_back({"now", std::nullopt});
  rules.only_tool = "get_weather";
  return rules;
}

// "text|call(arguments)|text": content as it is, each call in parentheses.
std::string shown(const std::vector<AnswerPart>& parts) {
  std::string out;
  for (const AnswerPart& part : parts) {
    if (!out.empty()) out += '|';
    out += part.is_call ? part.name + "(" + part.text + ")" : part.text;
  }
  return out;
}

std::string parsed(const ToolCallRules& rules, const std::vector<std::string_view>& pieces) {
  ToolCallParser parser(std::make_shared<const ToolCallRules>(rules));
  std::vector<AnswerPart> parts;
  std::vector<AnswerPiece> out;
  const auto take = [&] {
    for (const AnswerPiece& piece : out) {
      CHECK(!piece.text.empty());
      append_piece(parts, piece);
    }
    out.clear();
  };
  for (std::string_view piece : pieces) {
    parser.push(piece, false, out);
    for (const AnswerPiece& said : out) CHECK(is_valid_utf8(said.text));
    take();
  }
  parser.finish(out);
  take();
  return shown(parts);
}

// What the whole text gives; CHECKs that every cut in two, and byte for byte, gives the same.
std::string parsed_every_way(const ToolCallRules& rules, std::string_view text) {
  const std::string whole = parsed(rules, {text});
  for (size_t cut = 1; cut < text.size(); ++cut) {
    const std::string in_two = parsed(rules, {text.substr(0, cut), text.substr(cut)});
    CHECK_MESSAGE(in_two == whole, "cut at " << cut << " of " << text);
  }
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  CHECK_MESSAGE(parsed(rules, bytes) == whole, text);
  return whole;
}

struct Row {
  Format format;
  std::string_view text;
  std::string_view expected;
};

void check_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const std::string got = parsed_every_way(rules_for(row.format), row.text);
    CHECK_MESSAGE(got == row.expected, row.text);
  }
}

TEST_CASE("Hermes: calls, content around them, members in any order, whatever the cuts") {
  check_rows({
      {Format::kHermes, "Just text < here > and </tool_call>.", "Just text < here > and </tool_call>."},
      {Format::kHermes, " \n plain", " \n plain"},
      {Format::kHermes, " \n ", " \n "},
      {Format::kHermes, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n</tool_call>",
       "now({\"a\": [1, {\"b\": \"}\"}]})"},
      {Format::kHermes, "Let me see.\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
       "Let me see.\n|now({})"},
      {Format::kHermes, "\n<tool_call>{\"arguments\":{\"x\":\"\\\"\"},\"name\":\"now\"}</tool_call>\n",
       "now({\"x\":\"\\\"\"})"},
      {Format::kHermes, "<tool_call>{\"name\":\"now\"}</tool_call>", "now({})"},
      {Format::kHermes, "<tool_call>{\"name\":\"unknown\",\"parameters\":{}}</tool_call>", "unknown({})"},
      {Format::kHermes,
       "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":{}}"
       "</tool_call>\nDone.",
       "a({})|b({})|\nDone."},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{}}<tool_call>{\"name\":\"b\",\"arguments\":{}}",
       "a({})|b({})"},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\":1}</tool_call>after", "a({\"x\":1})|after"},
      {Format::kHermes,
       "<tool_call>{\"name\":\"a\",\"arguments\":{\"t\":\"\xE8\xB5\x8B\xF0\x9F\x98\x80\"}}</tool_call>",
       "a({\"t\":\"\xE8\xB5\x8B\xF0\x9F\x98\x80\"})"},
      {Format::kHermes, "<tool_call>{\"name\":\"\\u0061\\n\",\"arguments\":{}}</tool_call>", "a\n({})"},
  });
}

TEST_CASE("what has no right head is content, to the byte") {
  for (const std::string_view text :
       {"<tool_call>", "<tool_call>x</tool_call>", "<tool_call>\n{'name': 'a'}\n</tool_call>",
        "<tool_call>{\"name\":", "<tool_call>{\"name\":3,\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"\",\"arguments\":{}}", "<tool_call>{\"name\":\"a\",\"arguments\":\"{}\"}</tool_call>",
        "<tool_call>{\"arguments\":{}}</tool_call>", "<tool_call>{}</tool_call>", "<tool_call>{\"arguments\":{\"x\":1",
        "<tool", "<tool_call><function>", " <tool_call> <function=a>x", "<tool_call><function=a\n>",
        "\n<tool_call>{\"name\" \"a\"}", "<tool_call>{\"name\":\"a\",,\"arguments\":{}}</tool_call>"}) {
    CHECK(parsed_every_way(rules_for(Format::kHermes), text) == text);
  }
  for (const std::string_view text :
       {"[TOOL_CALLS]", "[TOOL_CALLS] x y{", "[TOOL_CALLS][]", "[TOOL_CALLS][1]", "[TOOL_CALLS]a[ARGS]1",
        "[TOOL_CALLS]a[ARG]{}", "[TOOL_CALLS][{\"name\":\"a\",\"arguments\":1}]", "[TOOL_",
        "[TOOL_CALLS]a[CALL_ID]b"}) {
    CHECK(parsed_every_way(rules_for(Format::kMistral), text) == text);
  }
  for (const std::string_view text :
       {"{\"name\":\"now\"}", "{\"name\":\"other\",\"parameters\":{}}", "{\"a\":1}", "<|python_tag|>print(1)", "{",
        "{\"name\": \"now\", \"parameters\": 3}", "x {\"name\":\"now\",\"parameters\":{}}", "; {\"name\":\"now\"}"}) {
    CHECK(parsed_every_way(rules_for(Format::kLlama3), text) == text);
  }
  // The second marker opens what the first one did not.
  check_rows({{Format::kHermes, "<tool_call><tool_call>{\"name\":\"a\",\"arguments\":{}}", "<tool_call>|a({})"},
              {Format::kHermes, "<tool_call>{\"x\":<tool_call>{\"name\":\"a\"}", "<tool_call>{\"x\":|a({})"}});
}

TEST_CASE("what goes wrong or ends inside arguments stays in them") {
  check_rows({
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\":1", "a({\"x\":1)"},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\":\"\xE8\xB5\x8B", "a({\"x\":\"\xE8\xB5\x8B)"},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{x:1}}</tool_call>b", "a({x:1}})|b"},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\":1]}}</tool", "a({\"x\":1]}}</tool)"},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\":</tool_call>", "a({\"x\":)"},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool", "a({})"},
      {Format::kHermes, "<tool_call>{\"name\":\"a\",\"arguments\":{}}}</tool_call>", "a({})|}"},
      {Format::kMistral, "[TOOL_CALLS]a[ARGS]{\"x\":tru[TOOL_CALLS]b{}", "a({\"x\":tru)|b({})"},
      {Format::kMistral, "[TOOL_CALLS][{\"name\":\"a\",\"arguments\":{}},", "a({})"},
      {Format::kLlama3, "{\"name\":\"now\",\"parameters\":{\"x\":", "now({\"x\":)"},
      {Format::kJsonArguments, "{\"city\":\"O", "get_weather({\"city\":\"O)"},
  });
}

TEST_CASE("Llama 3: bare objects of known tools, several, after <|python_tag|>") {
  check_rows({
      {Format::kLlama3, "{\"name\": \"now\", \"parameters\": {}}", "now({})"},
      {Format::kLlama3, "\n{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}\n",
       "get_weather({\"city\": \"Oslo\"})"},
      {Format::kLlama3, "{\"parameters\": {\"a\": 1}, \"name\": \"now\"}", "now({\"a\": 1})"},
      {Format::kLlama3,
       "{\"name\":\"now\",\"parameters\":{}}; {\"name\":\"get_weather\",\"parameters\":{\"city\":\"x\"}}",
       "now({})|get_weather({\"city\":\"x\"})"},
      {Format::kLlama3, "{\"name\":\"now\",\"parameters\":{}}; what", "now({})|; what"},
      {Format::kLlama3, "Wait. <|python_tag|>{\"name\":\"other\",\"parameters\":{}}", "Wait. |other({})"},
  });
}

TEST_CASE("Mistral: the list, and names with [ARGS]") {
  check_rows({
      {Format::kMistral, "[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {\"x\": 1}, \"id\": \"abc\"}]",
       "a({\"x\": 1})"},
      {Format::kMistral, "[TOOL_CALLS][{\"name\":\"a\",\"arguments\":{}}, {\"name\":\"b\",\"arguments\":{}}]",
       "a({})|b({})"},
      {Format::kMistral, "So: [TOOL_CALLS]a[ARGS]{\"x\": \"[TOOL_CALLS]\"}[TOOL_CALLS]b_2[CALL_ID]123456789[ARGS] {}",
       "So: |a({\"x\": \"[TOOL_CALLS]\"})|b_2({})"},
      {Format::kMistral, "[TOOL_CALLS]a{\"x\":1}ok", "a({\"x\":1})|ok"},
  });
}

TEST_CASE("Qwen3-Coder: parameters take the types of the schema") {
  check_rows({
      {Format::kHermes,
       "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOs\"lo\n</parameter>\n<parameter=days>\n3\n"
       "</parameter>\n<parameter=deep>{\"a\": 1}</parameter>\n</function>\n</tool_call>",
       "I look.\n|get_weather({\"city\": \"Os\\\"lo\", \"days\": 3, \"deep\": {\"a\": 1}})"},
      {Format::kHermes, "<tool_call><function=now></function></tool_call>", "now({})"},
      {Format::kHermes, "<tool_call><function=now><parameter=x>1</parameter></function>", "now({\"x\": \"1\"})"},
      {Format::kHermes, "<tool_call><function=get_weather><parameter=days>many</parameter></function>",
       "get_weather({\"days\": \"many\"})"},
      {Format::kHermes, "<tool_call><function=get_weather><parameter=city>\nOsl", "get_weather({\"city\": \"Osl)"},
      {Format::kHermes, "<tool_call><function=get_weather><parameter=days>1</parameter> no</function>",
       "get_weather({\"days\": 1})|no</function>"},
      {Format::kHermes, "<tool_call><function=now><parameter=<", "now({})|<parameter=<"},
      // The faults: several types count as none; a number that JsonValue refuses counts as text.
      {Format::kHermes,
       "<tool_call><function=get_weather><parameter=maybe>3</parameter><parameter=either>null</parameter>"
       "<parameter=loose>4</parameter></function>",
       "get_weather({\"maybe\": 3, \"either\": null, \"loose\": \"4\"})"},
      {Format::kHermes,
       "<tool_call><function=get_weather><parameter=days>12345678901234567890123</parameter></function>",
       "get_weather({\"days\": 12345678901234567890123})"},
      {Format::kHermes, "<tool_call><function=get_weather><parameter=days>1, 2</parameter></function>",
       "get_weather({\"days\": \"1, 2\"})"},
  });
}

TEST_CASE("numbers of any size and only numbers are scalars; those too large to be read have a nearest double") {
  // The faults: what JsonValue refuses is no number; whatever looks like one is.
  const auto is_json = [](std::string_view text) {
    JsonScanner scanner;
    JsonScanner::Step step = JsonScanner::Step::kBad;
    for (const char c : text) step = scanner.push(c);
    return step == JsonScanner::Step::kDone;
  };
  for (const char* good : {"12345678901234567890123", "-0", "0", "1e999", "-1.5E-999", "0.10", "true", "null"}) {
    CHECK_MESSAGE(is_json("[" + std::string(good) + "]"), good);
    CHECK_MESSAGE(JsonValue::parse(with_readable_numbers("[" + std::string(good) + "]")), good);
  }
  for (const char* bad : {"01", "1.", ".5", "+1", "1e", "--1", "-", "tru", "1.e5", "0x1", "NaN", "1-2"}) {
    CHECK_MESSAGE(!is_json("[" + std::string(bad) + "]"), bad);
    CHECK_MESSAGE(!JsonValue::parse(with_readable_numbers("[" + std::string(bad) + "]")), bad);
  }
  CHECK(is_json("[" + std::string(4000, '7') + "]"));
  CHECK(!is_json("[" + std::string(5000, '7') + "]"));
  CHECK(with_readable_numbers(R"({"a":[1,18446744073709551616,"18446744073709551616"]})") ==
        R"({"a":[1,18446744073709551616.0,"18446744073709551616"]})");
  check_rows(
      {{Format::kHermes, "<tool_call>{\"name\":\"now\",\"arguments\":{\"n\":12345678901234567890123}}</tool_call>",
        "now({\"n\":12345678901234567890123})"}});
}

TEST_CASE("calls that we made the model write: a list, or one tool's arguments") {
  check_rows({
      {Format::kJsonList, "[{\"name\":\"a\",\"parameters\":{\"x\":1}},{\"name\":\"b\",\"parameters\":{}}]",
       "a({\"x\":1})|b({})"},
      {Format::kJsonList, " [\n{\"name\": \"a\", \"parameters\": {}}\n]", "a({})"},
      {Format::kJsonList, "{\"name\":\"a\",\"parameters\":{}}", "a({})"},
      {Format::kJsonList, "sorry", "sorry"},
      {Format::kJsonList, "[]", "[]"},
      {Format::kJsonArguments, "{\"city\": \"Oslo\"}", "get_weather({\"city\": \"Oslo\"})"},
      {Format::kJsonArguments, "\n{} \n", "get_weather({})"},
      {Format::kJsonArguments, "no", "no"},
  });
}

TEST_CASE("without parallel calls those after the first are left out") {
  ToolCallRules rules = rules_for(Format::kMistral);
  rules.is_parallel = false;
  CHECK(parsed_every_way(rules, "[TOOL_CALLS]a{\"x\":1}[TOOL_CALLS]b{\"y\":2}") == "a({\"x\":1})");
}

// The fault: what a name's last byte left unfinished came with the next piece, as a second call.
TEST_CASE("a name that ends inside a character is one call, whatever the cut") {
  const ToolCallRules rules = rules_for(Format::kHermes);
  const std::string_view text = "<tool_call><function=f\xE6\xE6><parameter=a>1</parameter></function></tool_call>";
  for (const size_t piece_bytes : {size_t{1}, size_t{3}, text.size()}) {
    ToolCallParser parser(std::make_shared<const ToolCallRules>(rules));
    std::vector<AnswerPart> parts;
    std::vector<AnswerPiece> out;
    for (size_t at = 0; at < text.size(); at += piece_bytes) parser.push(text.substr(at, piece_bytes), false, out);
    parser.finish(out);
    for (const AnswerPiece& piece : out) append_piece(parts, piece);
    CHECK(shown(parts) == "f\xE6\xE6({\"a\": \"1\"})");
  }
}

TEST_CASE("arguments come as they are written, once the head is there") {
  ToolCallParser parser(std::make_shared<const ToolCallRules>(rules_for(Format::kHermes)));
  std::vector<AnswerPiece> out;
  parser.push("<tool_call>{\"name\":\"a\",\"arguments\":", false, out);
  CHECK(out.empty());
  parser.push("{\"x\":\"\xE8", false, out);
  REQUIRE(out.size() == 2);
  CHECK(out[0] == AnswerPiece{AnswerPiece::Kind::kCall, 0, "a"});
  CHECK(out[1] == AnswerPiece{AnswerPiece::Kind::kArguments, 0, "{\"x\":\""});
  out.clear();
  parser.push("\xB5\x8B", false, out);
  REQUIRE(out.size() == 1);
  CHECK(out[0].text == "\xE8\xB5\x8B");
}

TEST_CASE("where a marker is a token, the same letters are text") {
  ToolCallRules rules = rules_for(Format::kHermes);
  rules.markers = {{kToolCall, "<tool_call>", false}};
  const std::string call = "{\"name\":\"a\",\"arguments\":{}}</tool_call>";
  CHECK(parsed_every_way(rules, "<tool_call>" + call) == "<tool_call>" + call);
  ToolCallParser parser(std::make_shared<const ToolCallRules>(rules));
  std::vector<AnswerPiece> out;
  parser.push("<tool_call>?", false, out);
  parser.push("<tool_call>", true, out);
  parser.push(call, false, out);
  parser.finish(out);
  std::vector<AnswerPart> parts;
  for (const AnswerPiece& piece : out) append_piece(parts, piece);
  CHECK(shown(parts) == "<tool_call>?|a({})");
}

// Tokens through OutputText and ToolCallReader, as an answer's choice takes them.
std::string read_tokens(const std::vector<TokenId>& tokens, bool is_special, bool skip_special,
                        const std::vector<std::string>& stops) {
  TokenizerParts vocabulary = byte_level_parts();
  if (is_special) vocabulary.types[kToolCall] = 3;
  const Tokenizer tokenizer = must(Tokenizer::from_parts(vocabulary));
  ToolCallRules rules = rules_for(Format::kHermes);
  rules.markers = find_tool_markers(tokenizer, Format::kHermes);
  REQUIRE(rules.markers.size() == 1);
  CHECK(rules.markers[0].is_hidden == is_special);
  ToolCallReader reader(std::make_shared<const ToolCallRules>(rules), skip_special);
  OutputText text(tokenizer, {stops, false, skip_special});
  std::vector<AnswerPiece> out;
  for (TokenId token : tokens) {
    const std::string_view shown_text = text.push(token);
    reader.note_token(token, text.num_decoded_bytes());
    reader.push(shown_text, out);
    if (text.has_stopped()) break;
  }
  if (!text.has_stopped()) reader.push(text.finish(), out);
  reader.finish(out);
  std::vector<AnswerPart> parts;
  for (const AnswerPiece& piece : out) append_piece(parts, piece);
  return shown(parts);
}

TEST_CASE("a marker that is a special token is seen though its text is skipped, beside stop strings too") {
  std::vector<TokenId> tokens;
  const auto say = [&](std::string_view text) {
    for (unsigned char byte : text) tokens.push_back(byte);
  };
  say("a\xE8\xB5\x8B");
  tokens.push_back(kToolCall);
  say("{\"name\":\"a\",\"arguments\":{\"k\":\"v\"}}</tool_call> end");
  for (const bool is_special : {false, true}) {
    for (const bool skip_special : {false, true}) {
      const std::string expected = "a\xE8\xB5\x8B|a({\"k\":\"v\"})| end";
      const std::vector<std::vector<std::string>> harmless = {{}, {"a{never"}, {"endx", "<tool_call>{x"}};
      for (const auto& stops : harmless) CHECK(read_tokens(tokens, is_special, skip_special, stops) == expected);
      CHECK(read_tokens(tokens, is_special, skip_special, {"\"v"}) == "a\xE8\xB5\x8B|a({\"k\":)");
    }
  }
}

TEST_CASE("the format of a template, and names of formats") {
  CHECK(detect_tool_call_format("x <tool_call> y") == Format::kHermes);
  CHECK(detect_tool_call_format("{{ '[TOOL_CALLS]' }}") == Format::kMistral);
  CHECK(detect_tool_call_format("<|python_tag|>") == Format::kLlama3);
  CHECK(detect_tool_call_format("<|im_start|>") == Format::kNone);
  CHECK(tool_call_format_named("hermes") == Format::kHermes);
  CHECK(!tool_call_format_named("auto"));
}

TEST_CASE("random texts of markers, JSON and noise: every cut gives the same, and no content byte is lost") {
  constexpr std::string_view kParts[] = {"<tool_call>",
                                         "</tool_call>",
                                         "[TOOL_CALLS]",
                                         "[ARGS]",
                                         "<|python_tag|>",
                                         "{\"name\":",
                                         "\"now\"",
                                         ",",
                                         "\"arguments\":",
                                         "\"parameters\": ",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         " ",
                                         "\n",
                                         "\"",
                                         "\\",
                                         "1",
                                         "a",
                                         ";",
                                         "<function=",
                                         "now",
                                         ">",
                                         "<parameter=",
                                         "</parameter>",
                                         "</function>",
                                         "\xE8\xB5\x8B",
                                         "null"};
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (int round = 0; round < 3000; ++round) {
    const Format format = std::array{Format::kHermes, Format::kLlama3, Format::kMistral, Format::kJsonList,
                                     Format::kJsonArguments}[below(5)];
    std::string text;
    for (size_t n = below(24); n > 0; --n) text += kParts[below(std::size(kParts))];
    const std::string whole = parsed_every_way(rules_for(format), text);
    if (whole.find('(') == std::string::npos) CHECK(whole == text);
  }
}

}  // namespace
}  // namespace tandem::text
