#include "apps/cli/help_text.h"

#include <algorithm>

#include <fmt/format.h>

namespace tandem::cli {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kHelpColumn = 32;

// `text` broken at blanks so that lines end before kWidth; every line but the first begins at `indent`.
std::string wrapped(std::string_view text, size_t indent) {
  std::string result;
  size_t column = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (column > indent && column + 1 + word.size() > kWidth) {
      result += '\n' + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

std::string placeholder(const OptionSpec& spec) {
  switch (spec.type) {
    case OptionType::kText: return "TEXT";
    case OptionType::kTextList: return "TEXT,...";
    case OptionType::kInteger: return "N";
    case OptionType::kIntegerList: return "N,...";
    case OptionType::kNumber: return "X";
    case OptionType::kBytes: return "SIZE";
    case OptionType::kChoice: return fmt::format("{}", fmt::join(spec.choices, "|"));
    case OptionType::kSwitch: break;
  }
  return "";
}

std::string flag_text(const OptionSpec& spec) {
  std::string text = spec.letter == 0 ? "    --" : fmt::format("-{}, --", spec.letter);
  if (spec.type == OptionType::kSwitch) {
    return text + (spec.default_text == "true" ? "[no-]" : "") + std::string(spec.name);
  }
  const std::string value = placeholder(spec);
  return fmt::format("{}{} {}", text, spec.name, value.size() > 24 ? "CHOICE" : value);
}

std::string default_text(const OptionSpec& spec) {
  if (spec.type == OptionType::kSwitch) return spec.default_text == "true" ? "on" : "off";
  return std::string(spec.default_text.empty() ? spec.default_note : spec.default_text);
}

std::string option_lines(const OptionSpec& spec) {
  std::string help(spec.help);
  // A switch that is off needs no word about it: its flag turns it on.
  const std::string value = default_text(spec);
  if (!value.empty() && value != "off") help += fmt::format(" (default: {})", value);
  std::string line = "  " + flag_text(spec);
  if (line.size() + 2 > kHelpColumn) line += '\n' + std::string(kHelpColumn, ' ');
  else line += std::string(kHelpColumn - line.size(), ' ');
  return line + wrapped(help, kHelpColumn) + '\n';
}

std::string usage_line(const CommandSpec& command) {
  std::string line = fmt::format("tandem {}", command.name);
  for (const Positional& positional : command.positionals) {
    line += positional.is_required ? fmt::format(" {}", positional.name) : fmt::format(" [{}]", positional.name);
  }
  return line + " [options]";
}

std::string example_lines(const std::vector<Example>& examples) {
  std::string text;
  for (const Example& example : examples) {
    text += fmt::format("  # {}\n  {}\n", example.what, example.command);
  }
  return text;
}

// Groups by title, each with the names of the commands that take it; in the order of first use.
struct SharedGroup {
  const OptionGroup* group;
  std::vector<std::string_view> commands;
};

bool is_same(const OptionGroup& a, const OptionGroup& b) {
  return a.title == b.title && std::equal(a.options.begin(), a.options.end(), b.options.begin(), b.options.end(),
                                          [](const OptionSpec& x, const OptionSpec& y) { return x.name == y.name; });
}

std::vector<SharedGroup> shared_groups() {
  std::vector<SharedGroup> shared;
  for (const CommandSpec& command : commands()) {
    for (const OptionGroup& group : command.groups) {
      const auto found = std::find_if(shared.begin(), shared.end(),
                                      [&](const SharedGroup& other) { return is_same(*other.group, group); });
      if (found == shared.end()) shared.push_back({&group, {command.name}});
      else found->commands.push_back(command.name);
    }
  }
  return shared;
}

std::string markdown_row(const OptionSpec& spec) {
  std::string flag = fmt::format("`--{}`", spec.name);
  if (spec.type == OptionType::kSwitch) flag += fmt::format(" / `--no-{}`", spec.name);
  if (spec.letter != 0) flag += fmt::format(", `-{}`", spec.letter);
  return fmt::format("| {} | {} | {} | {} | {} |\n", flag, allowed_text(spec), default_text(spec),
                     spec.is_hot ? "yes" : "no", spec.help);
}

}  // namespace

std::string overview_text() {
  std::string text =
      "Tandem serves large language models.\n"
      "\n"
      "Usage: tandem COMMAND [arguments] [options]\n"
      "\n"
      "Commands:\n";
  for (const CommandSpec& command : commands()) text += fmt::format("  {:<16}{}\n", command.name, command.summary);
  text +=
      "\n"
      "  tandem COMMAND --help     what a command takes, with examples\n"
      "  tandem --version          version, commit, and the versions of what goes over interfaces\n"
      "\n"
      "Begin with:\n"
      "  # fetch a small model (98 MB) and ask it something\n"
      "  tandem pull smollm2\n"
      "  tandem run smollm2 \"Why is the sky blue?\"\n"
      "  # serve it; any OpenAI client can use http://127.0.0.1:8000/v1\n"
      "  tandem serve smollm2\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"model\": \"smollm2\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
      "\n"
      "Every option can also be set in the environment (--max-num-seqs is TANDEM_MAX_NUM_SEQS) or in a\n"
      "TOML file given with --config. A flag wins over the environment, that over the file.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage.\n";
  return text;
}

std::string help_text(const CommandSpec& command) {
  std::string text = fmt::format("{}.\n\nUsage: {}\n", command.summary, usage_line(command));
  if (!command.details.empty()) text += '\n' + wrapped(command.details, 0) + '\n';
  if (!command.positionals.empty()) text += '\n';
  for (const Positional& positional : command.positionals) {
    text += fmt::format("  {:<10}{}\n", positional.name, wrapped(positional.help, 12));
  }
  if (!command.examples.empty()) text += "\nExamples:\n" + example_lines(command.examples);
  for (const OptionGroup& group : command.groups) {
    text += fmt::format("\n{}:\n", group.title);
    for (const OptionSpec& spec : group.options) text += option_lines(spec);
  }
  return text;
}

std::string configuration_markdown() {
  std::string text =
      "# Configuration\n"
      "\n"
      "Made by `tandem options --markdown`; do not edit.\n"
      "\n"
      "Each option is one declaration, which makes three names: for `max-num-seqs` the flag `--max-num-seqs`, the\n"
      "environment variable `TANDEM_MAX_NUM_SEQS` and the key `max-num-seqs` of the TOML file named by `--config`\n"
      "(`max_num_seqs` is the same key). A flag wins over the environment, the environment over the file, the file\n"
      "over the default. An empty variable counts as unset. An unknown flag or key is an error. A file may hold keys\n"
      "of several commands: each command reads its own. Lists are arrays in TOML, and separated by commas elsewhere.\n"
      "\n"
      "```toml\n"
      "port = 8001\n"
      "served-model-name = [\"llama\", \"default\"]\n"
      "kv-memory = \"8GiB\"\n"
      "enable-prefix-caching = false\n"
      "```\n"
      "\n"
      "*Hot*: may change while a server runs, without a restart.\n";
  for (const SharedGroup& shared : shared_groups()) {
    text += fmt::format("\n## {}\n\nOf `tandem {}`.\n\n", shared.group->title,
                        fmt::join(shared.commands, "`, `tandem "));
    text += "| Option | Values | Default | Hot | Meaning |\n|---|---|---|---|---|\n";
    for (const OptionSpec& spec : shared.group->options) text += markdown_row(spec);
  }
  return text;
}

std::string option_list_text() {
  std::string text;
  for (const SharedGroup& shared : shared_groups()) {
    text += fmt::format("{} ({})\n", shared.group->title, fmt::join(shared.commands, ", "));
    for (const OptionSpec& spec : shared.group->options) {
      text += fmt::format("  --{:<24} {} [{}]\n", spec.name, allowed_text(spec), default_text(spec));
    }
  }
  return text;
}

}  // namespace tandem::cli
