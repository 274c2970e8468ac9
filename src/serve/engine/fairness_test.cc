// Who goes when there is not enough for all, in virtual time: keys beside each other, long prompts and short ones,
// priorities.

#include "serve/engine/virtual_engine_for_test.h"

namespace tandem::engine {
namespace {

constexpr double kSeconds = 1000;  // in ms
constexpr VirtualCost kCost{2, 0.1, 0.1};

struct Mix {
  bool has_keys = true;  // the two have keys of their own, which the server knows
  bool has_flood = true;
  double flood_weight = 1;
};

struct Figures {
  std::vector<double> ttft_ms;  // of the short ones
  uint64_t flood_tokens = 0;    // prompt and output of those that were served
  uint64_t flood_served = 0;
};

// A flood that always has as much in the queue as it may, of prompts of nearly the longest kind, and a short request
// every 80 ms.
Figures figures_of(const Mix& mix) {
  EngineConfig config = virtual_config();
  config.sched.max_num_batched_tokens = 512;
  config.sched.max_num_seqs = 16;
  config.sched.max_model_len = 2048;
  config.sched.tpot_target_ms = 8;
  config.sched.max_queue_length = 40;
  config.sched.num_private_blocks = 16;
  if (mix.has_keys) config.sched.tenant_weights = {{"flood", mix.flood_weight}, {"short", 1}};
  VirtualEngine world(config, kCost);
  Figures figures;
  std::vector<std::shared_ptr<Told>> flood, shorts;
  uint32_t seed = 0;
  std::function<void()> pour = [&] {
    for (int i = 0; i < 60; ++i) {
      sched::Request request = world.request(1900, 100, ++seed);
      if (mix.has_keys) request.tenant = "flood";
      auto told = world.ask(std::move(request));
      if (!told) break;
      flood.push_back(std::move(told));
    }
    world.at(world.now_ms() + 20, pour);
  };
  std::function<void()> drip = [&] {
    sched::Request request = world.request(160, 4, ++seed);
    if (mix.has_keys) request.tenant = "short";
    if (auto told = world.ask(std::move(request))) shorts.push_back(std::move(told));
    world.at(world.now_ms() + 80, drip);
  };
  if (mix.has_flood) pour();
  // By then the flood has taken all it can get.
  world.at(4 * kSeconds, drip);
  world.run_until(40 * kSeconds);
  for (const auto& told : shorts) {
    if (told->asked_ms > 39 * kSeconds) continue;  // still under way
    figures.ttft_ms.push_back(told->first_ms < 0 ? 1e9 : told->first_ms - told->asked_ms);
  }
  for (const auto& told : flood) {
    if (!told->is_served()) continue;
    ++figures.flood_served;
    figures.flood_tokens += 1900 + told->tokens.size();
  }
  return figures;
}

TEST_CASE("beside a flood of the longest prompts a key's short requests begin within twice their time alone") {
  Mix alone;
  alone.has_flood = false;
  const double alone_ms = quantile(figures_of(alone).ttft_ms, 0.99);
  const Figures beside = figures_of({});
  const double beside_ms = quantile(beside.ttft_ms, 0.99);
  MESSAGE("p99 alone " << alone_ms << " ms, beside " << beside_ms << " ms, flood " << beside.flood_served);
  CHECK(beside.ttft_ms.size() > 400);
  CHECK(beside_ms <= 2 * alone_ms);
  // The flood gets on: a short request takes a fifth of the machine, and steps are shorter for its sake.
  CHECK(beside.flood_served > 60);

  // The rule left out: all come with one key, and a full queue and a full pool are everybody's.
  Mix one_key;
  one_key.has_keys = false;
  CHECK(quantile(figures_of(one_key).ttft_ms, 0.99) > 10 * alone_ms);
}

TEST_CASE("keys get tokens by weight while both want more than there is") {
  EngineConfig config = virtual_config();
  config.sched.max_num_batched_tokens = 256;
  config.sched.tenant_weights = {{"gold", 3}, {"plain", 1}};
  VirtualEngine world(config, kCost);
  std::map<std::string, uint64_t> served;
  std::map<std::string, std::vector<std::shared_ptr<Told>>> told;
  uint32_t seed = 0;
  std::function<void()> pour = [&] {
    for (const char* tenant : {"gold", "plain"}) {
      for (int i = 0; i < 100; ++i) {
        sched::Request request = world.request(200, 2, ++seed);
        request.tenant = tenant;
        auto taken = world.ask(std::move(request));
        if (!taken) break;
        told[tenant].push_back(std::move(taken));
      }
    }
    world.at(world.now_ms() + 5, pour);
  };
  pour();
  world.run_until(20 * kSeconds);
  for (const auto& [tenant, all] : told) {
    for (const auto& one : all) served[tenant] += one->is_served();
  }
  CHECK(static_cast<double>(served["gold"]) / static_cast<double>(served["plain"]) == doctest::Approx(3).epsilon(0.1));
}

TEST_CASE("one key cannot fill the queue: it is told 429, and others still come in") {
  EngineConfig config = virtual_config();
  config.sched.max_queue_length = 100;
  config.sched.tenant_weights = {{"a", 1}, {"b", 1}, {"c", 1}};
  VirtualEngine world(config);
  const auto fill = [&](const char* tenant) {
    for (int num_taken = 0;; ++num_taken) {
      sched::Request request = world.request(8, 4, 1);
      request.tenant = tenant;
      if (!world.ask(std::move(request))) return num_taken;
    }
  };
  CHECK(world.engine.limits().max_waiting == 80);  // and so long may a list of prompts be
  CHECK(fill("a") == 80);
  CHECK(world.refusal.code == ErrorCode::kExhausted);
  CHECK(world.engine.check_room("a").error().code == ErrorCode::kExhausted);
  CHECK(world.engine.check_room("b"));
  CHECK(fill("b") == 16);
  CHECK(fill("c") == 4);
  world.run_until(10 * kSeconds);
  CHECK(world.engine.load().num_waiting == 0);
  CHECK(fill("b") == 80);
}

TEST_CASE("a key's deadline is judged by its own queue, not by another's") {
  EngineConfig config = virtual_config();
  config.sched.max_queue_length = 1000;
  config.sched.tenant_weights = {{"flood", 1}, {"calm", 1}};
  VirtualEngine world(config, kCost);
  const auto ask = [&](const char* tenant, double deadline_ms) {
    sched::Request request = world.request(100, 2, 5);
    request.tenant = tenant;
    if (deadline_ms > 0) request.deadline_ns = static_cast<int64_t>((world.now_ms() + deadline_ms) * 1e6);
    return world.ask(std::move(request));
  };
  for (int i = 0; i < 30; ++i) REQUIRE(ask("flood", 0));
  world.run_until(2 * kSeconds);
  for (int i = 0; i < 300; ++i) REQUIRE(ask("flood", 0));  // three seconds of work
  CHECK(!ask("flood", 500));
  CHECK(world.refusal.code == ErrorCode::kExhausted);
  const auto calm = ask("calm", 500);
  REQUIRE(calm);
  world.run_until(6 * kSeconds);
  CHECK(calm->is_served());
}

TEST_CASE("SCH-01: beside one very long prompt tokens keep coming, and a short request begins at once") {
  // The fault: steps without a bound (tpot_target_ms 0) or with no bound on tokens.
  EngineConfig config = virtual_config();
  config.sched.num_blocks = 1024;
  config.sched.max_model_len = 8192;
  config.sched.max_num_batched_tokens = 256;
  config.sched.tpot_target_ms = 12;
  struct Seen {
    double gap_ms = 0, ttft_ms = 0, long_ms = 0;
    std::vector<TokenId> long_tokens;
  };
  const auto play = [&](const EngineConfig& with, bool has_long, bool has_short) {
    VirtualEngine world(with, kCost);
    for (uint32_t i = 0; i < 12; ++i) world.ask(world.request(20 + 10 * i, 3, 50 + i));  // what steps cost
    world.run_until(500);
    const auto decoding = world.ask(world.request(10, 2000, 1));
    world.run_until(600);
    std::shared_ptr<Told> longest, quick;
    if (has_long) longest = world.ask(world.request(6000, 5, 2));
    world.run_until(650);
    if (has_short) quick = world.ask(world.request(60, 5, 3));
    world.run_until(20'000);
    Seen seen;
    seen.gap_ms = quantile(decoding->gaps_ms, 1);
    if (quick) seen.ttft_ms = quick->first_ms - quick->asked_ms;
    if (longest) {
      seen.long_ms = longest->end_ms - longest->asked_ms;
      seen.long_tokens = longest->tokens;
      CHECK(longest->is_served());
    }
    return seen;
  };
  const Seen without = play(config, false, true), with = play(config, true, true),
             only_long = play(config, true, false);
  CHECK(with.gap_ms <= 1.5 * 12);
  CHECK(with.ttft_ms <= without.ttft_ms + 2 * 12);
  CHECK(with.long_ms <= 1.1 * only_long.long_ms);
  EngineConfig whole = config;
  whole.sched.max_num_batched_tokens = 8192;
  whole.sched.tpot_target_ms = 0;
  const Seen at_once = play(whole, true, true);
  CHECK(at_once.long_tokens == with.long_tokens);
  CHECK(at_once.gap_ms > 500);  // which is what the bounds are for
}

TEST_CASE("SCH-02: under more prompts than can be computed those that decode go on at their pace") {
  // The fault: while a prompt can be computed, steps have no decode rows.
  EngineConfig config = virtual_config();
  config.sched.max_num_batched_tokens = 256;
  config.sched.max_num_seqs = 16;
  config.sched.max_queue_length = 100;
  config.sched.tpot_target_ms = 15;
  VirtualEngine world(config, kCost);
  std::vector<std::shared_ptr<Told>> all;
  // 0.1 ms a prompt token, so 100 prompts of 120 tokens a second are 1.2 times what there is room for.
  uint32_t seed = 0;
  std::function<void()> arrive = [&] {
    if (auto told = world.ask(world.request(120, 40, ++seed))) all.push_back(std::move(told));
    world.at(world.now_ms() + 10, arrive);
  };
  arrive();
  world.run_until(60 * kSeconds);
  std::vector<double> gaps_ms;
  size_t num_served = 0;
  for (const auto& told : all) {
    num_served += told->is_served();
    gaps_ms.insert(gaps_ms.end(), told->gaps_ms.begin(), told->gaps_ms.end());
  }
  CHECK(num_served > 500);
  CHECK(quantile(gaps_ms, 0.99) <= 1.5 * 15);
  CHECK(quantile(gaps_ms, 1) <= 100);  // also of one that was preempted, or came when nothing was known of costs
}

TEST_CASE("SCH-06: of thirty that wait the urgent one is next, and ageing bounds how long others are passed") {
  // The faults: the order does not look at the priority; no wait makes up for it.
  EngineConfig config = virtual_config();
  config.sched.max_num_seqs = 1;
  VirtualEngine world(config, kCost);
  const auto ask = [&](int32_t priority, uint32_t seed) {
    sched::Request request = world.request(30, 10, seed);
    request.priority = priority;
    return world.ask(std::move(request));
  };
  const auto running = ask(0, 1);
  world.run_until(10);
  std::vector<std::shared_ptr<Told>> low;
  for (uint32_t i = 0; i < 30; ++i) low.push_back(ask(1, 100 + i));
  world.run_until(15);
  const auto high = ask(0, 200);
  REQUIRE(high);
  world.run_until(5 * kSeconds);
  for (const auto& told : low) CHECK(high->first_ms < told->first_ms);
  CHECK(std::ranges::is_sorted(low, {}, [](const auto& told) { return told->first_ms; }));

  // A level of priority is worth ten seconds of waiting, however many urgent ones come.
  std::function<void()> urgent = [&] {
    for (uint32_t i = 0; i < 3; ++i) ask(0, 300 + i);
    world.at(world.now_ms() + 60, urgent);
  };
  urgent();
  world.run_until(6 * kSeconds);
  const auto patient = ask(1, 400);
  REQUIRE(patient);
  world.run_until(60 * kSeconds);
  REQUIRE(patient->is_served());
  const double waited_ms = patient->first_ms - patient->asked_ms;
  CHECK(waited_ms > 9 * kSeconds);
  CHECK(waited_ms < 30 * kSeconds);
}

TEST_CASE("MET-07: the first token's time is that of the first sampled token, not of the first chunk") {
  // The fault: scheduled_ns taken when the prompt is complete, or the first chunk counted as a token.
  EngineConfig config = virtual_config();
  config.sched.max_num_batched_tokens = 64;
  VirtualEngine world(config, {100, 0, 100});
  const auto told = world.ask(world.request(256, 3, 1));
  world.run_until(5 * kSeconds);
  CHECK(told->first_ms - told->asked_ms == doctest::Approx(400));
  const Labels as = {{"model_name", ""}, {"engine", "0"}};
  const auto sum = [&](const char* name, const char* help) {
    const std::string text = world.metrics.exposition();
    const size_t at = text.find("\n" + std::string(name) + "_sum");
    REQUIRE_MESSAGE(at != std::string::npos, help);
    return std::stod(text.substr(text.find("} ", at) + 2));
  };
  CHECK(sum("vllm:request_queue_time_seconds", "queue") == doctest::Approx(0));
  CHECK(sum("vllm:request_prefill_time_seconds", "prefill") == doctest::Approx(0.4));
  CHECK(sum("vllm:request_decode_time_seconds", "decode") == doctest::Approx(0.4));
}

}  // namespace
}  // namespace tandem::engine
