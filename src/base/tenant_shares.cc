#include "base/tenant_shares.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

// Tenants that are gone keep their count for a while, so that leaving and coming back clears no debt.
constexpr size_t kMaxTenants = 1024;

}  // namespace

void TenantShares::enter(const std::string& name) {
  const auto [it, is_new] = tenants_.try_emplace(name);
  Tenant& tenant = it->second;
  if (is_new) {
    const auto weight = weights_.find(name);
    if (weight != weights_.end() && weight->second > 0) tenant.weight = weight->second;
  }
  if (tenant.num_present++ > 0) return;
  tenant.came = ++num_came_;
  double level = 0;
  if (num_present_++ > 0) {
    bool is_first = true;
    for (const auto& [other_name, other] : tenants_) {
      if (&other == &tenant || other.num_present == 0) continue;
      level = is_first ? other.served : std::min(level, other.served);
      is_first = false;
    }
    tenant.served = std::max(tenant.served, level - start_);
  }
  forget_absent();
}

void TenantShares::leave(const std::string& name) {
  Tenant& tenant = at(name);
  TANDEM_CHECK(tenant.num_present > 0);
  if (--tenant.num_present == 0) --num_present_;
}

void TenantShares::charge(const std::string& name, double amount) {
  Tenant& tenant = at(name);
  tenant.served += amount / tenant.weight;
}

TenantShares::Tenant& TenantShares::at(const std::string& name) {
  const auto found = tenants_.find(name);
  TANDEM_CHECK(found != tenants_.end());
  return found->second;
}

const TenantShares::Tenant& TenantShares::of(const std::string& name) const {
  const auto found = tenants_.find(name);
  TANDEM_CHECK(found != tenants_.end());
  return found->second;
}

void TenantShares::forget_absent() {
  while (tenants_.size() > kMaxTenants) {
    auto least = tenants_.end();
    for (auto it = tenants_.begin(); it != tenants_.end(); ++it) {
      if (it->second.num_present > 0) continue;
      if (least == tenants_.end() || it->second.served < least->second.served) least = it;
    }
    if (least == tenants_.end()) return;
    tenants_.erase(least);
  }
}

}  // namespace tandem
