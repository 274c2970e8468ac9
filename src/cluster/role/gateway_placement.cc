// Which pair of nodes a request gets: role first, then load, with room and credits known from the beats.
#include <algorithm>

#include "cluster/role/gateway.h"

namespace tandem::role {

using namespace handoff;

void Gateway::count_work() {
  for (auto& [node, link] : links_) link.num_prefills = link.num_decodes = 0;
  for (const auto& [id, request] : requests_) {
    const GatewayRequest::Phase phase = request->phase();
    const bool has_pair = phase == GatewayRequest::Phase::kReserving || phase == GatewayRequest::Phase::kPrefilling ||
                          phase == GatewayRequest::Phase::kDecoding;
    if (!has_pair) continue;
    const auto target = links_.find(request->target().id);
    if (target != links_.end()) ++target->second.num_decodes;
    if (phase == GatewayRequest::Phase::kDecoding) continue;
    const auto source = links_.find(request->source().id);
    if (source != links_.end()) ++source->second.num_prefills;
  }
}

bool Gateway::may_serve(const std::string&, const NodeLink& link) const {
  return link.state == LinkState::kOpen && !link.is_draining;
}

// A node that has just come gets a tenth of the work, so that it is not flooded while it is empty.
double Gateway::load_of(const NodeLink& link, uint32_t work) const {
  const auto open_for = static_cast<double>(now_ - link.opened_at);
  const double age = config_.ramp > 0 ? open_for / static_cast<double>(config_.ramp) : 1;
  return (work + 1) / std::clamp(0.1 + 0.9 * age, 0.1, 1.0);
}

std::optional<NodeRef> Gateway::open_node(const std::string& node) const {
  const auto it = links_.find(node);
  if (it == links_.end() || it->second.state != LinkState::kOpen) return std::nullopt;
  return it->second.hello.from;
}

bool Gateway::has_open_node() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link.second.state == LinkState::kOpen; });
}

Nanos Gateway::progressed_at(const std::string& node) const {
  const auto it = links_.find(node);
  return it == links_.end() ? 0 : it->second.progressed_at;
}

namespace {

// 0: made for it; 1: mixed; 2: the other role, better than none.
int distance(Role role, Role wanted) {
  if (role == wanted) return 0;
  return role == Role::kMixed ? 1 : 2;
}

// Wanted ones first, then by role, then by load, then by name.
struct Rank {
  int keep, role;
  double load;
  const std::string* node;
  bool operator<(const Rank& other) const {
    if (keep != other.keep) return keep < other.keep;
    if (role != other.role) return role < other.role;
    if (load != other.load) return load < other.load;
    return *node < *other.node;
  }
};

}  // namespace

std::optional<Placed> Gateway::place(const PlacementQuery& query) const {
  std::vector<Rank> sources, targets;
  for (const auto& [node, link] : links_) {
    // A node that drains takes no reservation, but goes on computing from what it holds.
    const bool is_kept_source = node == query.keep_source && link.state == LinkState::kOpen;
    const bool has_credit = !query.is_first_attempt || link.num_prefills < link.beat.credits;
    if ((may_serve(node, link) || is_kept_source) && has_credit && !query.not_source.contains(node)) {
      sources.push_back({node != query.keep_source, distance(link.hello.role, Role::kPrefill),
                         load_of(link, link.num_prefills), &node});
    }
    if (may_serve(node, link) && !query.not_target.contains(node)) {
      targets.push_back({node != query.keep_target, distance(link.hello.role, Role::kDecode),
                         load_of(link, link.num_decodes), &node});
    }
  }
  std::sort(sources.begin(), sources.end());
  std::sort(targets.begin(), targets.end());
  // A pair that failed lately is still better than none.
  for (const bool may_be_bad : {false, true}) {
    for (const Rank& target : targets) {
      for (const Rank& source : sources) {
        if (!may_be_bad && bad_pairs_.is_bad(*source.node, *target.node, now_)) continue;
        const NodeLink& s = links_.at(*source.node);
        const NodeLink& t = links_.at(*target.node);
        if (!differing_field(s.hello.fingerprint, t.hello.fingerprint).empty()) continue;
        uint64_t num_tokens = query.shape.prompt_tokens;
        for (const uint32_t tokens : query.shape.choice_tokens) num_tokens += tokens;
        const double seconds = static_cast<double>(num_tokens) / config_.prefill_tokens_per_s;
        return Placed{s.hello.from, t.hello.from, static_cast<Nanos>(seconds * 1e9)};
      }
    }
  }
  return std::nullopt;
}

std::optional<NodeRef> Gateway::place_holder(const PlacementQuery& query) const {
  std::optional<Rank> best;
  for (const auto& [node, link] : links_) {
    if (!may_serve(node, link) || query.not_target.contains(node)) continue;
    const Rank rank{0, distance(link.hello.role, Role::kPrefill), load_of(link, link.num_prefills + link.num_decodes),
                    &node};
    if (!best || rank < *best) best = rank;
  }
  if (!best) return std::nullopt;
  return links_.at(*best->node).hello.from;
}

}  // namespace tandem::role
