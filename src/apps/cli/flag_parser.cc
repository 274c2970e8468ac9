#include "apps/cli/flag_parser.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace tandem::cli {
namespace {

Error unknown_flag(const std::vector<OptionSpec>& specs, const std::string& word) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs) {
    names.push_back("--" + std::string(spec.name));
    if (spec.type == OptionType::kSwitch) names.push_back("--no-" + std::string(spec.name));
  }
  names.push_back("--help");
  const std::string flag = word.substr(0, word.find('='));
  const std::string nearest = flag.size() > 2 ? nearest_name(flag, names) : "";
  return {ErrorCode::kInvalidArgument, nearest.empty() ? fmt::format("unknown option {}", flag)
                                                       : fmt::format("unknown option {}; is it {}?", flag, nearest)};
}

}  // namespace

Result<ParsedFlags> parse_flags(const std::vector<OptionSpec>& specs, const std::vector<std::string>& args) {
  ParsedFlags parsed;
  try {
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    app.add_flag("-h,--help", parsed.wants_help);
    std::deque<std::vector<std::string>> texts(specs.size());  // addresses stay
    std::vector<CLI::Option*> options;
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::string letter = specs[i].letter == 0 ? "" : fmt::format("-{},", specs[i].letter);
      const std::string name(specs[i].name);
      if (specs[i].type == OptionType::kSwitch) {
        options.push_back(app.add_flag(fmt::format("{}--{}{{true}},--no-{}{{false}}", letter, name, name), texts[i]));
      } else {
        options.push_back(app.add_option(fmt::format("{}--{}", letter, name), texts[i]));
        options.back()->type_size(1)->expected(1)->allow_extra_args(false);
      }
      options.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    app.add_option("ARGUMENTS", parsed.positionals)->expected(0, 1 << 20);
    // What follows "--" is not looked at, so that a prompt may begin with a dash.
    const auto tail = std::find(args.begin(), args.end(), "--");
    std::vector<std::string> reversed(std::make_reverse_iterator(tail), args.rend());
    app.parse(std::move(reversed));
    const std::vector<std::string> extras = app.remaining();
    if (!extras.empty()) return unknown_flag(specs, extras.front());
    if (tail != args.end()) parsed.positionals.insert(parsed.positionals.end(), tail + 1, args.end());
    for (size_t i = 0; i < specs.size(); ++i) {
      if (options[i]->count() == 0) continue;
      // The last of --x and --no-x counts, so that a script's flag can be taken back.
      if (specs[i].type == OptionType::kSwitch) texts[i] = {texts[i].back()};
      parsed.options.emplace_back(specs[i].name, texts[i]);
    }
  } catch (const CLI::Error& fault) {
    return Error{ErrorCode::kInvalidArgument, fault.what()};
  }
  return parsed;
}

}  // namespace tandem::cli
