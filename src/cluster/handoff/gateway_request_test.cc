#include "cluster/handoff/gateway_request.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace tandem::handoff {
namespace {

const RequestId kRequest{0, 1};

class FakePlacement final : public Placement {
 public:
  std::vector<NodeRef> nodes{{"p1", 1}, {"p2", 1}, {"d1", 1}, {"d2", 1}};
  bool has_credit = true, knows_extended = true, has_room = true;
  Nanos progressed = 0;
  mutable PlacementQuery last;

  std::optional<Placed> place(const PlacementQuery& query) const override {
    last = query;
    if (!has_room || (query.is_first_attempt && !has_credit)) return std::nullopt;
    const auto source = pick(query.keep_source, query.not_source, 'p');
    const auto target = pick(query.keep_target, query.not_target, 'd');
    if (!source || !target) return std::nullopt;
    return Placed{*source, *target, 100 * kMs};
  }
  std::optional<NodeRef> place_holder(const PlacementQuery& query) const override {
    return pick("", query.not_target, 'p');
  }
  std::optional<NodeRef> open_node(const std::string& id) const override {
    for (const NodeRef& node : nodes) {
      if (node.id == id) return node;
    }
    return std::nullopt;
  }
  bool has_open_node(bool is_extended) const override { return !nodes.empty() && (knows_extended || !is_extended); }
  Nanos progressed_at(const std::string&) const override { return progressed; }

 private:
  std::optional<NodeRef> pick(const std::string& wanted, const std::set<std::string>& without, char kind) const {
    if (const auto kept = open_node(wanted); kept && !without.contains(wanted)) return kept;
    for (const char first : {kind, kind == 'p' ? 'd' : 'p'}) {
      for (const NodeRef& node : nodes) {
        if (node.id[0] == first && !without.contains(node.id)) return node;
      }
    }
    return std::nullopt;
  }
};

struct Harness {
  FakePlacement placement;
  Timing timing;
  Nanos now = 0;
  GatewayActions out;
  GatewayRequest request;

