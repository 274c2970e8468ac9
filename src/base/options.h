#pragma once
// Options: one declaration per property (OptionSpec) makes the flag --max-num-seqs, the TOML key max-num-seqs, the
// environment variable TANDEM_MAX_NUM_SEQS, the help text and the documentation table; OptionValues holds what was
// chosen, each value checked against its declaration.
//
// Plain values, built once at start and then only read. Who parses flags and files is apps/cli.

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

enum class OptionType : uint8_t {
  kText,
  kTextList,     // flag repeated, or values separated by commas
  kInteger,
  kIntegerList,  // as kTextList
  kNumber,
  kSwitch,       // --x and --no-x; on/off, true/false, yes/no, 1/0 elsewhere
  kChoice,
  kBytes,        // 50GB, 8GiB, 1048576
};

struct OptionSpec {
  std::string_view name;  // as in the flag, without the dashes
  OptionType type = OptionType::kText;
  std::string_view default_text = {};  // in the form a user would write; empty: unset
  std::string_view default_note = {};  // what holds when unset, for people: "the model's"
  double min = -std::numeric_limits<double>::infinity();  // of numbers, sizes and list elements, both ends included
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string_view> choices = {};
  std::string_view help = {};
  bool is_hot = false;  // may change while a server runs (SIGHUP or the registry), without a restart
  char letter = 0;      // short flag
};

// Where a value came from. A later enumerator wins over an earlier one.
enum class OptionSource : uint8_t { kDefault, kFile, kEnvironment, kFlag };

class OptionValues {
 public:
  // Sets every default. A default that its own declaration refuses is a bug.
  explicit OptionValues(std::vector<OptionSpec> specs);

  const std::vector<OptionSpec>& specs() const { return specs_; }
  const OptionSpec* find(std::string_view name) const;

  // Takes the texts (one, or several for a list) unless a stronger source has set the option already. `origin` is
  // how the user wrote it ("--port", "TANDEM_PORT", "tandem.toml: port") and starts the message of an Error, which
  // names value and allowed values. The option must exist.
  Status set(std::string_view name, const std::vector<std::string>& texts, OptionSource source,
             const std::string& origin);

  // Whether there is a value: a default or a chosen one.
  bool has(std::string_view name) const;
  OptionSource source(std::string_view name) const;  // kDefault when unset

  // The value. Asking for an option that has none, is not declared or is of another type is a bug.
  const std::string& text(std::string_view name) const;  // kText, kChoice
  int64_t integer(std::string_view name) const;          // kInteger, kBytes
  double number(std::string_view name) const;            // kNumber
  bool is_on(std::string_view name) const;               // kSwitch
  const std::vector<std::string>& texts(std::string_view name) const;  // kTextList; empty when unset
  const std::vector<int64_t>& integers(std::string_view name) const;   // kIntegerList; empty when unset

 private:
  struct Value {
    bool is_set = false;
    OptionSource source = OptionSource::kDefault;
    std::string text;
    int64_t integer = 0;
    double number = 0;
    std::vector<std::string> texts;
    std::vector<int64_t> integers;
  };
  static Result<Value> parse(const OptionSpec& spec, const std::vector<std::string>& texts);
  const Value& value_of(std::string_view name, OptionType type, OptionType other_type) const;

  std::vector<OptionSpec> specs_;
  std::map<std::string, Value, std::less<>> values_;
};

// "MAX_NUM_SEQS" for "max-num-seqs"; the variable is this after "TANDEM_".
std::string environment_name(std::string_view option_name);

// What values the option takes: "0 to 65535", "auto, bf16, f32 or int8", "a size such as 8GiB".
std::string allowed_text(const OptionSpec& spec);

// The candidate that differs least from `name`, when it is near enough to be a slip of the hand; else "".
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// "1048576", "50GB" (powers of 1000), "8GiB" (powers of 1024).
Result<int64_t> parse_bytes(std::string_view text);

}  // namespace tandem
