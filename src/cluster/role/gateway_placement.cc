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
  if (is_before_decode) {
    work.source = link_of(request.source().id);
    work.prefill_tokens = request.state().prompt.size();
  }
  if (is_before_decode || phase == Phase::kDecoding) work.target = link_of(request.target().id);
  return work;
}

// `by` is 1 or -1, which wraps.
void Gateway::count(const Work& work, uint32_t by) {
  for (NodeLink* link : work.involved) {
    link->num_requests += by;
    if (link->num_requests == 0) link->told_at = 0;  // what it was told of is over, shown by a beat or not
  }
  if (work.source != nullptr) {
    work.source->num_prefills += by;
    work.source->prefill_tokens += by == 1 ? work.prefill_tokens : -work.prefill_tokens;
  }
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
    uint64_t prefill_tokens = 0;
    bool operator==(const Counts&) const = default;
  };
  std::map<const NodeLink*, Counts> counts;
  TANDEM_CHECK(work_.size() <= requests_.size());
  for (const auto& [id, work] : work_) {
    TANDEM_CHECK(requests_.contains(id));
    for (const NodeLink* link : work.involved) ++counts[link].requests;
    if (work.source != nullptr) {
      ++counts[work.source].prefills;
      counts[work.source].prefill_tokens += work.prefill_tokens;
    }
    if (work.target != nullptr) ++counts[work.target].decodes;
  }
  for (const auto& [node, link] : links_) {
    TANDEM_CHECK(
        (counts[&link] == Counts{link.num_prefills, link.num_decodes, link.num_requests, link.prefill_tokens}));
    const auto is_here = [&, &name = node](const auto& r) {
      return r.second->phase() != GatewayRequest::Phase::kDone && r.second->involves(name);
    };
    TANDEM_CHECK(static_cast<size_t>(std::ranges::count_if(requests_, is_here)) == link.num_requests);
  }
}

bool Gateway::may_serve(const NodeLink& link) const {
  return link.state == LinkState::kOpen && !link.is_draining && !link.is_retired;
}

// An older node would leave out what it does not know of the request.
bool Gateway::knows_all_of(const NodeLink& link, const RequestId& request) const {
  if (link.hello.proto >= kProtoExtendedRequests) return true;
  const auto it = requests_.find(request);
  return it == requests_.end() || !is_extended(it->second->state());
}

bool Gateway::can_serve_with(uint32_t least_proto) const {
  bool can_prefill = false, can_decode = false;
  for (const auto& [node, link] : links_) {
    if (!may_serve(link) || link.hello.proto < least_proto) continue;
    can_prefill |= link.hello.role != Role::kDecode;
    can_decode |= link.hello.role != Role::kPrefill;
  }
  return can_prefill && can_decode;
}

// A node that has just come gets a tenth of the work, so that it is not flooded while it is empty.
double Gateway::weight_of(const NodeLink& link) const {
  const auto open_for = static_cast<double>(now_ - link.opened_at);
  const double age = config_.ramp > 0 ? open_for / static_cast<double>(config_.ramp) : 1;
  return std::clamp(0.1 + 0.9 * age, 0.1, 1.0);
}

double Gateway::load_of(const NodeLink& link, uint32_t work) const { return (work + 1) / weight_of(link); }

std::optional<NodeRef> Gateway::open_node(const std::string& node) const {
  const auto it = links_.find(node);
  if (it == links_.end() || it->second.state != LinkState::kOpen) return std::nullopt;
  return it->second.hello.from;
}

