#include "apps/cli/command_line.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/cli/config_file.h"
#include "apps/cli/flag_parser.h"

namespace tandem::cli {
namespace {

Error usage_error(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

std::string known_after(std::string_view first_word) {
  std::vector<std::string_view> names;
  for (const CommandSpec& command : commands()) {
    if (command.name.substr(0, first_word.size() + 1) == std::string(first_word) + " ") {
      names.push_back(command.name.substr(first_word.size() + 1));
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// The command that `args` begin with, and how many words its name has.
Result<const CommandSpec*> choose_command(const std::vector<std::string>& args, size_t& num_words) {
  num_words = 1;
  if (const CommandSpec* command = find_command(args[0])) return command;
  const std::string choices = known_after(args[0]);
  if (!choices.empty()) {
    num_words = 2;
    const CommandSpec* command = args.size() > 1 ? find_command(args[0] + " " + args[1]) : nullptr;
    if (command != nullptr) return command;
    return usage_error(fmt::format("tandem {} needs one of: {}", args[0], choices));
  }
  std::vector<std::string> names;
  for (const CommandSpec& command : commands()) names.emplace_back(command.name.substr(0, command.name.find(' ')));
  const std::string nearest = nearest_name(args[0], names);
  return usage_error(fmt::format("unknown command {}{}", args[0],
                                 nearest.empty() ? "; tandem --help lists them" : "; is it " + nearest + "?"));
}

bool is_option_of_any_command(const std::string& key) {
  for (const CommandSpec& command : commands()) {
    for (const OptionSpec& spec : command.all_options()) {
      if (spec.name == key) return true;
    }
  }
  return false;
}

Status apply_environment(const Environment& environment, OptionValues& values) {
  for (const OptionSpec& spec : values.specs()) {
    const std::string name = "TANDEM_" + environment_name(spec.name);
    const char* text = environment(name);
    if (text == nullptr || *text == '\0') continue;
    TRY(values.set(spec.name, {text}, OptionSource::kEnvironment, name));
  }
  return Done{};
}

Status apply_file(const std::string& path, OptionValues& values) {
  TRY_ASSIGN(const std::vector<ConfigEntry> entries, read_config_file(path));
  for (const ConfigEntry& entry : entries) {
    const std::string origin = fmt::format("{} line {}: {}", path, entry.line, entry.key);
    if (entry.key == "config") return usage_error(origin + ": a configuration file cannot name another");
    if (values.find(entry.key) != nullptr) {
      TRY(values.set(entry.key, entry.texts, OptionSource::kFile, origin));
    } else if (!is_option_of_any_command(entry.key)) {
      std::vector<std::string> names;
      for (const OptionSpec& spec : values.specs()) names.emplace_back(spec.name);
      const std::string nearest = nearest_name(entry.key, names);
      return usage_error(origin + ": unknown key" + (nearest.empty() ? "" : "; is it " + nearest + "?"));
    }
  }
  return Done{};
}

Status check_positionals(const CommandSpec& command, const std::vector<std::string>& given) {
  const auto& wanted = command.positionals;
  if (given.size() > wanted.size()) {
    return usage_error(fmt::format("tandem {}: '{}' is one argument too many", command.name, given[wanted.size()]));
  }
  if (given.size() < wanted.size() && wanted[given.size()].is_required) {
    return usage_error(fmt::format("tandem {0} needs {1}: {2}\nTry: tandem {0} --help", command.name,
                                   wanted[given.size()].name, wanted[given.size()].help));
  }
  return Done{};
}

}  // namespace

Result<Invocation> parse_command_line(const std::vector<std::string>& args, const Environment& environment) {
  Invocation invocation;
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h" || word == "help"; };
  if (args.empty()) return usage_error("a command is missing; tandem --help lists them");
  if (args[0] == "--version" || args[0] == "version") {
    invocation.action = Action::kVersion;
    return invocation;
  }
  const bool is_help_command = is_help(args[0]);
  if (is_help_command && args.size() == 1) {
    invocation.action = Action::kHelp;
    return invocation;
  }
  const std::vector<std::string> words(args.begin() + (is_help_command ? 1 : 0), args.end());
  // `tandem bench --help`: the overview names the two.
  if (words.size() == 2 && is_help(words[1]) && !known_after(words[0]).empty()) {
    invocation.action = Action::kHelp;
    return invocation;
  }
  size_t num_words = 0;
  TRY_ASSIGN(invocation.command, choose_command(words, num_words));
  invocation.values = OptionValues(invocation.command->all_options());
  TRY_ASSIGN(ParsedFlags flags,
             parse_flags(invocation.values.specs(),
                         {words.begin() + static_cast<ptrdiff_t>(num_words), words.end()}));
  if (is_help_command || flags.wants_help) {
    invocation.action = Action::kHelp;
    return invocation;
  }
  for (const auto& [name, texts] : flags.options) {
    TRY(invocation.values.set(name, texts, OptionSource::kFlag, "--" + name));
  }
  TRY(apply_environment(environment, invocation.values));
  if (invocation.values.has("config")) TRY(apply_file(invocation.values.text("config"), invocation.values));
  TRY(check_positionals(*invocation.command, flags.positionals));
  invocation.positionals = std::move(flags.positionals);
  return invocation;
}

}  // namespace tandem::cli
