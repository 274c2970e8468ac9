// Which pair of nodes a request gets: role first, then load, with room and credits known from the beats.
#include <algorithm>

#include "base/check.h"
#include "cluster/role/gateway.h"

namespace tandem::role {

using namespace handoff;

Gateway::Work Gateway::work_of(const GatewayRequest& request) {
  using Phase = GatewayRequest::Phase;
  Work work;
  const Phase phase = request.phase();
  if (phase == Phase::kDone) return work;
  const auto link_of = [this](const std::string& node) {
    const auto it = links_.find(node);
    return it == links_.end() ? nullptr : &it->second;
  };
  request.for_each_node([&](const std::string& node) {
    NodeLink* link = link_of(node);
    if (link != nullptr && std::ranges::find(work.involved, link) == work.involved.end()) work.involved.push_back(link);
  });
  const bool is_before_decode = phase == Phase::kReserving || phase == Phase::kPrefilling;
  if (is_before_decode) work.source = link_of(request.source().id);
  if (is_before_decode || phase == Phase::kDecoding) work.target = link_of(request.target().id);
  return work;
}

// `by` is 1 or -1, which wraps.
void Gateway::count(const Work& work, uint32_t by) {
  for (NodeLink* link : work.involved) {
    link->num_requests += by;
    if (link->num_requests == 0) link->told_at = 0;  // what it was told of is over, shown by a beat or not
  }
  if (work.source != nullptr) work.source->num_prefills += by;
  if (work.target != nullptr) work.target->num_decodes += by;
}

void Gateway::recount(const GatewayRequest& request) {
  Work& counted = work_[request.id()];
  Work work = work_of(request);
  if (work == counted) return;
  count(counted, UINT32_MAX);
  count(work, 1);
  counted = std::move(work);
}

void Gateway::check_invariants() const {
  struct Counts {
    uint32_t prefills = 0, decodes = 0, requests = 0;
    bool operator==(const Counts&) const = default;
  };
  std::map<const NodeLink*, Counts> counts;
  TANDEM_CHECK(work_.size() <= requests_.size());
  for (const auto& [id, work] : work_) {
    TANDEM_CHECK(requests_.contains(id));
    for (const NodeLink* link : work.involved) ++counts[link].requests;
    if (work.source != nullptr) ++counts[work.source].prefills;
    if (work.target != nullptr) ++counts[work.target].decodes;
  }
  for (const auto& [node, link] : links_) {
    TANDEM_CHECK((counts[&link] == Counts{link.num_prefills, link.num_decodes, link.num_requests}));
    const auto is_here = [&, &name = node](const auto& r) {
      return r.second->phase() != GatewayRequest::Phase::kDone && r.second->involves(name);
    };
    TANDEM_CHECK(static_cast<size_t>(std::ranges::count_if(requests_, is_here)) == link.num_requests);
  }
}

bool Gateway::may_serve(const NodeLink& link) const {
  return link.state == LinkState::kOpen && !link.is_draining && !link.is_retired;
}

bool Gateway::can_serve() const {
  bool can_prefill = false, can_decode = false;
  for (const auto& [node, link] : links_) {
    if (!may_serve(link)) continue;
    can_prefill |= link.hello.role != Role::kDecode;
    can_decode |= link.hello.role != Role::kPrefill;
  }
  return can_prefill && can_decode;
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
    if ((may_serve(link) || is_kept_source) && has_credit && !query.not_source.contains(node)) {
      sources.push_back({node != query.keep_source, distance(link.hello.role, Role::kPrefill),
                         load_of(link, link.num_prefills), &node});
    }
    if (may_serve(link) && !query.not_target.contains(node)) {
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
    if (!may_serve(link) || query.not_target.contains(node)) continue;
    const Rank rank{0, distance(link.hello.role, Role::kPrefill), load_of(link, link.num_prefills + link.num_decodes),
                    &node};
    if (!best || rank < *best) best = rank;
  }
  if (!best) return std::nullopt;
  return links_.at(*best->node).hello.from;
}

}  // namespace tandem::role
