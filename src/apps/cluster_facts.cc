#include "apps/cluster_facts.h"

#include <algorithm>
#include <charconv>

#include "base/log.h"

namespace tandem::apps {
namespace {

constexpr const char* kLength = "max-model-len";
constexpr const char* kFingerprint = "fingerprint";
constexpr int kMaxTrials = 100;  // each is lost to another node's change only

Result<registry::View> view_of(registry::Registry& registry) {
  TRY_ASSIGN(const std::optional<registry::View> view, registry.poll(0));
  return view.value_or(registry::View{});
}

// `choose` gets the value that is there, or null, and returns the one to be; empty: as it is.
template <class Choose>
Status change(registry::Registry& registry, const std::string& key, const Choose& choose) {
  for (int trial = 0; trial < kMaxTrials; ++trial) {
    TRY_ASSIGN(const registry::View view, view_of(registry));
    const auto known = view.config.find(key);
    const std::string value = choose(known == view.config.end() ? nullptr : &known->second);
    if (value.empty()) return Done{};
    const auto changed = registry.set_config(key, value, view.config_revision);
    if (changed) return Done{};
    if (changed.error().code != ErrorCode::kUnavailable) return Error(changed.error());
  }
  return Error{ErrorCode::kUnavailable, "the registry's configuration changes too often"};
}

uint32_t length_in(const std::string& text) {
  uint32_t length = 0;
  std::from_chars(text.data(), text.data() + text.size(), length);
  return length;
}

}  // namespace

Status tell_cluster_facts(registry::Registry& registry, const ClusterFacts& facts) {
  TRY(change(registry, kLength, [&](const std::string* known) {
    const bool is_shorter = known == nullptr || facts.max_model_len < length_in(*known);
    return is_shorter ? std::to_string(facts.max_model_len) : std::string();
  }));
  return change(registry, kFingerprint, [&](const std::string* known) {
    if (known != nullptr && *known != facts.fingerprint) {
      log_warning("apps", "this node's numerics are not the cluster's: no request moves between them",
                  {{"own", facts.fingerprint}, {"cluster", *known}});
    }
    return known == nullptr ? facts.fingerprint : std::string();
  });
}

std::optional<ClusterFacts> cluster_facts_in(const registry::View& view) {
  const auto length = view.config.find(kLength);
  const auto fingerprint = view.config.find(kFingerprint);
  if (length == view.config.end() || fingerprint == view.config.end()) return std::nullopt;
  const ClusterFacts facts{length_in(length->second), fingerprint->second};
  if (facts.max_model_len == 0) return std::nullopt;
  return facts;
}

}  // namespace tandem::apps
