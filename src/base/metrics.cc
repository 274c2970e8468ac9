#include "base/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/check.h"
#include "base/thread_safety.h"

namespace tandem {
namespace {

bool is_name(std::string_view name, bool allows_colon) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (c == ':' && allows_colon);
  });
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char buffer[40];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

// In help a double quote stays as it is, in a label value it is escaped.
std::string escaped(std::string_view text, bool is_label) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && is_label)
      out += "\\\"";
    else
      out.push_back(c);
  }
  return out;
}

// `{a="1",b="2"}`, or nothing without labels.
std::string label_set(const Labels& labels, std::string_view bucket_bound = {}) {
  std::string inside;
  for (const auto& [name, value] : labels) {
    inside += fmt::format("{}{}=\"{}\"", inside.empty() ? "" : ",", name, escaped(value, true));
  }
  if (!bucket_bound.empty()) inside += fmt::format("{}le=\"{}\"", inside.empty() ? "" : ",", bucket_bound);
  return inside.empty() ? inside : "{" + inside + "}";
}

enum class Kind { kCounter, kGauge, kHistogram };
constexpr std::string_view kKindNames[] = {"counter", "gauge", "histogram"};

// One metric of a family. Exactly one of the pointers is set.
struct Series {
  Labels labels;
  std::unique_ptr<Counter> counter;
  std::unique_ptr<Gauge> gauge;
  std::unique_ptr<HistogramMetric> histogram;
};

struct Family {
  Kind kind = Kind::kCounter;
  std::string help;
  std::vector<std::unique_ptr<Series>> series;
};

void append_histogram(std::string& out, const std::string& name, const Series& series) {
  const HistogramMetric& histogram = *series.histogram;
  uint64_t below = 0;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
    below += histogram.bucket(i);
    const std::string bound = i < histogram.bounds().size() ? number(histogram.bounds()[i]) : "+Inf";
    out += fmt::format("{}_bucket{} {}\n", name, label_set(series.labels, bound), below);
  }
  // The count is that of the buckets just read, so that one scrape never contradicts itself.
  out += fmt::format("{}_sum{} {}\n", name, label_set(series.labels), number(histogram.sum()));
  out += fmt::format("{}_count{} {}\n", name, label_set(series.labels), below);
}

}  // namespace

HistogramMetric::HistogramMetric(std::vector<double> upper_bounds)
    : bounds_(std::move(upper_bounds)), buckets_(new std::atomic<uint64_t>[bounds_.size() + 1]()) {
  TANDEM_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void HistogramMetric::observe(double value) {
  if (std::isnan(value)) return;
  const size_t index = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  buckets_[index].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

uint64_t HistogramMetric::count() const {
  uint64_t count = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) count += bucket(i);
  return count;
}

double HistogramMetric::sum() const { return sum_.load(std::memory_order_relaxed); }

struct MetricRegistry::State {
  mutable Mutex mutex;
  std::map<std::string, Family> families GUARDED_BY(mutex);

  // The series of that name and labels, made when it is new (then it has no metric yet).
  Series& declare(Kind kind, const std::string& name, const std::string& help, const Labels& labels) REQUIRES(mutex) {
    TANDEM_CHECK(is_name(name, true));
    for (const auto& label : labels) TANDEM_CHECK(is_name(label.first, false));
    const auto [at, is_new] = families.try_emplace(name);
    Family& family = at->second;
    if (is_new) {
      family.kind = kind;
      family.help = help;
    }
    TANDEM_CHECK(family.kind == kind && family.help == help);
    for (auto& known : family.series) {
      if (known->labels == labels) return *known;
    }
    family.series.push_back(std::make_unique<Series>());
    family.series.back()->labels = labels;
    return *family.series.back();
  }
};

MetricRegistry::MetricRegistry() : state_(std::make_unique<State>()) {}
MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::counter(const std::string& name, const std::string& help, const Labels& labels) {
  Lock lock(state_->mutex);
  Series& series = state_->declare(Kind::kCounter, name, help, labels);
  if (!series.counter) series.counter = std::make_unique<Counter>();
  return *series.counter;
}

Gauge& MetricRegistry::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  Lock lock(state_->mutex);
  Series& series = state_->declare(Kind::kGauge, name, help, labels);
  if (!series.gauge) series.gauge = std::make_unique<Gauge>();
  return *series.gauge;
}

HistogramMetric& MetricRegistry::histogram(const std::string& name, const std::string& help,
                                           const std::vector<double>& upper_bounds, const Labels& labels) {
  Lock lock(state_->mutex);
  Series& series = state_->declare(Kind::kHistogram, name, help, labels);
  if (!series.histogram) series.histogram = std::make_unique<HistogramMetric>(upper_bounds);
  TANDEM_CHECK(series.histogram->bounds() == upper_bounds);
  return *series.histogram;
}

std::string MetricRegistry::exposition() const {
  Lock lock(state_->mutex);
  std::string out;
  for (const auto& [name, family] : state_->families) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(family.help, false), name,
                       kKindNames[static_cast<size_t>(family.kind)]);
    for (const auto& series : family.series) {
      if (series->counter) out += fmt::format("{}{} {}\n", name, label_set(series->labels), series->counter->value());
      if (series->gauge)
        out += fmt::format("{}{} {}\n", name, label_set(series->labels), number(series->gauge->value()));
      if (series->histogram) append_histogram(out, name, *series);
    }
  }
  return out;
}

}  // namespace tandem
