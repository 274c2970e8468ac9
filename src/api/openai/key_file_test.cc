#include "api/openai/key_file.h"

#include <doctest/doctest.h>

namespace tandem::openai {
namespace {

std::string fault(std::string_view text) {
  const auto keys = parse_key_file(text);
  return keys ? "" : keys.error().message;
}

TEST_CASE("a key file has a key a line, with a name, and what else is said of it") {
  const auto keys = parse_key_file(
      "# ours\n\nalice sk-aaaaaaaa weight=2.5\r\n\tbob  sk-bbbb#bbb max-concurrent=3 # x\n"
      "c.d_e-f sk-cccccccc max-concurrent=0 weight=0.01");
  REQUIRE(keys);
  REQUIRE(keys->size() == 3);
  CHECK((*keys)[0].name == "alice");
  CHECK((*keys)[0].key == "sk-aaaaaaaa");
  CHECK((*keys)[0].weight == 2.5);
  CHECK((*keys)[0].max_concurrent == 0);
  CHECK((*keys)[1].key == "sk-bbbb#bbb");
  CHECK((*keys)[1].weight == 1);
  CHECK((*keys)[1].max_concurrent == 3);
  CHECK((*keys)[2].weight == 0.01);
}

TEST_CASE("what is wrong with a key file is said with its line, and no key is shown") {
  CHECK(fault("") == "no key is in it");
  CHECK(fault("# only words\n") == "no key is in it");
  CHECK(fault("\nalice\n").starts_with("line 2: a line is NAME KEY"));
  CHECK(fault("al/ice sk-aaaaaaaa") == "line 1: a name is at most 64 letters, digits, '-', '_' and '.'");
  CHECK(fault("alice short") == "line 1: a key has 8 to 512 printable characters");
  CHECK(fault("alice sk-aaaaaaaa weight=0").starts_with("line 1: weight is"));
  for (const char* weight : {"-1", "nan", "inf", "1001", "1x", ""}) {
    CHECK(fault(std::string("alice sk-aaaaaaaa weight=") + weight).starts_with("line 1: weight is"));
  }
  CHECK(fault("alice sk-aaaaaaaa max-concurrent=-1").starts_with("line 1: max-concurrent is"));
  CHECK(fault("alice sk-aaaaaaaa admin=yes").starts_with("line 1: after name and key"));
  CHECK(fault("alice sk-aaaaaaaa\nalice sk-bbbbbbbb") == "line 2: the name alice is there already");
  CHECK(fault("alice sk-aaaaaaaa\nbob sk-aaaaaaaa") == "line 2: the key of alice is there already");
  for (const char* text : {"alice secret", "alice sk-secret-1 x", "alice sk-secret-1\nbob sk-secret-1"}) {
    CHECK(fault(text).find("secret") == std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::openai
