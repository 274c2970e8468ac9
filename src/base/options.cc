#include "base/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"

namespace tandem {
namespace {

Error not_allowed(const OptionSpec& spec, std::string_view text) {
  return {ErrorCode::kInvalidArgument, fmt::format("'{}' is not allowed; give {}", text, allowed_text(spec))};
}

template <class T>
bool read_whole(std::string_view text, T& out) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), out);
  return fault == std::errc() && end == text.data() + text.size();
}

bool is_in_range(const OptionSpec& spec, double number) { return number >= spec.min && number <= spec.max; }

bool read_switch(std::string_view text, bool& out) {
  out = text == "true" || text == "on" || text == "yes" || text == "1";
  return out || text == "false" || text == "off" || text == "no" || text == "0";
}

std::string number_text(double number) {
  if (std::fabs(number) < 1e15 && number == std::floor(number)) return fmt::format("{}", static_cast<int64_t>(number));
  return fmt::format("{}", number);
}

std::vector<std::string> split_commas(const std::vector<std::string>& texts) {
  std::vector<std::string> parts;
  for (const std::string& text : texts) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      parts.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return parts;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

OptionValues::OptionValues(std::vector<OptionSpec> specs) : specs_(std::move(specs)) {
  for (const OptionSpec& spec : specs_) {
    TANDEM_CHECK(values_.find(spec.name) == values_.end());
    values_.emplace(spec.name, Value{});
    if (!spec.default_text.empty()) {
      TANDEM_CHECK(set(spec.name, {std::string(spec.default_text)}, OptionSource::kDefault, "default"));
    }
  }
}

const OptionSpec* OptionValues::find(std::string_view name) const {
  const auto found = std::find_if(specs_.begin(), specs_.end(), [&](const OptionSpec& s) { return s.name == name; });
  return found == specs_.end() ? nullptr : &*found;
}

Status OptionValues::set(std::string_view name, const std::vector<std::string>& texts, OptionSource source,
                         const std::string& origin) {
  const OptionSpec* spec = find(name);
  TANDEM_CHECK(spec != nullptr);
  auto value = parse(*spec, texts);
  if (!value) return Error{value.error().code, origin + ": " + value.error().message};
  Value& held = values_.find(name)->second;
  if (held.is_set && held.source > source) return Done{};
  held = std::move(value).value();
  held.is_set = true;
  held.source = source;
  return Done{};
}

Result<OptionValues::Value> OptionValues::parse(const OptionSpec& spec, const std::vector<std::string>& texts) {
  const bool is_list = spec.type == OptionType::kTextList || spec.type == OptionType::kIntegerList;
  if (texts.empty() || (!is_list && texts.size() > 1)) {
    return Error{ErrorCode::kInvalidArgument, texts.empty() ? "a value is missing" : "given more than once"};
  }
  Value value;
  const std::string& text = texts.back();
  bool is_good = true;
  switch (spec.type) {
    case OptionType::kText:
      value.text = text;
      break;
    case OptionType::kChoice:
      value.text = text;
      is_good = std::find(spec.choices.begin(), spec.choices.end(), text) != spec.choices.end();
      break;
    case OptionType::kInteger:
      is_good = read_whole(text, value.integer) && is_in_range(spec, static_cast<double>(value.integer));
      break;
    case OptionType::kBytes: {
      auto bytes = parse_bytes(text);
      if (bytes) value.integer = *bytes;
      is_good = bytes && is_in_range(spec, static_cast<double>(value.integer));
      break;
    }
    case OptionType::kNumber:
      is_good = read_whole(text, value.number) && std::isfinite(value.number) && is_in_range(spec, value.number);
      break;
    case OptionType::kSwitch: {
      bool is_on = false;
      is_good = read_switch(text, is_on);
      value.integer = is_on ? 1 : 0;
      break;
    }
    case OptionType::kTextList:
      value.texts = split_commas(texts);
      for (const std::string& part : value.texts) {
        if (part.empty()) return not_allowed(spec, text);
      }
      break;
    case OptionType::kIntegerList:
      for (const std::string& part : split_commas(texts)) {
        int64_t integer = 0;
        if (!read_whole(part, integer) || !is_in_range(spec, static_cast<double>(integer))) {
          return not_allowed(spec, part);
        }
        value.integers.push_back(integer);
      }
      break;
  }
  if (!is_good) return not_allowed(spec, text);
  return value;
}

bool OptionValues::has(std::string_view name) const {
  const auto found = values_.find(name);
  TANDEM_CHECK(found != values_.end());
  return found->second.is_set;
}

OptionSource OptionValues::source(std::string_view name) const {
  const auto found = values_.find(name);
  TANDEM_CHECK(found != values_.end());
  return found->second.source;
}

const OptionValues::Value& OptionValues::value_of(std::string_view name, OptionType type,
                                                  OptionType other_type) const {
  const OptionSpec* spec = find(name);
  TANDEM_CHECK(spec != nullptr);
  TANDEM_CHECK(spec->type == type || spec->type == other_type);
  return values_.find(name)->second;
}

const std::string& OptionValues::text(std::string_view name) const {
  const Value& value = value_of(name, OptionType::kText, OptionType::kChoice);
  TANDEM_CHECK(value.is_set);
  return value.text;
}

int64_t OptionValues::integer(std::string_view name) const {
  const Value& value = value_of(name, OptionType::kInteger, OptionType::kBytes);
  TANDEM_CHECK(value.is_set);
  return value.integer;
}

double OptionValues::number(std::string_view name) const {
  const Value& value = value_of(name, OptionType::kNumber, OptionType::kNumber);
  TANDEM_CHECK(value.is_set);
  return value.number;
}

bool OptionValues::is_on(std::string_view name) const {
  const Value& value = value_of(name, OptionType::kSwitch, OptionType::kSwitch);
  TANDEM_CHECK(value.is_set);
  return value.integer != 0;
}

const std::vector<std::string>& OptionValues::texts(std::string_view name) const {
  return value_of(name, OptionType::kTextList, OptionType::kTextList).texts;
}

const std::vector<int64_t>& OptionValues::integers(std::string_view name) const {
  return value_of(name, OptionType::kIntegerList, OptionType::kIntegerList).integers;
}

std::string environment_name(std::string_view option_name) {
  std::string name;
  for (const char c : option_name) {
    if (c == '-') name += '_';
    else name += (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

std::string allowed_text(const OptionSpec& spec) {
  const bool has_min = std::isfinite(spec.min), has_max = std::isfinite(spec.max);
  std::string range;
  if (has_min && has_max) range = number_text(spec.min) + " to " + number_text(spec.max);
  else if (has_min) range = "at least " + number_text(spec.min);
  else if (has_max) range = "at most " + number_text(spec.max);
  switch (spec.type) {
    case OptionType::kText: return "a text";
    case OptionType::kTextList: return "texts separated by commas";
    case OptionType::kInteger: return range.empty() ? "a whole number" : "a whole number, " + range;
    case OptionType::kIntegerList: return range.empty() ? "whole numbers separated by commas"
                                                        : "whole numbers separated by commas, each " + range;
    case OptionType::kNumber: return range.empty() ? "a number" : "a number, " + range;
    case OptionType::kSwitch: return "true or false";
    case OptionType::kBytes: return range.empty() ? "a size such as 8GiB" : "a size such as 8GiB, " + range + " bytes";
    case OptionType::kChoice: break;
  }
  std::string list;
  for (size_t i = 0; i < spec.choices.size(); ++i) {
    if (i > 0) list += i + 1 == spec.choices.size() ? " or " : ", ";
    list += spec.choices[i];
  }
  return list;
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

Result<int64_t> parse_bytes(std::string_view text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  const std::string_view unit = text.substr(end);
  constexpr std::string_view kPrefixes = "KMGT";
  double factor = 1;
  bool is_good = read_whole(text.substr(0, end), number);
  if (!unit.empty() && unit != "B") {
    const size_t power = kPrefixes.find(unit[0]);
    const std::string_view rest = unit.substr(1);
    is_good = is_good && power != std::string_view::npos && (rest == "B" || rest == "iB");
    if (is_good) factor = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  if (!is_good || !(number * factor < 9e18)) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("'{}' is not a size such as 50GB or 8GiB", text)};
  }
  return static_cast<int64_t>(number * factor);
}

}  // namespace tandem
