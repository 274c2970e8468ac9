#include "apps/cli/help_text.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

namespace tandem::cli {
namespace {

// UPDATE_GOLDEN=1 rewrites the file; the difference is for review.
void check_golden(const std::string& path, const std::string& text) {
  const std::string full = std::string(TANDEM_SOURCE_DIR "/") + path;
  const char* update = std::getenv("UPDATE_GOLDEN");
  if (update != nullptr && *update != '\0') std::ofstream(full, std::ios::binary) << text;
  std::ifstream in(full, std::ios::binary);
  const std::string expected{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  INFO(path, " differs; run this test with UPDATE_GOLDEN=1 and look at the difference");
  CHECK(text == expected);
}

TEST_CASE("help texts are as in tests/golden/help") {
  check_golden("tests/golden/help/overview.txt", overview_text());
  for (const CommandSpec& command : commands()) {
    std::string file(command.name);
    std::replace(file.begin(), file.end(), ' ', '_');
    check_golden("tests/golden/help/" + file + ".txt", help_text(command));
  }
}

TEST_CASE("docs/configuration.md is what the program prints") {
  check_golden("docs/configuration.md", configuration_markdown());
}

TEST_CASE("every declaration is complete and fits its command") {
  for (const CommandSpec& command : commands()) {
    CAPTURE(std::string(command.name));
    CHECK_FALSE(command.summary.empty());
    CHECK_FALSE(command.examples.empty());
    const OptionValues values(command.all_options());  // checks every default, and that names differ
    std::set<char> letters;
    for (const OptionSpec& spec : values.specs()) {
      CAPTURE(std::string(spec.name));
      CHECK_FALSE(spec.help.empty());
      CHECK((!spec.default_text.empty() || !spec.default_note.empty() || spec.name == "config"));
      CHECK((spec.type != OptionType::kChoice || !spec.choices.empty()));
      CHECK((spec.type != OptionType::kSwitch || !spec.default_text.empty()));
      if (spec.letter != 0) CHECK(letters.insert(spec.letter).second);
    }
  }
}

TEST_CASE("help lines stay inside the terminal") {
  for (const CommandSpec& command : commands()) {
    const std::string text = help_text(command);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      CHECK(end - begin <= 110);
      begin = end + 1;
    }
  }
}

}  // namespace
}  // namespace tandem::cli