bool Gateway::has_open_node(bool is_extended) const {
  return std::any_of(links_.begin(), links_.end(), [is_extended](const auto& link) {
    const bool knows_it = !is_extended || link.second.hello.proto >= kProtoExtendedRequests;
    return link.second.state == LinkState::kOpen && knows_it;
  });
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

void Gateway::show_links_to_router() const {
  for (const auto& [node, link] : links_) {
    if (!link.router_index) continue;  // never had a session
    const Hello& hello = link.hello;
    router::NodeLoad load;
    load.role = hello.role;
    load.is_ready = may_serve(link);
    load.weight = weight_of(link);
    load.credits = link.beat.credits - std::min(link.beat.credits, link.num_prefills);
    load.prefill_tokens_per_s = std::max(config_.prefill_tokens_per_s, 1.0);
    load.queued_prefill_tokens = link.prefill_tokens;
    load.num_prefills = link.num_prefills;
    load.num_decodes = link.num_decodes;
    load.block_size = std::max(hello.fingerprint.block_size, 1u);
    load.private_total_blocks = hello.private_blocks;
    load.private_free_blocks = link.beat.io_seq == 0 ? hello.private_blocks : link.beat.private_free;
    router_->update(*link.router_index, hello.fingerprint, load, link.beat.io_seq);
  }
  router_->end_update();
}

std::optional<Placed> Gateway::placed_at(const std::string& source, const std::string& target,
                                         const PlacementQuery& query) const {
  const NodeLink& s = links_.at(source);
  const NodeLink& t = links_.at(target);
  if (!differing_field(s.hello.fingerprint, t.hello.fingerprint).empty()) return std::nullopt;
  if (!knows_all_of(s, query.request) || !knows_all_of(t, query.request)) return std::nullopt;
  uint64_t num_tokens = query.shape.prompt_tokens;
  for (const uint32_t tokens : query.shape.choice_tokens) num_tokens += tokens;
  const double seconds = static_cast<double>(num_tokens) / config_.prefill_tokens_per_s;
  return Placed{s.hello.from, t.hello.from, static_cast<Nanos>(seconds * 1e9)};
}

// Nothing: the rule below it decides, as where every pair failed lately, or only nodes of another role are left.
std::optional<std::optional<Placed>> Gateway::route(const PlacementQuery& query) const {
  const auto it = requests_.find(query.request);
  if (it == requests_.end()) return std::nullopt;
  show_links_to_router();
  const auto indices = [this](const std::set<std::string>& nodes) {
    std::vector<router::NodeIndex> found;
    for (const std::string& node : nodes) {
      const auto link = links_.find(node);
      if (link != links_.end() && link->second.router_index) found.push_back(*link->second.router_index);
    }
    return found;
  };
  const std::vector<router::NodeIndex> not_prefill = indices(query.not_source), not_decode = indices(query.not_target);
  router::RouteQuery asked;
  asked.prompt_tokens = query.shape.prompt_tokens;
  asked.num_choices = static_cast<uint32_t>(query.shape.choice_tokens.size());
  asked.final_tokens = query.final_tokens;
  asked.not_prefill = not_prefill;
  asked.not_decode = not_decode;
  const RequestState& state = it->second->state();
  const auto chosen = router_->choose(query.request, state.prompt, state.cache_salt, asked);
  if (const auto* pair = std::get_if<LinkRouter::Pair>(&chosen)) {
    if (bad_pairs_.is_bad(pair->prefill, pair->decode, now_)) return std::nullopt;
    const auto placed = placed_at(pair->prefill, pair->decode, query);
    if (!placed) return std::nullopt;
    router_->commit(*pair, query.request);
    return placed;
  }
  // With room or a credit some time it is the queue's turn to wait, not the nodes' to refuse.
  const auto reason = std::get<router::NoChoice>(chosen);
  if (reason == router::NoChoice::kNoDecodeRoom) no_room_for_ = query.request;
  const bool is_full = reason == router::NoChoice::kNoDecodeRoom || reason == router::NoChoice::kNoCredit;
  if (is_full) return std::optional<Placed>();
  return std::nullopt;
}

std::optional<Placed> Gateway::place(const PlacementQuery& query) const {
  if (router_ && query.is_first_attempt && query.keep_source.empty() && query.keep_target.empty()) {
    if (is_queue_held_) return std::nullopt;
    if (const auto routed = route(query)) return *routed;
  }
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
        if (const auto placed = placed_at(*source.node, *target.node, query)) return placed;
      }
    }
  }
  return std::nullopt;
}

std::optional<NodeRef> Gateway::place_holder(const PlacementQuery& query) const {
  std::optional<Rank> best;
  for (const auto& [node, link] : links_) {
    if (!may_serve(link) || query.not_target.contains(node) || !knows_all_of(link, query.request)) continue;
    const Rank rank{0, distance(link.hello.role, Role::kPrefill), load_of(link, link.num_prefills + link.num_decodes),
                    &node};
    if (!best || rank < *best) best = rank;
  }
  if (!best) return std::nullopt;
  return links_.at(*best->node).hello.from;
}

}  // namespace tandem::role
