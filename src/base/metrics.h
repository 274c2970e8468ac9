#pragma once
// Metrics: counters, gauges and histograms declared once (name, unit in the name, labels, help), and their
// Prometheus text exposition. Source: Prometheus text format 0.0.4.
//
// Updating is lock-free and cheap enough for a step (not for a kernel). References stay valid as long as the registry.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void add(uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class HistogramMetric {
 public:
  explicit HistogramMetric(std::vector<double> upper_bounds);  // rising; +Inf is added
  void observe(double value);
  uint64_t count() const;
  double sum() const;
  const std::vector<double>& bounds() const { return bounds_; }
  uint64_t bucket(size_t index) const { return buckets_[index].load(std::memory_order_relaxed); }  // not cumulative

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;  // bounds_.size() + 1
  std::atomic<double> sum_{0};
};

// Owns all metrics of a process or a test. Declaring the same name and labels again returns the same metric;
// the same name with another kind or help is a bug. Any thread.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();

  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  HistogramMetric& histogram(const std::string& name, const std::string& help, const std::vector<double>& upper_bounds,
                             const Labels& labels = {});

  std::string exposition() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem
