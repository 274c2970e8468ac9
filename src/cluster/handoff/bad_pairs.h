#pragma once
// (source, target) pairs whose transfer failed: not chosen for a while, longer each time. Across requests, so that one
// broken link costs one attempt and not one per request.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "cluster/handoff/ids.h"
#include "cluster/handoff/timing.h"

namespace tandem::handoff {

class BadPairs {
 public:
  void failed(const std::string& source, const std::string& target, Nanos now, const Timing& timing) {
    Entry& entry = entries_[{source, target}];
    const bool is_new_failure = now >= entry.until;  // requests in flight together count once
    if (!is_new_failure) return;
    entry.backoff = entry.backoff == 0 ? timing.bad_pair_min : std::min(2 * entry.backoff, timing.bad_pair_max);
    entry.until = now + entry.backoff;
  }
  void worked(const std::string& source, const std::string& target) { entries_.erase({source, target}); }
  bool is_bad(const std::string& source, const std::string& target, Nanos now) const {
    const auto it = entries_.find({source, target});
    return it != entries_.end() && now < it->second.until;
  }
  // A restarted process has new connections.
  void forget(const std::string& node) {
    std::erase_if(entries_, [&](const auto& e) { return e.first.first == node || e.first.second == node; });
  }
  size_t size(Nanos now) const {
    return static_cast<size_t>(
        std::count_if(entries_.begin(), entries_.end(), [&](const auto& e) { return now < e.second.until; }));
  }

 private:
  struct Entry {
    Nanos until = 0, backoff = 0;
  };
  std::map<std::pair<std::string, std::string>, Entry> entries_;  // at most nodes^2
};

}  // namespace tandem::handoff