  explicit Harness(GatewayRequest::Options options = {}) : request(kRequest, prompt(), options, 0) {}
  static RequestState prompt() {
    RequestState state;
    state.prompt = {1, 2, 3};
    state.max_tokens = 3;
    state.choices.resize(1);
    return state;
  }
  GatewayRequest::Context context() { return {placement, timing, now, out}; }
  void tick() { request.on_tick(context()); }
  void say(const char* node, const SessionMessage& message) { request.on_message(node, message, context()); }
  void token(const char* node, Attempt attempt, uint32_t index, TokenId token, Finish finish = Finish::kNone) {
    request.on_token(node, {kRequest, attempt, 0, index, token, 0, finish}, context());
  }
  void lose(const char* node, bool is_broken = true) {
    std::erase_if(placement.nodes, [&](const NodeRef& n) { return n.id == node; });
    request.on_session_closed(node, is_broken, context());
  }
  void reserve_ok(const char* node) { say(node, ReserveOk{kRequest, request.attempt(), 7, {}, 0}); }
  void decode() {  // p1 to d1, one token out
    tick();
    reserve_ok("d1");
    token("d1", 1, 0, 50);
  }
  template <class T>
  std::vector<std::pair<std::string, T>> sent() const {
    std::vector<std::pair<std::string, T>> found;
    for (const GatewayAction& action : out) {
      const auto* to = std::get_if<ToNode>(&action);
      if (to && std::holds_alternative<T>(to->message)) found.emplace_back(to->node, std::get<T>(to->message));
    }
    return found;
  }
  size_t num_emitted() const {
    return static_cast<size_t>(
        std::count_if(out.begin(), out.end(), [](const auto& a) { return std::holds_alternative<Emit>(a); }));
  }
  const EndRequest* ended() const {
    for (const GatewayAction& action : out) {
      if (const auto* end = std::get_if<EndRequest>(&action)) return end;
    }
    return nullptr;
  }
};
using Phase = GatewayRequest::Phase;

TEST_CASE("the undisturbed way: Reserve, Prefill, tokens, Release") {
  Harness h;
  h.placement.has_credit = false;
  h.tick();
  CHECK(h.request.phase() == Phase::kQueued);  // a first attempt waits for a credit
  h.placement.has_credit = true;
  h.tick();
  REQUIRE(h.sent<Reserve>().size() == 1);
  CHECK(h.sent<Reserve>()[0].first == "d1");
  h.reserve_ok("d2");  // not the target
  CHECK(h.sent<Prefill>().empty());
  h.reserve_ok("d1");
  CHECK(h.sent<Prefill>()[0].first == "p1");
  CHECK(h.sent<Prefill>()[0].second.landing == 7);
  h.token("p1", 1, 0, 50);  // First
  CHECK(h.request.phase() == Phase::kPrefilling);
  h.token("d1", 1, 0, 50);
  CHECK(h.request.phase() == Phase::kDecoding);
  CHECK(h.request.holder().id == "p1");
  h.token("d1", 1, 1, 51);
  h.token("d1", 1, 2, 52, Finish::kLength);
  CHECK(h.num_emitted() == 3);
  REQUIRE(h.ended());
  CHECK(!h.ended()->error);
  CHECK(h.sent<Release>().size() == 2);
}

TEST_CASE("tokens of an old attempt or of another node never reach the client, but are compared") {
  Harness h;
  h.decode();
  h.lose("d1");  // the holder takes over
  CHECK(h.request.attempt() == 2);
  CHECK(h.request.target().id == "p1");
  CHECK(h.request.source().id == "p1");
  h.token("d1", 1, 1, 51);
  h.token("p2", 2, 1, 51);
  CHECK(h.num_emitted() == 1);
  h.token("d1", 1, 0, 49);
  CHECK(h.request.num_mismatches() == 1);
  h.reserve_ok("p1");
  CHECK(h.sent<Prefill>()[1].second.state.choices[0].tokens == std::vector<TokenId>{50});
  h.token("p1", 2, 1, 51);
  CHECK(h.num_emitted() == 2);
  h.token("p1", 2, 3, 51);  // an index that cannot come
  CHECK(h.request.attempt() == 3);
}

TEST_CASE("loss of the source keeps the target, which may be running already") {
  Harness h;
  h.tick();
  h.reserve_ok("d1");
  h.lose("p1");
  CHECK(h.request.attempt() == 2);
  CHECK(h.request.target().id == "d1");
  CHECK(h.request.source().id == "p2");
  h.say("d1", Running{kRequest, 2});
  CHECK(h.request.phase() == Phase::kDecoding);
  CHECK(!h.request.is_protected());
  h.token("d1", 2, 0, 50);
  CHECK(h.num_emitted() == 1);
  h.tick();  // its old holder is gone: another is named, to both sides
  REQUIRE(h.sent<Hold>().size() == 1);
  CHECK(h.sent<SetMirror>()[0].first == "d1");
  CHECK(h.sent<SetMirror>()[0].second.holder.id == h.sent<Hold>()[0].first);
  h.request.on_mirror_progress("d1", {kRequest, 2, h.sent<SetMirror>()[0].second.holder, 0}, h.context());
  CHECK(h.request.is_protected());
}

TEST_CASE("loss of the holder while decoding costs protection and no attempt") {
  Harness h;
  h.decode();
  h.lose("p1");
  CHECK(h.request.attempt() == 1);
  CHECK(!h.request.is_protected());
  h.tick();
  CHECK(h.sent<Hold>()[0].first == "p2");
}

TEST_CASE("a failed transfer marks the pair and starts again") {
  Harness h;
  h.tick();
  h.reserve_ok("d1");
  h.say("p1", XferFailed{kRequest, 1, {"d1", 1}});
  CHECK(std::any_of(h.out.begin(), h.out.end(), [](const auto& a) { return std::holds_alternative<PairFailed>(a); }));
  CHECK(h.request.attempt() == 2);
  h.say("p1", XferFailed{kRequest, 1, {"d1", 1}});  // of the old attempt
  CHECK(h.request.attempt() == 2);
}

TEST_CASE("a refused Reserve goes to another target within the attempt; with none left the request is queued again") {
  Harness h;
  h.tick();
  for (const char* expected : {"d2", "p1", "p2"}) {
    h.say(h.request.target().id.c_str(), ReserveNo{kRequest, 1, ReserveRefusal::kNoRoom});
    CHECK(h.request.target().id == expected);
    CHECK(h.request.attempt() == 1);
  }
  h.say("p2", ReserveNo{kRequest, 1, ReserveRefusal::kNoRoom});
  CHECK(h.request.phase() == Phase::kQueued);
  h.tick();
  CHECK(h.request.phase() == Phase::kQueued);  // not at once
  h.now += 20 * kMs;
  h.tick();
  CHECK(h.request.phase() == Phase::kReserving);
  CHECK(h.request.attempt() == 2);
}

TEST_CASE("a request that nobody has room for stays in the queue, however often it is refused") {
  Harness h;
  for (int i = 0; i < 200; ++i) {
    h.now += 200 * kMs;
    h.tick();
    REQUIRE(h.request.phase() == Phase::kReserving);
    for (int node = 0; node < 4 && h.request.phase() == Phase::kReserving; ++node) {
      h.say(h.request.target().id.c_str(), ReserveNo{kRequest, h.request.attempt(), ReserveRefusal::kNoRoom});
    }
    REQUIRE(h.request.phase() == Phase::kQueued);
    CHECK(!h.ended());
  }
}

TEST_CASE("a request that fits nowhere ends; one that runs already waits for a better day") {
  Harness h;
  SUBCASE("before its first token") { h.tick(); }
  SUBCASE("after it") {
    h.decode();
    h.request.leave_target(h.context());
  }
  for (int i = 0; i < 4 && h.request.phase() == Phase::kReserving; ++i) {
    h.say(h.request.target().id.c_str(), ReserveNo{kRequest, h.request.attempt(), ReserveRefusal::kNeverFits});
  }
  if (h.request.judge().has_any()) {
    CHECK(h.request.phase() == Phase::kWaiting);
  } else {
    REQUIRE(h.ended());
    CHECK(h.ended()->error == ErrorCode::kExhausted);
  }
}

TEST_CASE("deadlines: Reserving, Prefilling, Waiting, the client's") {
  Harness h({true, true, 0, 100000 * kMs});
  h.tick();
  h.now = h.timing.reserve;
  h.tick();
  CHECK(h.sent<Release>()[0].first == "d1");
  CHECK(h.request.attempt() == 2);
  CHECK(h.request.target().id == "d2");
  h.reserve_ok("d2");
  h.placement.progressed = h.now + 100 * kMs;  // the source steps
  h.now += 599 * kMs;
  h.tick();
  CHECK(h.request.attempt() == 2);
  h.now += 2 * kMs;
  h.placement.progressed = 0;
  h.tick();
  CHECK(h.request.attempt() == 3);
  CHECK(h.request.source().id == "p2");
  CHECK(h.request.target().id == "d2");
  for (const char* node : {"p1", "p2", "d1", "d2"}) h.lose(node);
  CHECK(h.request.phase() == Phase::kWaiting);
  h.now += h.timing.recovery_deadline - 1;
  h.tick();
  CHECK(!h.ended());
  h.now += 1;
  h.tick();
  CHECK(h.ended()->error == ErrorCode::kUnavailable);
}

TEST_CASE("a request's own failure ends it, a node's failure does not") {
  Harness h;
  h.tick();
  h.reserve_ok("d1");
  SUBCASE("its own") {
    h.say("p1", Failed{kRequest, 1, ErrorCode::kInvalidArgument, "too long"});
    CHECK(h.ended()->error == ErrorCode::kInvalidArgument);
  }
  SUBCASE("the node's") {
    h.say("p1", Failed{kRequest, 1, ErrorCode::kExhausted, "no blocks"});
    CHECK(!h.ended());
    CHECK(h.request.attempt() == 2);
  }
  SUBCASE("a cancel reaches all that may hold something") {
    h.request.cancel(h.context(), ErrorCode::kCancelled, "client left");
    CHECK(h.sent<Release>().size() == 2);
    h.token("d1", 1, 0, 50);
    CHECK(h.num_emitted() == 0);
  }
}

TEST_CASE("attempts after the first token are limited") {
  Harness h;
  h.decode();
  for (uint32_t i = 0; i < h.timing.max_attempts_after_first; ++i) {
    CHECK(!h.ended());
    h.request.leave_target(h.context());
    h.reserve_ok(h.request.target().id.c_str());
    h.token(h.request.target().id.c_str(), h.request.attempt(), 0, 50);
  }
  CHECK(!h.ended());
  h.request.leave_target(h.context());
  REQUIRE(h.ended());
  CHECK(h.ended()->error == ErrorCode::kInternal);
}

TEST_CASE("a move: mirror there, then attempt + 1 with source = target") {
  Harness h;
  h.decode();
  h.request.move_to({"d2", 1}, h.context());
  CHECK(h.sent<Hold>()[0].first == "d2");
  h.request.on_mirror_progress("d1", {kRequest, 1, {"p1", 1}, 0}, h.context());  // the old mirror's report
  h.request.on_mirror_progress("d1", {kRequest, 1, {"d2", 1}, 30}, h.context());
  CHECK(h.request.attempt() == 1);
  CHECK(h.request.holder().id == "p1");  // still the better place
  h.out.clear();
  h.request.on_mirror_progress("d1", {kRequest, 1, {"d2", 1}, 2}, h.context());
  CHECK(h.request.attempt() == 2);
  CHECK(h.request.source().id == "d2");
  CHECK(h.request.target().id == "d2");
  std::vector<std::string> released;
  for (const auto& [node, message] : h.sent<Release>()) released.push_back(node);
  CHECK(released == std::vector<std::string>{"d1", "p1"});
}

TEST_CASE("a request that two processes died of is not given to a third") {
  Harness h;
  h.placement.nodes = {{"p1", 1}, {"p2", 1}, {"p3", 1}, {"d1", 1}};
  h.decode();
  const auto tick = [&](Nanos after) {
    h.now += after;
    h.request.on_tick(h.context());
  };
  SUBCASE("decode, then the prefill that goes on for it: it waits until both are known to be dead") {
    h.lose("d1");
    CHECK(h.request.phase() == Phase::kReserving);
    h.reserve_ok("p1");
    CHECK(h.request.phase() == Phase::kPrefilling);
    h.request.on_process_died({"d1", 1});
    h.lose("p1");
    tick(100 * kMs);
    CHECK(h.request.phase() == Phase::kWaiting);
    h.request.on_process_died({"p1", 2});  // another one
    tick(100 * kMs);
    REQUIRE(!h.ended());
    h.request.on_process_died({"p1", 1});
    tick(100 * kMs);
    REQUIRE(h.ended());
    CHECK(h.ended()->error == ErrorCode::kInternal);
  }
  SUBCASE("it goes on as soon as one of them is known to live") {
    h.lose("d1");
    h.reserve_ok("p1");
    h.request.on_process_died({"d1", 1});
    h.lose("p1");
    h.request.on_process_lives({"p1", 1});
    tick(100 * kMs);
    CHECK(h.request.phase() == Phase::kReserving);
    h.reserve_ok(h.request.target().id.c_str());
    h.lose(h.request.source().id.c_str());  // and that one may be the second
    CHECK(h.request.phase() == Phase::kWaiting);
  }
  SUBCASE("or when nothing is heard of them") {
    h.lose("d1");
    h.reserve_ok("p1");
    h.lose("p1");
    tick(Timing().death_known - 1);
    CHECK(h.request.phase() == Phase::kWaiting);
    tick(1);
    CHECK(h.request.phase() == Phase::kReserving);
    h.request.on_process_died({"d1", 1});
    h.request.on_process_died({"p1", 1});
    tick(100 * kMs);
    CHECK(!h.ended());  // the one that has it now may well live
    h.reserve_ok(h.request.target().id.c_str());
    h.lose(h.request.source().id.c_str());
    tick(0);
    CHECK(h.ended());
  }
  SUBCASE("a node that only holds for it, or is asked for room, has no job of it") {
    h.lose("p1");
    CHECK(h.request.phase() == Phase::kDecoding);
    h.lose("d1");
    CHECK(h.request.phase() == Phase::kReserving);
    h.lose(h.request.target().id.c_str());
    CHECK(h.request.phase() == Phase::kReserving);
  }
  SUBCASE("suspicion is not death") {
    h.lose("d1", false);
    h.reserve_ok("p1");
    h.lose("p1", false);
    CHECK(h.request.phase() == Phase::kReserving);
  }
}

TEST_CASE("a request of a kind that no node knows yet does not wait for ever; what any node knows does") {
  // The fault: in a rolling upgrade they filled the queue until it refused everybody.
  Harness h;
  h.placement.has_room = false;
  RequestState state = Harness::prompt();
  state.prompt_logprobs = 0;
  GatewayRequest extended(kRequest, state, GatewayRequest::Options(), 0);
  const auto tick = [&](Nanos by) {
    h.now += by;
    h.tick();
    extended.on_tick(h.context());
  };
  SUBCASE("in the queue") {
    h.placement.knows_extended = false;
    tick(h.timing.recovery_deadline - 1);
    h.placement.knows_extended = true;  // one was there, and had no room
    tick(1);
    tick(10 * h.timing.recovery_deadline);
    CHECK(extended.phase() == Phase::kQueued);
    h.placement.knows_extended = false;
    tick(h.timing.recovery_deadline - 1);
    CHECK(extended.phase() == Phase::kQueued);
    tick(1);
    CHECK(h.request.phase() == Phase::kQueued);
  }
  SUBCASE("its nodes lost, and older ones left") {
    h.placement.has_room = true;
    tick(0);
    h.placement.has_room = false;
    std::erase_if(h.placement.nodes, [](const NodeRef& n) { return n.id == "d1"; });
    extended.on_session_closed("d1", false, h.context());
    CHECK(extended.phase() == Phase::kWaiting);
    tick(10 * h.timing.recovery_deadline);
    CHECK(extended.phase() == Phase::kWaiting);
    h.placement.knows_extended = false;
    tick(h.timing.recovery_deadline);
  }
  CHECK(extended.phase() == Phase::kDone);
  REQUIRE(h.ended());
  CHECK(h.ended()->error == ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace tandem::handoff
