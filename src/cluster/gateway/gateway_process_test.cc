#include "cluster/gateway/gateway_process.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "cluster/gateway/fake_node_for_test.h"
#include "serve/engine/recording_sink.h"
#include "testing/comes_true.h"

namespace tandem::gateway {
namespace {

using engine::RecordingSink;
using handoff::Role;
using sched::FinishReason;
using testing::comes_true;

class Rig {
 public:
  explicit Rig(const std::function<void(GatewayProcessConfig&)>& change = [](GatewayProcessConfig&) {}) {
    GatewayProcessConfig config;
    config.limits.max_model_len = 1000;
    config.limits.vocab_size = 1000;
    config.model_name = "fake";
    config.registry_poll_s = 0.005;
    config.policy.ramp = 0;
    // Nothing here may depend on how fast this machine is: only what breaks is lost.
    handoff::Timing& timing = config.policy.timing;
    timing.reserve = timing.prefill_slack = timing.open_timeout = timing.recovery_deadline = 600'000 * handoff::kMs;
    timing.suspect_min = timing.suspect_max = timing.suspect_idle = timing.stuck_min = 600'000 * handoff::kMs;
    timing.lease = timing.reopen = 20 * handoff::kMs;
    config.spans = &spans;
    change(config);
    auto started = GatewayProcess::start(config, registry, clock, metrics);
    REQUIRE(static_cast<bool>(started));
    gateway = std::move(started).value();
  }
  ~Rig() { gateway->stop(); }

  FakeNode& add(const std::string& id, Role role, uint64_t incarnation = 1, uint32_t credits = 4,
                uint32_t proto = handoff::kProtoExtendedRequests) {
    nodes.push_back(std::make_unique<FakeNode>(id, role, registry, peers, incarnation, credits, proto));
    return *nodes.back();
  }
  std::string state_of(const std::string& id) { return text_of(id, "state"); }
  std::string text_of(const std::string& id, const char* key) {
    const auto status = JsonValue::parse(gateway->status_json());
    for (const JsonValue& node : *status.value().find("nodes")->if_array()) {
      if (*node.find("id")->if_string() == id) return *node.find(key)->if_string();
    }
    return "none";
  }
  void wait_ready(const std::vector<std::string>& ids) {
    for (const std::string& id : ids) REQUIRE(comes_true([&] { return state_of(id) == "ready"; }));
  }
  std::shared_ptr<RecordingSink> ask(sched::Request request) {
    auto sink = std::make_shared<RecordingSink>();
    auto id = gateway->submit(std::move(request), sink);
    REQUIRE_MESSAGE(id, (id ? "" : id.error().message));
    last = *id;
    return sink;
  }
  Error refusal(sched::Request request) {
    auto id = gateway->submit(std::move(request), std::make_shared<RecordingSink>());
    REQUIRE(!id);
    return id.error();
  }

  registry::MemoryRegistry registry;
  SystemClock clock;
  MetricRegistry metrics;
  trace::SpanRing spans{1000};
  FakePeers peers;
  std::vector<std::unique_ptr<FakeNode>> nodes;
  std::unique_ptr<GatewayProcess> gateway;
  sched::RequestId last{};
};

sched::Request request_of(uint32_t max_tokens, uint64_t seed = 7) {
  sched::Request request;
  request.prompt = {11, 12, 13};
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  return request;
}

// What a fake node says to it.
std::vector<TokenId> expected(const sched::Request& request, uint32_t choice, uint32_t count) {
  handoff::RequestState state;
  state.prompt = request.prompt;
  state.sampling = request.sampling;
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(fake_token(state, choice, i));
  return tokens;
}

void wait_done(const RecordingSink& sink) {
  REQUIRE(comes_true([&] { return sink.is_done(); }));
}

uint32_t count_tokens(const std::shared_ptr<RecordingSink>& sink) {
  uint32_t count = 0;
  for (const sched::Update& update : sink->updates()) {
    for (const sched::ChoiceDelta& delta : update.deltas) count += static_cast<uint32_t>(delta.tokens.size());
  }
  return count;
}

bool has_metric(const Rig& rig, const std::string& line) {
  return rig.metrics.exposition().find(line) != std::string::npos;
}

bool has_generated(const Rig& rig, uint32_t num_tokens) {
  const std::string generated = "vllm:generation_tokens_total{model_name=\"fake\",engine=\"0\"} ";
  return has_metric(rig, generated + std::to_string(num_tokens));
}

// A request whose decode stands still at d0, and a second decode node.
struct HeldDecode {
  explicit HeldDecode(uint32_t num_choices = 1) {
    rig.add("p0", Role::kPrefill);
    first = &rig.add("d0", Role::kDecode);
    rig.wait_ready({"p0", "d0"});
    first->hold_at(4);
    request.num_choices = num_choices;
    sink = rig.ask(request);
    REQUIRE(comes_true([&] { return has_generated(rig, 4 * num_choices); }));
    second = &rig.add("d1", Role::kDecode);
    rig.wait_ready({"d1"});
  }
  void wait_complete() {
    wait_done(*sink);
    CHECK(!sink->error());
    for (uint32_t c = 0; c < request.num_choices; ++c) CHECK(sink->tokens(c) == expected(request, c, 25));
  }

