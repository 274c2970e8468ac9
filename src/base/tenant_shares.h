#pragma once
// TenantShares: who is served next among tenants that each have a weight: the one that got least by its weight. One
// that comes back has no claim on the time it was away but for a bounded start, so that who asks for little and seldom
// is served at once; leaving clears no debt. One thread.

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace tandem {

class TenantShares {
 public:
  struct Tenant {
    double weight = 1;
    double served = 0;  // what it got, by its weight
    uint32_t num_present = 0;
    uint64_t came = 0;  // in what order they came, the last time
    // Of two that are level the one that came last, which has waited for nobody yet.
    bool goes_before(const Tenant& other) const {
      return served != other.served ? served < other.served : came > other.came;
    }
  };

  // Tenants without a weight, or with none above 0, have 1. `start`: what one that comes back may get, by a weight of
  // 1, before it is level with the others.
  TenantShares(std::map<std::string, double> weights, double start) : weights_(std::move(weights)), start_(start) {}

  // It counts as present from its first enter() to its last leave().
  void enter(const std::string& name);
  void leave(const std::string& name);
  uint32_t num_present() const { return num_present_; }

  // The tenant got `amount`.
  void charge(const std::string& name, double amount);
  void set_served(const std::string& name, double served) { at(name).served = served; }
  const Tenant& of(const std::string& name) const;  // one that has entered
  const std::map<std::string, Tenant>& all() const { return tenants_; }

 private:
  Tenant& at(const std::string& name);
  void forget_absent();

  const std::map<std::string, double> weights_;
  const double start_;
  std::map<std::string, Tenant> tenants_;
  uint32_t num_present_ = 0;
  uint64_t num_came_ = 0;
};

}  // namespace tandem
