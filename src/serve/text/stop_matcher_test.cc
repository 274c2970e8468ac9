#include "serve/text/stop_matcher.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "serve/text/output_text.h"
#include "serve/text/small_tokenizer_for_test.h"
#include "serve/text/text_stop_rule.h"

namespace tandem::text {
namespace {

using Ids = std::vector<TokenId>;
using Strings = std::vector<std::string>;

struct Outcome {
  Strings shown;     // per piece, then what finish() gives
  std::string stop;  // or empty
  std::string text() const {
    std::string all;
    for (const std::string& s : shown) all += s;
    return all;
  }
};

Outcome run(const Strings& stops, const Strings& pieces, bool include_stop = false) {
  StopMatcher matcher(stops, include_stop);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.shown.emplace_back(matcher.push(piece));
  outcome.shown.emplace_back(matcher.finish());
  outcome.stop = matcher.matched();
  return outcome;
}

// The definition, slowly: the stop string that ends first, of several the longest.
Outcome by_definition(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops)
      if (stop.size() > best.size() && stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        best = stop;
    if (!best.empty()) return {{text.substr(0, end - best.size())}, best};
  }
  return {{text}, ""};
}

TEST_CASE("a stop string over several pieces is never shown, wherever it begins and ends") {
  const Strings pieces = {"AB", "CD", "E"};
  CHECK(run({"BC"}, pieces).shown == Strings{"A", "", "", ""});
  CHECK(run({"CD"}, pieces).text() == "AB");
  CHECK(run({"DE"}, pieces).text() == "ABC");
  CHECK(run({"BCDX"}, pieces).text() == "ABCDE");  // never completes
  CHECK(run({"BCDX"}, pieces).stop == "");
  CHECK(run({"ABCDE"}, pieces).text() == "");
  CHECK(run({"ABCDE"}, pieces).stop == "ABCDE");
  CHECK(run({"DEFGHIJ"}, {"ABC", "DEF", "G", "HI", "J", "K"}).shown == Strings{"ABC", "", "", "", "", "", ""});
  CHECK(run({""}, pieces).text() == "ABCDE");
  CHECK(run({}, pieces).shown == Strings{"AB", "CD", "E", ""});
}

TEST_CASE("of several stop strings the one that ends first counts, and of those the longest") {
  CHECK(run({"ABCD", "BC"}, {"ABCD"}).stop == "BC");
  CHECK(run({"ABCD", "BC"}, {"ABCD"}).text() == "A");
  CHECK(run({"C", "BC", "ABC"}, {"xABC"}).stop == "ABC");
  CHECK(run({"C", "BC", "ABC"}, {"xABC"}).text() == "x");
}

TEST_CASE("include_stop shows the stop string and nothing after it") {
  CHECK(run({"CD"}, {"AB", "CDE", "F"}, true).text() == "ABCD");
  CHECK(run({"CD"}, {"ABC", "D"}, true).shown == Strings{"AB", "CD", ""});
}

TEST_CASE("a long stop string that never comes holds nothing back") {
  const std::string stop(200, '#');
  StopMatcher matcher({stop});
  for (int i = 0; i < 50; ++i) CHECK(matcher.push("word ") == "word ");
  CHECK(matcher.push("a#") == "a");  // this may be its beginning
  CHECK(matcher.push("b") == "#b");  // it was not
  CHECK(matcher.finish() == "");
}

TEST_CASE("held text comes at the end, once") {
  StopMatcher matcher({"\n\nUser:"});
  CHECK(matcher.push("hi\n\nUs") == "hi");
  CHECK(matcher.finish() == "\n\nUs");
  CHECK(matcher.finish() == "");
}

TEST_CASE("a stop string that overlaps itself") {
  CHECK(run({"aab"}, {"a", "a", "a", "b", "c"}).text() == "a");
  CHECK(run({"abab"}, {"abaab", "ab"}).text() == "aba");
  CHECK(run({"aaa"}, {"aabaaa"}).text() == "aab");
}

TEST_CASE("characters of several bytes") {
  CHECK(run({"é"}, {"è", "é", "x"}).shown == Strings{"è", "", "", ""});  // they share their first byte
  CHECK(run({"日本"}, {"日", "月", "日", "本"}).text() == "日月");
}

TEST_CASE("while it may not stop, a match passes by; one that ends later counts") {
  StopMatcher matcher({"end"});
  CHECK(matcher.push("the end, ", false) == "the end, ");
  CHECK(!matcher.has_matched());
  CHECK(matcher.push("en", false) == "");
  CHECK(matcher.push("d.", true) == "");
  CHECK(matcher.matched() == "end");
}

TEST_CASE("random texts: any cut gives what the definition gives, and the shown text is never too long") {
  std::mt19937 random(3);
  const auto word = [&](size_t longest) {
    std::string s;
    for (size_t n = 1 + random() % longest; n > 0; --n) s += static_cast<char>('a' + random() % 2);
    return s;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    Strings stops;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(6));
    const std::string text = word(24);
    const Outcome want = by_definition(stops, text);
    Strings pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 4;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    const Outcome got = run(stops, pieces);
    CHECK(got.text() == want.text());
    CHECK(got.stop == want.stop);
    CHECK(run(stops, pieces, true).text() == want.text() + want.stop);
    matches += !want.stop.empty();
  }
  CHECK(matches > 1000);
  CHECK(matches < 19000);
}

TEST_CASE("random texts: what is held back is the longest suffix that begins a stop string, no more") {
  std::mt19937 random(5);
  for (int round = 0; round < 5000; ++round) {
    const std::string stop = "abac" + std::string(random() % 3, 'a') + "d";
    std::string text;
    for (size_t n = random() % 20; n > 0; --n) text += static_cast<char>('a' + random() % 3);
    StopMatcher matcher({stop, "ca"});
    const size_t shown = matcher.push(text).size();
    if (matcher.has_matched()) continue;
    size_t held = 0;
    for (const std::string& s : {stop, std::string("ca")})
      for (size_t n = 1; n < s.size() && n <= text.size(); ++n)
        if (text.compare(text.size() - n, n, s, 0, n) == 0) held = std::max(held, n);
    CHECK(shown == text.size() - held);
  }
}

TEST_CASE("OutputText: decoded, cut at the stop string, the rest at the end") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  OutputText text(t, {.stops = {"o wor"}});
  CHECK(text.push(kHell) == "hell");
  CHECK(text.push('o') == "");
  CHECK(text.push(' ') == "");
  CHECK(text.push('w') == "");
  CHECK(text.push('a') == "o wa");
  CHECK(!text.has_stopped());
  CHECK(text.push(0xF0) == "");
  CHECK(text.finish() == "\uFFFD");

  OutputText unfinished(t, {.stops = {"\uFFFD"}});
  CHECK(unfinished.push(0xF0) == "");
  CHECK(unfinished.finish() == "\uFFFD");
  CHECK(!unfinished.has_stopped());

  OutputText stops(t, {.stops = {"o!"}});
  CHECK(stops.push(kHell) == "hell");
  CHECK(stops.push('o') == "");
  CHECK(stops.push('!') == "");
  CHECK(stops.has_stopped());
  CHECK(stops.stop() == "o!");
  CHECK(stops.finish() == "");
}

TEST_CASE("a stop string does not begin in the prompt") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  OutputText text(t, {.stops = {"ab"}});
  text.seed({'x', 'a'});
  CHECK(text.push('b') == "b");
  CHECK(!text.has_stopped());
}

TEST_CASE("TextStopRule ends where the shown text ends") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  const OutputTextOptions options{.stops = {"lo", "é"}};
  TextStopRule rule(t, options, {});
  CHECK(!rule.push(kHell, true));
  CHECK(rule.push('o', true));  // the string began in the middle of the token before

  TextStopRule bytes(t, options, {});
  CHECK(!bytes.push(0xC3, true));
  CHECK(bytes.push(0xA9, true));

  TextStopRule after_prompt(t, options, {'x', 0xC3});
  CHECK(after_prompt.push(0xA9, true));  // the character belongs to the reply

  TextStopRule later(t, options, {});
  CHECK(!later.push(kHell, false));
  CHECK(!later.push('o', false));
  CHECK(!later.push(kHell, true));
  CHECK(later.push('o', true));

  TextStopRule none(t, {}, {});
  for (TokenId id = 0; id < 263; ++id) CHECK(!none.push(id, true));
}

}  // namespace
}  // namespace tandem::text
