#include "cluster/supervisor/topology.h"

#include <charconv>

namespace tandem::supervisor {
namespace {

Error topology_error(std::string_view text, const char* why) {
  return {ErrorCode::kInvalidArgument, "topology '" + std::string(text) + "': " + why +
                                           "; write the numbers of prefill, decode and mixed nodes, such as 2P1D, 3M "
                                           "or 1P1D1M"};
}

}  // namespace

Result<Topology> parse_topology(std::string_view text) {
  Topology topology;
  struct Part {
    char letter;
    uint32_t* count;
  };
  const Part parts[] = {{'P', &topology.num_prefill}, {'D', &topology.num_decode}, {'M', &topology.num_mixed}};
  std::string_view rest = text;
  size_t next_part = 0;
  while (!rest.empty()) {
    uint32_t count = 0;
    const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), count);
    if (code != std::errc() || count > kMaxNodes) return topology_error(text, "a number from 0 to 256 is missing");
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    const char letter = rest.empty() ? '\0' : static_cast<char>(rest.front() & ~0x20);
    while (next_part < std::size(parts) && parts[next_part].letter != letter) ++next_part;
    if (next_part == std::size(parts)) return topology_error(text, "P, D and M come in this order, each once");
    *parts[next_part++].count = count;
    rest.remove_prefix(1);
  }
  if (topology.num_nodes() == 0) return topology_error(text, "there is no node in it");
  if (topology.num_nodes() > kMaxNodes) return topology_error(text, "these are more than 256 nodes");
  if (topology.num_mixed == 0 && topology.num_decode == 0) return topology_error(text, "nobody would decode");
  if (topology.num_mixed == 0 && topology.num_prefill == 0) return topology_error(text, "nobody would prefill");
  return topology;
}

std::vector<NamedNode> nodes_of(const Topology& topology) {
  std::vector<NamedNode> nodes;
  const auto add = [&](uint32_t count, const char* letter, handoff::Role role) {
    for (uint32_t i = 1; i <= count; ++i) nodes.push_back({letter + std::to_string(i), role});
  };
  add(topology.num_prefill, "p", handoff::Role::kPrefill);
  add(topology.num_decode, "d", handoff::Role::kDecode);
  add(topology.num_mixed, "m", handoff::Role::kMixed);
  return nodes;
}

}  // namespace tandem::supervisor