  Rig rig;
  sched::Request request = request_of(25);
  std::shared_ptr<RecordingSink> sink;
  FakeNode *first = nullptr, *second = nullptr;
};

TEST_CASE("a request goes through a pair of nodes; its tokens come once, in order, and then its end") {
  Rig rig;
  FakeNode& source = rig.add("p0", Role::kPrefill);
  FakeNode& target = rig.add("d0", Role::kDecode);
  rig.wait_ready({"p0", "d0"});
  sched::Request request = request_of(20);
  request.min_tokens = 3;
  request.ignore_eos = true;
  request.cache_salt = "salt";
  request.priority = -5;
  request.stop_token_ids = {5};
  request.stop_strings = {"never", std::string("\xff", 1)};
  request.shows_special = true;
  request.grammar = sched::Grammar{sched::GrammarKind::kLark, "start: /a+/"};
  request.sampling.temperature = 0.5f;
  request.sampling.presence_penalty = 0.25f;
  request.sampling.logit_bias = {{3, 1.5f}};
  request.deadline_ns = rig.clock.now_ns() + int64_t{3600} * 1'000'000'000;
  const auto sink = rig.ask(request);
  wait_done(*sink);
  CHECK(!sink->error());
  CHECK(sink->tokens() == expected(request, 0, 20));
  CHECK(sink->finish()->reason == FinishReason::kLength);
  CHECK(sink->updates().back().scheduled_ns > 0);
  CHECK(sink->updates().front().deltas[0].logprobs.empty());
  // MET-06. The fault: all of the prompt but a token, whose KV came from the other node, counts as cached.
  for (const sched::Update& update : sink->updates()) CHECK(update.num_cached_tokens == kFakeCached);

  REQUIRE(source.prefills().size() == 1);
  CHECK(target.prefills().empty());
  const handoff::Prefill prefill = source.prefills()[0];
  CHECK(prefill.target.id == "d0");
  CHECK(static_cast<int32_t>(prefill.priority) == -5);
  CHECK(prefill.deadline_left_ms <= 3600 * 1000);
  CHECK(prefill.deadline_left_ms > 0);
  const handoff::RequestState& state = prefill.state;
  CHECK(state.model == "fake");
  CHECK(state.prompt == request.prompt);
  CHECK(state.min_tokens == 3);
  CHECK(state.ignore_eos);
  CHECK(state.cache_salt == "salt");
  CHECK(state.stop_token_ids == request.stop_token_ids);
  CHECK(state.stop_strings == request.stop_strings);
  CHECK(state.shows_special);
  CHECK(state.grammar_kind == handoff::GrammarKind::kLark);
  CHECK(state.grammar_source == "start: /a+/");
  CHECK(state.sampling.seed == 7);
  CHECK(state.sampling.temperature == 0.5f);
  CHECK(state.sampling.presence_penalty == 0.25f);
  CHECK(state.sampling.logit_bias == request.sampling.logit_bias);
  CHECK(rig.gateway->wait_idle(600));
  for (const char* name : {"queue", "reserve", "prefill_queue", "prefill", "first_token"}) {
    CHECK(comes_true([&] { return has_metric(rig, "tandem_handoff_" + std::string(name) + "_seconds_count 1"); }));
  }
  CHECK(has_metric(rig, "tandem_handoff_prefill_queue_seconds_sum 0.004"));  // as the node said
  CHECK(comes_true([&] { return has_metric(rig, "tandem_gateway_free_credits 8"); }));
  CHECK(has_metric(rig, "tandem_gateway_bad_pairs 0"));
  CHECK(has_metric(rig, "tandem_gateway_unprotected_requests 0"));
  CHECK(has_metric(rig, "tandem_token_mismatch_total 0"));
}

// The fault: the request went to the node that does not know what a grammar is, and was answered without it.
TEST_CASE("API-21 in a cluster: a request with a grammar goes to no node that is older than grammars") {
  Rig rig;
  rig.add("a0", Role::kMixed, 1, 4, 1);
  rig.wait_ready({"a0"});
  sched::Request scoring = request_of(5);
  scoring.prompt_logprobs = 1;
  CHECK(rig.refusal(scoring).code == ErrorCode::kUnavailable);  // the fault: it waited, until the queue was full
  rig.add("m1", Role::kMixed);
  rig.wait_ready({"m1"});
  for (int i = 0; i < 6; ++i) {
    sched::Request request = request_of(5, static_cast<uint64_t>(i));
    request.grammar = sched::Grammar{sched::GrammarKind::kRegex, "a+"};
    const auto sink = rig.ask(request);
    wait_done(*sink);
    CHECK(!sink->error());
    wait_done(*rig.ask(request_of(5, 100 + static_cast<uint64_t>(i))));  // the old one takes part in others
  }
  const auto prefills = rig.nodes[0]->prefills();
  CHECK(
      std::ranges::all_of(prefills, [](const auto& p) { return p.state.grammar_kind == handoff::GrammarKind::kNone; }));
  CHECK(!prefills.empty());
  const auto of_new = rig.nodes[1]->prefills();
  for (const auto& p : of_new) {
    if (p.state.grammar_kind != handoff::GrammarKind::kNone) CHECK(p.target.id == "m1");
  }
}

TEST_CASE("one timeline of a request, here and at its nodes, in the client's trace, which goes to the nodes too") {
  Rig rig;
  FakeNode& source = rig.add("p0", Role::kPrefill);
  rig.add("d0", Role::kDecode);
  rig.wait_ready({"p0", "d0"});
  sched::Request request = request_of(5);
  request.trace = child_of(*parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
  wait_done(*rig.ask(request));
  CHECK(source.prefills()[0].traceparent == traceparent_of(request.trace));
  const auto find = [&](const std::string& process, const std::string& name) {
    for (const trace::Span& span : rig.spans.spans()) {
      if (span.process == process && span.name == name) return std::optional(span);
    }
    return std::optional<trace::Span>();
  };
  REQUIRE(comes_true([&] { return find("p0", "prefill").has_value(); }));
  const auto whole = find("gateway", "request"), prefill = find("p0", "prefill"), queue = find("p0", "prefill queue");
  REQUIRE((whole && queue && find("gateway", "queue") && find("gateway", "reserve")));
  CHECK(whole->context == request.trace);
  CHECK(whole->attributes.back() == std::pair<std::string, std::string>("outcome", "complete"));
  for (const trace::Span& span : rig.spans.spans()) {
    CHECK(trace_id_hex(span.context) == trace_id_hex(request.trace));
    CHECK(span.lane == whole->lane);
    if (span.name != "request") CHECK(span.context.parent == request.trace.span);
  }
  CHECK(prefill->duration_ns == 2'000'000);
  CHECK(queue->duration_ns == 4'000'000);
  CHECK(queue->begin_unix_ns + queue->duration_ns == prefill->begin_unix_ns);
}

TEST_CASE("a token that comes again as another one is counted") {
  Rig rig;
  rig.add("p0", Role::kPrefill);
  FakeNode& target = rig.add("d0", Role::kDecode);
  rig.wait_ready({"p0", "d0"});
  wait_done(*rig.ask(request_of(5)));
  CHECK(has_metric(rig, "tandem_token_mismatch_total 0"));
  target.lie();
  // The source's first token may come after the target's: then it is the one that differs.
  wait_done(*rig.ask(request_of(5, 8)));
  CHECK(comes_true([&] { return has_metric(rig, "tandem_token_mismatch_total 1"); }));
}

TEST_CASE("a request longer than the model's length ends there") {
  Rig rig([](GatewayProcessConfig& config) { config.limits.max_model_len = 8; });
  rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  const auto sink = rig.ask(request_of(100));
  wait_done(*sink);
  CHECK(sink->tokens().size() == 5);
  CHECK(sink->finish()->reason == FinishReason::kLength);
}

TEST_CASE("choices and log-probabilities come as in one process") {
  Rig rig;
  rig.add("p0", Role::kPrefill);
  rig.add("d0", Role::kDecode);
  rig.wait_ready({"p0", "d0"});
  sched::Request request = request_of(6);
  request.num_choices = 2;
  request.sampling.num_logprobs = 3;
  const auto sink = rig.ask(request);
  wait_done(*sink);
  CHECK(sink->tokens(0) == expected(request, 0, 6));
  CHECK(sink->tokens(1) == expected(request, 1, 6));
  CHECK(sink->finish(0).has_value());
  CHECK(sink->finish(1).has_value());
  uint32_t next[2] = {0, 0};
  for (const sched::Update& update : sink->updates()) {
    for (const sched::ChoiceDelta& delta : update.deltas) {
      REQUIRE(delta.logprobs.size() == delta.tokens.size());
      for (size_t i = 0; i < delta.tokens.size(); ++i) {
        const sched::TokenLogprob& logprob = delta.logprobs[i];
        const uint32_t index = next[delta.choice]++;
        CHECK(logprob.token == delta.tokens[i]);
        CHECK(logprob.rank == index + 1);
        CHECK(logprob.logprob == -0.25f * static_cast<float>(index + 1));
        CHECK(logprob.top.size() == 3);
      }
    }
  }
}

TEST_CASE("how a choice ended: by a stop token, by a stop string") {
  Rig rig;
  rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  sched::Request request = request_of(50);
  const std::vector<TokenId> all = expected(request, 0, 50);
  sched::Request by_token = request;
  by_token.stop_token_ids = {all[4]};
  const auto one = rig.ask(by_token);
  wait_done(*one);
  CHECK(one->tokens().size() == 5);
  CHECK(one->finish()->reason == FinishReason::kStop);
  CHECK(one->finish()->stop_token == all[4]);
  CHECK(!one->finish()->by_stop_rule);

  sched::Request by_text = request;
  by_text.stop_strings = {fake_text(all[7])};
  const auto two = rig.ask(by_text);
  wait_done(*two);
  CHECK(two->tokens().size() == 8);
  CHECK(two->finish()->reason == FinishReason::kStop);
  CHECK(!two->finish()->stop_token);
  CHECK(two->finish()->by_stop_rule);
}

TEST_CASE("a request under which two processes die ends with an error, and the third serves the next") {
  Rig rig([](GatewayProcessConfig& config) { config.policy.timing.death_known = 600'000 * handoff::kMs; });
  for (const char* id : {"m0", "m1", "m2"}) rig.add(id, Role::kMixed);
  rig.wait_ready({"m0", "m1", "m2"});
  for (const auto& node : rig.nodes) node->hold_at(0);
  const auto sink = rig.ask(request_of(25));
  std::vector<FakeNode*> alive;
  for (const auto& node : rig.nodes) alive.push_back(node.get());
  for (uint32_t death = 1; death <= 2; ++death) {
    FakeNode* at = nullptr;
    REQUIRE(comes_true([&] {
      for (FakeNode* node : alive) at = node->num_decoding() > 0 ? node : at;
      return at != nullptr;
    }));
    at->hold_at(death);  // what has not begun is no decode to the gateway
    REQUIRE(comes_true([&] { return has_generated(rig, death); }));
    at->kill();
    std::erase(alive, at);
  }
  wait_done(*sink);
  REQUIRE(sink->error());
  CHECK(sink->error()->code == ErrorCode::kInternal);
  CHECK(sink->error()->message.find("died, one after the other") != std::string::npos);
  alive[0]->hold_at(100);
  const sched::Request next = request_of(25);
  const auto other = rig.ask(next);
  wait_done(*other);
  CHECK(other->tokens() == expected(next, 0, 25));
}

TEST_CASE("a node that is lost in the middle costs no token: another goes on") {
  HeldDecode held(2);
  Rig& rig = held.rig;
  held.first->kill();
  held.wait_complete();
  CHECK(count_tokens(held.sink) == 50);
  CHECK(has_metric(rig, "tandem_token_mismatch_total 0"));
  CHECK(has_metric(rig, "tandem_handoff_failover_gap_seconds_count{cause=\"closed\"} 1"));
  for (const char* part : {"detect", "control", "wait", "tail"}) {
    const std::string labels = "{cause=\"closed\",part=\"" + std::string(part) + "\"} 1";
    CHECK_MESSAGE(comes_true([&] { return has_metric(rig, "tandem_handoff_failover_part_seconds_count" + labels); }),
                  labels);
  }
  CHECK(has_metric(rig, "tandem_handoff_attempts_total{cause=\"closed\"} 1"));
  REQUIRE(comes_true([&] { return rig.state_of("d0") == "dead"; }));
}

TEST_CASE("PDD-12: a node that comes back as another process serves again") {
  Rig rig;
  FakeNode& first = rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  first.kill();
  REQUIRE(comes_true([&] { return rig.state_of("m0") != "ready"; }));
  rig.add("m0", Role::kMixed, 2);
  rig.wait_ready({"m0"});
  const auto sink = rig.ask(request_of(5));
  wait_done(*sink);
  CHECK(sink->tokens().size() == 5);
}

TEST_CASE("PDD-16: a node that drains gets no new work and its decodes move, with every token") {
  HeldDecode held;
  Rig& rig = held.rig;
  CHECK(rig.gateway->drain("nobody").error().code == ErrorCode::kNotFound);
  REQUIRE(static_cast<bool>(rig.gateway->drain("d0")));
  held.wait_complete();
  CHECK(held.second->prefills().size() == 1);  // it holds the KV, so it is source and target
  CHECK(rig.state_of("d0") == "draining");
  CHECK(rig.registry.poll(0)->value().nodes.at("d0").state == registry::NodeState::kDraining);
  REQUIRE(comes_true([&] { return held.first->num_decoding() == 0; }));
  wait_done(*rig.ask(request_of(5)));
  CHECK(held.first->num_decoding() == 0);
  CHECK(has_metric(rig, "tandem_handoff_attempts_total{cause=\"planned\"} 1"));
}

TEST_CASE("PDD-16: a role is changed by one transaction, and the decodes leave a node that only prefills then") {
  HeldDecode held;
  Rig& rig = held.rig;
  CHECK(rig.gateway->set_role("p0", Role::kDecode).error().code == ErrorCode::kInvalidArgument);  // the last
  CHECK(rig.gateway->set_role("nobody", Role::kPrefill).error().code == ErrorCode::kNotFound);
  const auto epoch = rig.gateway->set_role("d0", Role::kPrefill);
  REQUIRE(static_cast<bool>(epoch));
  held.wait_complete();
  CHECK(rig.text_of("d0", "role") == "prefill");
}

TEST_CASE("the status names every node, its numbers, and this gateway") {
  Rig rig;
  rig.add("p0", Role::kPrefill, 9);
  rig.wait_ready({"p0"});
  const registry::NodeRecord unmet{"x0", 5, Role::kDecode, 0, registry::NodeState::kStarting, "127.0.0.1:1", ""};
  REQUIRE(static_cast<bool>(rig.registry.join(unmet)));
  REQUIRE(comes_true([&] { return rig.state_of("x0") == "starting"; }));
  REQUIRE(comes_true([&] { return rig.gateway->status_json().find("\"shared_free\":30") != std::string::npos; }));
  const std::string text = rig.gateway->status_json();
  CHECK(text.find(R"({"id":"p0","role":"prefill","state":"ready","pid":4009,"incarnation":9,"role_epoch":1,)"
                  R"("config_revision":0,"running":0,"waiting":0,"kv":{"private_total":60,"private_free":50,)"
                  R"("shared_total":40,"shared_free":30}})") != std::string::npos);
  CHECK(text.find(R"("kv":{"private_total":null,)") != std::string::npos);
  CHECK(rig.text_of("gateway", "role") == "gateway");
  CHECK(rig.text_of("gateway", "state") == "ready");
  uint64_t view = 0;
  CHECK(JsonValue::parse(text).value().find("view")->as_uint64(view));
  CHECK(view == rig.registry.poll(0)->value().revision);
  rig.gateway->begin_drain();
  REQUIRE(comes_true([&] { return rig.text_of("gateway", "state") == "draining"; }));
}

// The faults: what a request asks for is not looked at; a prompt may be longer than the model takes.
TEST_CASE("OVL-03, OVL-06, PDD-08: what can never run is refused, and why; no node is blamed for it") {
  Rig rig;
  rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  const auto complaint = [&](const std::function<void(sched::Request&)>& change) {
    sched::Request request = request_of(10);
    change(request);
    const Error error = rig.refusal(std::move(request));
    CHECK(error.code == ErrorCode::kInvalidArgument);
    return error.message;
  };
  CHECK(complaint([](sched::Request& r) { r.prompt_logprobs = 65; }) == "logprobs is 65, at most 64 is allowed");
  CHECK(complaint([](sched::Request& r) { r.prompt.push_back(1000); }) ==
        "token id 1000 is outside the vocabulary of 1000");
  CHECK(complaint([](sched::Request& r) { r.num_choices = 129; }) == "n is 129, at most 128 is allowed");
  CHECK(complaint([](sched::Request& r) { r.sampling.num_logprobs = 65; }) == "logprobs is 65, at most 64 is allowed");
  CHECK(complaint([](sched::Request& r) { r.prompt.clear(); }) == "the prompt has no tokens");
  CHECK(complaint([](sched::Request& r) { r.prompt.assign(1000, 1); }) ==
        "the prompt has 1000 tokens, the model takes at most 1000 of prompt and output");
  CHECK(complaint([](sched::Request& r) { r.make_stop_rule = [] { return nullptr; }; }).find("stop rule") !=
        std::string::npos);
  CHECK(complaint([](sched::Request& r) {
          r.make_token_mask = [] { return nullptr; };
        }).find("mask without its grammar") != std::string::npos);
  CHECK(has_metric(rig, "vllm:admission_rejections_total{model_name=\"fake\",engine=\"0\"} 8"));
  CHECK(rig.text_of("m0", "state") == "ready");
  const auto sink = rig.ask(request_of(5));
  wait_done(*sink);
  CHECK(!sink->error());
}

TEST_CASE("what cannot run now is refused: no nodes of a role, a full queue, a deadline, the end") {
  Rig rig([](GatewayProcessConfig& config) { config.max_queue_length = 2; });
  CHECK(rig.refusal(request_of(5)).code == ErrorCode::kUnavailable);
  rig.add("p0", Role::kPrefill, 1, 0);
  rig.wait_ready({"p0"});
  CHECK(rig.refusal(request_of(5)).code == ErrorCode::kUnavailable);  // none decodes
  rig.add("d0", Role::kDecode, 1, 0);
  rig.wait_ready({"d0"});
  // Without credits all of it stays in the queue.
  sched::Request late = request_of(5);
  late.deadline_ns = rig.clock.now_ns() + 1000;
  CHECK(rig.refusal(late).code == ErrorCode::kExhausted);
  const auto soon = std::make_shared<RecordingSink>();
  REQUIRE(comes_true([&] {  // taken, unless this thread sleeps too long here
    sched::Request request = request_of(5);
    request.deadline_ns = rig.clock.now_ns() + 100'000'000;
    return static_cast<bool>(rig.gateway->submit(request, soon));
  }));
  wait_done(*soon);
  CHECK(soon->error()->code == ErrorCode::kDeadline);
  const auto one = rig.ask(request_of(5));
  const auto two = rig.ask(request_of(5));
  const Error full = rig.refusal(request_of(5));
  CHECK(full.code == ErrorCode::kUnavailable);
  CHECK(full.message == "the queue is full: 2 requests wait");
  CHECK(rig.gateway->load().retry_after_s >= 1);
  CHECK(rig.gateway->limits().max_waiting == 2);
  rig.gateway->begin_drain();
  CHECK(rig.refusal(request_of(5)).code == ErrorCode::kUnavailable);
  CHECK(!rig.gateway->wait_idle(0));
}

TEST_CASE("lower priorities leave the queue first, whoever came first") {
  Rig rig;
  FakeNode& node = rig.add("m0", Role::kMixed, 1, 1);
  node.hold_at(0);
  rig.wait_ready({"m0"});
  const auto blocks = rig.ask(request_of(3, 1));
  REQUIRE(comes_true([&] { return node.num_decoding() == 1; }));
  const auto normal = rig.ask(request_of(3, 2));
  sched::Request urgent = request_of(3, 3);
  urgent.priority = -1;
  const auto first = rig.ask(urgent);
  CHECK(rig.gateway->load().num_waiting == 2);
  node.hold_at(100);
  for (const auto& sink : {blocks, normal, first}) wait_done(*sink);
  REQUIRE(node.prefills().size() == 3);
  CHECK(node.prefills()[1].state.sampling.seed == 3);
  CHECK(node.prefills()[2].state.sampling.seed == 2);
}

TEST_CASE("PDD-11: a cancelled request ends with what it has, and its nodes forget it") {
  Rig rig;
  FakeNode& node = rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  node.hold_at(3);
  sched::Request request = request_of(30);
  request.num_choices = 2;
  const auto sink = rig.ask(request);
  REQUIRE(comes_true([&] { return node.num_decoding() == 1; }));
  rig.gateway->cancel(rig.last);
  rig.gateway->cancel(rig.last);
  rig.gateway->cancel(sched::RequestId{999});
  wait_done(*sink);
  CHECK(!sink->error());
  for (uint32_t c = 0; c < 2; ++c) CHECK(sink->finish(c)->reason == FinishReason::kCancelled);
  CHECK(rig.gateway->wait_idle(600));
  REQUIRE(comes_true([&] { return node.num_decoding() == 0; }));
}

TEST_CASE("PDD-12: without its registry a cluster goes on, and takes new requests") {
  Rig rig;
  FakeNode& node = rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  rig.registry.set_reachable(false);
  const auto sink = rig.ask(request_of(5));
  wait_done(*sink);
  CHECK(sink->tokens().size() == 5);
  CHECK(rig.gateway->set_role("m0", Role::kPrefill).error().code == ErrorCode::kUnavailable);
  CHECK(static_cast<bool>(rig.gateway->drain("m0")));  // here, at least
  REQUIRE(comes_true([&] { return rig.state_of("m0") == "draining"; }));
  CHECK(node.num_decoding() <= 1);
}

TEST_CASE("a record that goes takes new work from its node, not what runs there") {
  Rig rig;
  FakeNode& node = rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  node.hold_at(3);
  const auto sink = rig.ask(request_of(10));
  REQUIRE(comes_true([&] { return node.num_decoding() == 1; }));
  rig.registry.expire("m0");
  REQUIRE(comes_true([&] {
    auto id = rig.gateway->submit(request_of(1), std::make_shared<RecordingSink>());
    return !id && id.error().code == ErrorCode::kUnavailable;
  }));
  node.hold_at(100);
  wait_done(*sink);
  CHECK(sink->tokens().size() == 10);
}

TEST_CASE("stop() ends what is alive, and says why") {
  Rig rig;
  FakeNode& node = rig.add("m0", Role::kMixed);
  rig.wait_ready({"m0"});
  node.hold_at(2);
  const auto sink = rig.ask(request_of(10));
  rig.gateway->stop();
  REQUIRE(sink->is_done());
  CHECK(sink->error()->code == ErrorCode::kUnavailable);
  CHECK(rig.refusal(request_of(5)).code == ErrorCode::kUnavailable);
  rig.gateway->stop();
}

TEST_CASE("a gateway needs the model's limits") {
  registry::MemoryRegistry registry;
  SystemClock clock;
  MetricRegistry metrics;
  CHECK(GatewayProcess::start({}, registry, clock, metrics).error().code == ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::gateway
