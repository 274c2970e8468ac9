#include <doctest/doctest.h>

#include "cluster/gateway/client_updates.h"
#include "cluster/gateway/cluster_status.h"
#include "cluster/gateway/handoff_metrics.h"
#include "cluster/gateway/request_state.h"
#include "serve/engine/recording_sink.h"

namespace tandem::gateway {
namespace {

using handoff::kMs;
using handoff::NodeRef;
using registry::NodeState;
using role::LinkState;

constexpr sched::RequestId kId{3};

handoff::TokenEntry entry_of(uint32_t choice, uint32_t index, TokenId token,
                             handoff::Finish finish = handoff::Finish::kNone) {
  handoff::TokenEntry entry;
  entry.choice = choice;
  entry.index = index;
  entry.token = token;
  entry.finish = finish;
  return entry;
}

TEST_CASE("what comes in one round is one update, the end with the last tokens") {
  ClientUpdates clients;
  const auto sink = std::make_shared<engine::RecordingSink>();
  clients.open(kId, sink, 2, false);
  CHECK(clients.publish().empty());
  CHECK(sink->updates().empty());
  clients.add(kId, entry_of(0, 0, 10));
  clients.add(kId, entry_of(1, 0, 20));
  clients.add(kId, entry_of(0, 1, 11));
  clients.set_scheduled(kId, 77);
  CHECK(clients.publish().empty());
  REQUIRE(sink->updates().size() == 1);
  CHECK(sink->updates()[0].deltas.size() == 2);
  CHECK(sink->updates()[0].scheduled_ns == 77);
  CHECK(!sink->is_done());
  clients.add(kId, entry_of(0, 2, 12, handoff::Finish::kStop));
  clients.add(kId, entry_of(1, 1, 21, handoff::Finish::kStopRule));
  clients.end(kId, std::nullopt);
  CHECK(clients.publish() == std::vector{kId});
  CHECK(clients.open_ids().empty());
  REQUIRE(sink->updates().size() == 2);
  CHECK(sink->is_done());
  CHECK(sink->tokens(0) == std::vector<TokenId>{10, 11, 12});
  CHECK(sink->finish(0)->stop_token == 12);
  CHECK(sink->finish(1)->by_stop_rule);
  clients.add(kId, entry_of(0, 3, 13));  // late: nobody listens
  CHECK(clients.publish().empty());
}

TEST_CASE("a cancel ends the choices that are open, an error the request") {
  ClientUpdates clients;
  const auto cancelled = std::make_shared<engine::RecordingSink>();
  const auto failed = std::make_shared<engine::RecordingSink>();
  clients.open(kId, cancelled, 2, false);
  clients.open(sched::RequestId{4}, failed, 1, false);
  clients.add(kId, entry_of(0, 0, 10, handoff::Finish::kLength));
  clients.end(kId, Error{ErrorCode::kCancelled, "by the client"});
  clients.end(sched::RequestId{4}, Error{ErrorCode::kDeadline, "late"});
  CHECK(clients.publish().size() == 2);
  CHECK(!cancelled->error());
  CHECK(cancelled->finish(0)->reason == sched::FinishReason::kLength);
  CHECK(cancelled->finish(1)->reason == sched::FinishReason::kCancelled);
  CHECK(failed->error()->message == "late");
}

TEST_CASE("the pace of prefills: what several tokens take together, begun from what is configured") {
  PrefillPace pace(10000);
  CHECK(pace.seconds_per_token() == doctest::Approx(1e-4));
  pace.begin(0);
  pace.begin(500 * kMs);
  pace.end(50000, 1000 * kMs);
  pace.end(49000, 2000 * kMs);  // 99000 tokens in two seconds, and 1000 in the first 0.1
  CHECK(pace.seconds_per_token() == doctest::Approx(2.1 / 100000));
  pace.begin(9000 * kMs);  // nothing ran in between
  pace.end(50000, 10000 * kMs);
  CHECK(pace.seconds_per_token() == doctest::Approx(2.05 / 100000));
}

TEST_CASE("a node's state: its own word, its session, and how long that has been gone") {
  const handoff::Timing timing;
  registry::NodeRecord record;
  record.incarnation = 5;
  record.state = NodeState::kReady;
  role::NodeLink link;
  const auto state = [&](handoff::Nanos now = 0) { return state_of(record, &link, timing, now); };
  CHECK(state_of(record, nullptr, timing, 0) == "starting");
  CHECK(state() == "starting");
  link.hello.from = NodeRef{"n", 5};
  link.state = LinkState::kOpen;
  CHECK(state() == "ready");
  link.is_draining = true;
  CHECK(state() == "draining");
  link.is_draining = false;
  record.state = NodeState::kDraining;
  CHECK(state() == "draining");
  record.state = NodeState::kReady;
  link.state = LinkState::kClosed;
  link.lost_at = 1000 * kMs;
  CHECK(state(1000 * kMs + timing.lease - 1) == "suspect");
  CHECK(state(1000 * kMs + timing.lease) == "dead");
  record.incarnation = 6;
  CHECK(state(1000 * kMs + timing.lease) == "starting");
  record.state = NodeState::kLeft;
  CHECK(state() == "left");
}

TEST_CASE("the output is cut to the model's length") {
  sched::Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 100;
  request.num_choices = 2;
  const handoff::RequestState state = state_of(request, "m", 10);
  CHECK(state.max_tokens == 7);
  CHECK(state.choices.size() == 2);
}

}  // namespace
}  // namespace tandem::gateway
