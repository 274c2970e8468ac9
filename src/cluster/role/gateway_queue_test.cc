// The gateway's queue: whose turn it is.

#include <doctest/doctest.h>

#include <algorithm>

#include "cluster/role/gateway.h"

namespace tandem::role {
namespace {

using namespace handoff;
using Phase = GatewayRequest::Phase;

// One mixed node that takes one prefill at a time, and never answers.
class OneNode {
 public:
  explicit OneNode(std::map<std::string, double> weights = {}) : gateway_(config_of(std::move(weights))) {
    gateway_.add_node("n");
    tick();
    const auto opened =
        std::ranges::find_if(outs_, [](const GatewayOut& out) { return std::holds_alternative<OpenStream>(out); });
    REQUIRE(opened != outs_.end());
    Hello hello;
    hello.from = {"n", 1};
    hello.credits = 1;
    hello.capacity_blocks = hello.private_blocks = 100;
    gateway_.on_stream_message("n", std::get<OpenStream>(*opened).stream, hello, now_, outs_);
    REQUIRE(gateway_.can_serve());
  }

  uint64_t ask(const std::string& tenant, size_t num_prompt, int32_t priority = 0) {
    RequestState state;
    state.prompt.assign(num_prompt, 1);
    state.choices.resize(1);
    state.max_tokens = 4;
    const RequestId id{0, ++num_asked_};
    REQUIRE(gateway_.submit(id, std::move(state), ++now_, {INT64_MAX, priority, "", tenant}));
    return num_asked_;
  }

  // The one that the node has next; the one it has now ends.
  uint64_t next() {
    if (has_ != 0) gateway_.cancel({0, has_}, ++now_, outs_);
    has_ = 0;
    tick();
    for (const auto& [id, request] : gateway_.requests()) {
      if (request->phase() == Phase::kQueued) continue;
      CHECK(has_ == 0);
      has_ = id.low;
    }
    gateway_.check_invariants();
    return has_;
  }

 private:
  static GatewayConfig config_of(std::map<std::string, double> weights) {
    GatewayConfig config;
    config.self = {"g", 1};
    config.tenant_weights = std::move(weights);
    return config;
  }
  void tick() { gateway_.on_tick(++now_, outs_); }

  Nanos now_ = 1;
  uint64_t num_asked_ = 0, has_ = 0;
  Gateway gateway_;
  GatewayOuts outs_;
};

TEST_CASE("a key's request does not wait behind another key's flood") {
  // The fault: one line by arrival, for all.
  OneNode node;
  std::vector<uint64_t> flood;
  for (int i = 0; i < 20; ++i) flood.push_back(node.ask("flood", 1000));
  CHECK(node.next() == flood[0]);
  CHECK(node.next() == flood[1]);
  const uint64_t quick = node.ask("calm", 10);
  CHECK(node.next() == quick);
  CHECK(node.next() == flood[2]);
  // Short ones cost little, so many of them go for one of the others; the flood goes on all the same.
  std::vector<uint64_t> calm;
  for (int i = 0; i < 10; ++i) calm.push_back(node.ask("calm", 400));
  std::vector<uint64_t> order;
  for (int i = 0; i < 10; ++i) order.push_back(node.next());
  const auto is_calm = [&](uint64_t id) { return std::ranges::find(calm, id) != calm.end(); };
  const auto num_calm = std::ranges::count_if(order, is_calm);
  CHECK(num_calm >= 6);
  CHECK(num_calm <= 8);
}

TEST_CASE("keys have turns by weight, and each key's requests go by priority and arrival") {
  OneNode node({{"gold", 3}, {"plain", 1}});
  for (int i = 0; i < 40; ++i) {
    node.ask("plain", 100);
    node.ask("gold", 100);
  }
  const uint64_t urgent = node.ask("plain", 100, -1);
  int num_gold = 0;
  std::vector<uint64_t> plain;
  for (int i = 0; i < 40; ++i) {
    const uint64_t id = node.next();
    if (id != urgent && id % 2 == 0)
      ++num_gold;
    else
      plain.push_back(id);
  }
  CHECK(num_gold >= 29);
  CHECK(num_gold <= 31);
  REQUIRE(plain.size() > 5);
  CHECK(plain[0] == urgent);
  CHECK(std::is_sorted(plain.begin() + 1, plain.end()));
}

}  // namespace
}  // namespace tandem::role
