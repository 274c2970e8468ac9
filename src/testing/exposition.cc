#include "testing/exposition.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

namespace tandem::testing {
namespace {

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

bool is_name(std::string_view text, bool allows_colon) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (allows_colon && c == ':');
  });
}

std::optional<double> number_of(std::string_view text) {
  if (text == "+Inf") return INFINITY;
  if (text == "-Inf") return -INFINITY;
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// Up to the closing quote; moves `text` behind it.
std::optional<std::string> quoted(std::string_view& text) {
  if (!text.starts_with('"')) return std::nullopt;
  std::string value;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return value;
    }
    if (text[i] == '\\') {
      if (++i == text.size() || std::string_view("\\\"n").find(text[i]) == std::string_view::npos) return std::nullopt;
      value.push_back(text[i] == 'n' ? '\n' : text[i]);
    } else {
      value.push_back(text[i]);
    }
  }
  return std::nullopt;
}

std::optional<Sample> sample_of(std::string_view line) {
  Sample sample;
  const size_t name_end = std::min(line.find_first_of("{ "), line.size());
  sample.name = line.substr(0, name_end);
  line.remove_prefix(name_end);
  if (!is_name(sample.name, true)) return std::nullopt;
  if (line.starts_with('{')) {
    line.remove_prefix(1);
    while (!line.starts_with('}')) {
      const size_t equals = line.find('=');
      if (equals == std::string_view::npos || !is_name(line.substr(0, equals), false)) return std::nullopt;
      const std::string label(line.substr(0, equals));
      line.remove_prefix(equals + 1);
      const auto value = quoted(line);
      if (!value || !sample.labels.emplace(label, *value).second) return std::nullopt;
      if (line.starts_with(','))
        line.remove_prefix(1);
      else if (!line.starts_with('}'))
        return std::nullopt;
    }
    line.remove_prefix(1);
  }
  if (!line.starts_with(' ')) return std::nullopt;
  const auto value = number_of(line.substr(1));
  if (!value) return std::nullopt;
  sample.value = *value;
  return sample;
}

class Checker {
 public:
  void take(std::string_view line, size_t number) {
    line_ = "line " + std::to_string(number) + " (" + std::string(line.substr(0, 120)) + "): ";
    if (line.starts_with("# HELP ")) return begin_family(line.substr(7));
    if (line.starts_with("# TYPE ")) return set_type(line.substr(7));
    if (line.starts_with('#')) return;
    const auto sample = sample_of(line);
    if (!sample) return fault("is no sample");
    take_sample(*sample);
  }

  std::vector<std::string> finish() {
    end_family();
    return std::move(faults_);
  }

 private:
  void fault(const std::string& what) { faults_.push_back(line_ + what); }

  void begin_family(std::string_view rest) {
    end_family();
    const size_t end = std::min(rest.find(' '), rest.size());
    family_ = rest.substr(0, end);
    if (end == rest.size()) fault("has no help");
    if (!is_name(family_, true)) fault("names no metric");
    if (!families_.insert(family_).second) fault("comes a second time");
  }

  void set_type(std::string_view rest) {
    const size_t space = rest.find(' ');
    if (space == std::string_view::npos || rest.substr(0, space) != family_)
      return fault("belongs to no HELP before it");
    if (!type_.empty() || num_samples_ > 0) return fault("comes too late");
    type_ = rest.substr(space + 1);
    if (type_ != "counter" && type_ != "gauge" && type_ != "histogram") fault("is of an unknown type");
    if (type_ == "counter" && !family_.ends_with("_total")) fault("is a counter whose name does not end in _total");
    if (type_ == "gauge" && family_.ends_with("_total")) fault("ends in _total and is a gauge");
  }

  void take_sample(const Sample& sample) {
    ++num_samples_;
    if (type_.empty()) return fault("has no type");
    std::string key = sample.name;
    for (const auto& [name, value] : sample.labels) key += "\n" + name + "\n" + value;
    if (!seen_.insert(key).second) fault("comes a second time");
    if (std::isnan(sample.value)) fault("is not a number");
    if (type_ != "histogram") {
      if (sample.name != family_) fault("stands in another family, " + family_);
      if (type_ == "counter" && !(sample.value >= 0)) fault("is a counter below 0");
      return;
    }
    std::map<std::string, std::string> labels = sample.labels;
    const auto bound = labels.find("le");
    std::string bound_text = bound == labels.end() ? "" : bound->second;
    labels.erase("le");
    Histogram& histogram = histograms_[labels];
    if (sample.name == family_ + "_bucket")
      take_bucket(histogram, bound_text, sample.value);
    else if (sample.name == family_ + "_sum")
      histogram.has_sum = true;
    else if (sample.name == family_ + "_count")
      histogram.count = sample.value;
    else
      fault("stands in another family, " + family_);
  }

  struct Histogram {
    double last_bound = -INFINITY, last_value = 0;
    bool has_sum = false;
    std::optional<double> count;
  };

  void take_bucket(Histogram& histogram, const std::string& bound_text, double value) {
    const auto bound = number_of(bound_text);
    if (!bound) return fault("is a bucket without a bound");
    if (!(*bound > histogram.last_bound)) fault("is a bucket out of order");
    if (!(value >= histogram.last_value)) fault("is a bucket below the one before it");
    histogram.last_bound = *bound;
    histogram.last_value = value;
  }

  void end_family() {
    for (const auto& [labels, histogram] : histograms_) {
      if (histogram.last_bound != INFINITY) fault(family_ + " has no bucket +Inf");
      if (!histogram.count || *histogram.count != histogram.last_value)
        fault(family_ + "'s count is not its +Inf bucket");
      if (!histogram.has_sum) fault(family_ + " has no sum");
    }
    histograms_.clear();
    seen_.clear();
    type_.clear();
    num_samples_ = 0;
  }

  std::vector<std::string> faults_;
  std::set<std::string> families_, seen_;
  std::string line_, family_, type_;
  size_t num_samples_ = 0;
  std::map<std::map<std::string, std::string>, Histogram> histograms_;
};

template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

std::vector<std::string> faults_in_exposition(std::string_view text) {
  Checker checker;
  std::vector<std::string> faults;
  if (!text.ends_with('\n')) faults.emplace_back("the last line has no end");
  for_each_line(text, [&](std::string_view line, size_t number) { checker.take(line, number); });
  for (std::string& fault : checker.finish()) faults.push_back(std::move(fault));
  return faults;
}

std::map<std::string, double> samples_in_exposition(std::string_view text) {
  std::map<std::string, double> samples;
  for_each_line(text, [&](std::string_view line, size_t) {
    if (line.starts_with('#') || !sample_of(line)) return;
    const size_t space = line.rfind(' ');
    samples[std::string(line.substr(0, space))] = *number_of(line.substr(space + 1));
  });
  return samples;
}

}  // namespace tandem::testing
