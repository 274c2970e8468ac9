#pragma once
// What a cluster's nodes have in common and its gateways need to know, in the registry's configuration: gateways load
// no weights and have no pool.

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/registry/registry.h"

namespace tandem::apps {

struct ClusterFacts {
  uint32_t max_model_len = 0;  // prompt and answer that every node has room for
  std::string fingerprint;     // of the numerics
};

// A node's: the shortest length counts, and the first fingerprint.
Status tell_cluster_facts(registry::Registry& registry, const ClusterFacts& facts);

// Absent until a node has told them.
std::optional<ClusterFacts> cluster_facts_in(const registry::View& view);

}  // namespace tandem::apps
