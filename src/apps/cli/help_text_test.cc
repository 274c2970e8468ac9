#include "apps/cli/help_text.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "testing/golden.h"

namespace tandem::cli {
namespace {

void check_golden(const std::string& path, const std::string& text) {
  const std::string difference = testing::golden_difference(std::string(TANDEM_SOURCE_DIR "/") + path, text);
  CHECK_MESSAGE(difference.empty(), difference);
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
