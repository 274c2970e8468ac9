#include "base/json.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "base/utf8.h"

namespace tandem {
namespace {

std::string fault_of(std::string_view text) {
  auto parsed = JsonValue::parse(text);
  return parsed ? "accepted" : parsed.error().message;
}

TEST_CASE("values keep their kind and numbers their full range") {
  auto parsed = JsonValue::parse(
      R"( {"a":[1,-9223372036854775808,18446744073709551615,1.5,1e3,true,null,"x\u00e9\ud83d\ude00"],"b":{}} )");
  REQUIRE(parsed);
  const JsonValue::Array& items = *parsed->find("a")->if_array();
  int64_t as_int = 0;
  uint64_t as_uint = 0;
  double as_double = 0;
  CHECK(items[0].as_int64(as_int));
  CHECK(as_int == 1);
  CHECK(items[1].as_int64(as_int));
  CHECK(as_int == std::numeric_limits<int64_t>::min());
  CHECK(!items[1].as_uint64(as_uint));
  CHECK(!items[2].as_int64(as_int));
  CHECK(items[2].as_uint64(as_uint));
  CHECK(as_uint == std::numeric_limits<uint64_t>::max());
  CHECK(!items[3].is_integer());
  CHECK(items[3].as_double(as_double));
  CHECK(as_double == 1.5);
  CHECK(!items[4].is_integer());
  CHECK(*items[5].if_bool());
  CHECK(items[6].is_null());
  CHECK(*items[7].if_string() == "x\xC3\xA9\xF0\x9F\x98\x80");
  CHECK(parsed->find("b")->if_object()->empty());
  CHECK(parsed->find("c") == nullptr);
  CHECK(items[0].find("a") == nullptr);
}

TEST_CASE("of duplicate members the last counts") {
  auto parsed = JsonValue::parse(R"({"a":1,"a":2})");
  REQUIRE(parsed);
  int64_t value = 0;
  CHECK(parsed->find("a")->as_int64(value));
  CHECK(value == 2);
}

TEST_CASE("faults are refused with their place") {
  CHECK(fault_of("") == "not JSON: the text is empty");
  CHECK(fault_of("{:\"model\":\"x\"}") == "not JSON: unexpected character at line 1, column 2");
  CHECK(fault_of("{\"a\":1,}") == "not JSON: unexpected character at line 1, column 8");
  CHECK(fault_of("{\"a\":1}\n x") == "not JSON: unexpected character at line 2, column 2");
  CHECK(fault_of("[1,\n 2") == "not JSON: the text ends too early at line 2, column 3");
  CHECK(fault_of("\"a\xFF\"") == "not JSON: invalid UTF-8 at line 1, column 3");
  CHECK(fault_of("[01]") == "not JSON: unexpected character at line 1, column 3");
  CHECK(fault_of("[1e999]") == "not JSON: a number is out of range");
  CHECK(fault_of("[123456789012345678901234567890]") == "not JSON: a number is out of range");
  for (const char* text : {"\"emoji \\ud83d\"", "\"x \\ude00 y\"", "\"\\ud83d\\u0041\"", "[nul]", "NaN", "[1 2]",
                           "\"\t\"", "{\"a\" 1}", "'a'", "[1,]", "\"\\ude00\""}) {
    CHECK_MESSAGE(fault_of(text).substr(0, 9) == "not JSON:", text);
  }
  CHECK(fault_of("{\"\\udc00\":1}").substr(0, 9) == "not JSON:");
}

TEST_CASE("no escaped half of a surrogate pair gets through, in values or names") {
  char escape[8];
  for (unsigned half = 0xD800; half < 0xE000; ++half) {
    std::snprintf(escape, sizeof(escape), "\\u%04x", half);
    CHECK(!JsonValue::parse("\"x" + std::string(escape) + "y\""));
    CHECK(!JsonValue::parse("{\"" + std::string(escape) + "\":1}"));
  }
  CHECK(fault_of("\"\\ud83d!\"") == "not JSON: unexpected character at line 1, column 8");
}

TEST_CASE("nesting is bounded whatever the size") {
  CHECK(fault_of(std::string(10000, '[')) == "not JSON: the text ends too early at line 1, column 10001");
  CHECK(fault_of(std::string(10000, '[') + std::string(10000, ']')) == "not JSON we read: nested deeper than 96");
  CHECK(JsonValue::parse(std::string(95, '[') + std::string(95, ']')));
  CHECK(!JsonValue::parse(std::string(97, '[') + std::string(97, ']')));
  CHECK(!JsonValue::parse("[[[]]]", 2));
}

TEST_CASE("the writer escapes, replaces invalid bytes and puts commas") {
  JsonWriter json;
  json.begin_object()
      .key("a")
      .begin_array()
      .integer(-1)
      .unsigned_integer(18446744073709551615u)
      .number(0.1)
      .number(0.1f);
  json.boolean(true).null().string("q\"\\\n\x01/\xF0\x9F\x98\x80").end_array();
  json.key("bad").string("x\xE8\xB5y\xFFz\xED\xA0\x80").key("o").begin_object().end_object();
  json.key("nan").number(std::nan("")).key("raw").raw("[1]").end_object();
  CHECK(json.text() ==
        "{\"a\":[-1,18446744073709551615,0.1,0.1,true,null,\"q\\\"\\\\\\n\\u0001/\xF0\x9F\x98\x80\"],"
        "\"bad\":\"x\xEF\xBF\xBDy\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\",\"o\":{},"
        "\"nan\":null,\"raw\":[1]}");
}

TEST_CASE("what is written reads back equal, and written again is the same text") {
  const std::string text = R"({"a":[1,-2,18446744073709551615,1.5,1e+300,-0.1,"\u0000\u001f",{"b":null}],"":false})";
  auto parsed = JsonValue::parse(text);
  REQUIRE(parsed);
  CHECK(JsonWriter().value(*parsed).take() == text);
  for (double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789.0}) {
    auto back = JsonValue::parse(JsonWriter().number(value).take());
    REQUIRE(back);
    double read = 1;
    CHECK(back->as_double(read));
    CHECK(read == value);
  }
}

TEST_CASE("UTF-8 is judged as the standard has it, one replacement for each maximal invalid part") {
  // The table of Unicode 15, chapter 3.9 ("U+FFFD Substitution of Maximal Subparts"), 3-8 and 3-11.
  const auto repaired = [](std::string_view bytes) {
    std::string out;
    append_valid_utf8(out, bytes);
    return out;
  };
  const std::string r = "\xEF\xBF\xBD";
  CHECK(repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") == r + r + r + r + r + r + r + r + "A");
  CHECK(repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == r + r + r + r + "A");
  CHECK(repaired("\xE2'") == r + "'");
  CHECK(repaired("\xF5\x80\x80\x80") == r + r + r + r);
  CHECK(is_valid_utf8("plain ascii, longer than eight bytes, and \xF4\x8F\xBF\xBF"));
  CHECK(find_invalid_utf8("0123456789\xED\xA0\x80") == 10);
}

}  // namespace
}  // namespace tandem
