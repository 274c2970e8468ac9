// needs: apps
// What nodes of unequal size tell the gateways that stand before them.

#include "apps/cluster_facts.h"

#include <doctest/doctest.h>

#include "cluster/registry/memory_registry.h"

namespace tandem::apps {
namespace {

// Fails when the first node's length, or the last one's, is the cluster's: then a prompt between the two would be
// prefilled on a node and end on another that has no room for it.
TEST_CASE("PDD-08: of nodes that take prompts of different lengths the shortest is what a client may ask for") {
  for (const std::vector<uint32_t>& lengths : {std::vector<uint32_t>{4096, 1024, 2048},
                                               std::vector<uint32_t>{1024, 4096}, std::vector<uint32_t>{2048, 1024}}) {
    registry::MemoryRegistry registry;
    for (const uint32_t length : lengths) REQUIRE(tell_cluster_facts(registry, {length, "same"}));
    const auto view = registry.poll(0);
    REQUIRE(view);
    const auto facts = cluster_facts_in(view->value());
    REQUIRE(facts);
    CHECK(facts->max_model_len == 1024);
    CHECK(facts->fingerprint == "same");
  }
}

}  // namespace
}  // namespace tandem::apps
