#pragma once
// Topology: how many nodes of which role a cluster starts with, written 2P1D, 3M or 1P1D1M; and the names of its nodes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cluster/handoff/messages.h"

namespace tandem::supervisor {

struct Topology {
  uint32_t num_prefill = 0, num_decode = 0, num_mixed = 0;

  uint32_t num_nodes() const { return num_prefill + num_decode + num_mixed; }
  bool operator==(const Topology&) const = default;
};

inline constexpr uint32_t kMaxNodes = 256;

// [nP][nD][nM], at least one part, letters in either case. kInvalidArgument: not of this form, more than kMaxNodes, or
// nobody who could prefill, or nobody who could decode.
Result<Topology> parse_topology(std::string_view text);

struct NamedNode {
  std::string name;  // p1, p2, d1, m1: by the role in which it starts
  handoff::Role role = handoff::Role::kMixed;
};
std::vector<NamedNode> nodes_of(const Topology& topology);

}  // namespace tandem::supervisor
