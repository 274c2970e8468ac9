#include "cluster/node/model_engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "serve/sched/mask_for_test.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::node {
namespace {

using handoff::Finish;
using handoff::RequestId;

constexpr uint32_t kBlockSize = 16;

handoff::RequestState state_of(uint32_t num_prompt, uint32_t num_choices, uint32_t max_tokens) {
  handoff::RequestState state;
  for (uint32_t i = 0; i < num_prompt; ++i) state.prompt.push_back(static_cast<TokenId>(i % 900 + 1));
  state.max_tokens = max_tokens;
  state.choices.resize(num_choices);
  return state;
}

// One engine, and blocks that are handed out once.
struct Rig {
  explicit Rig(ModelEngineConfig config = {}, StopRuleMaker rule = [](const handoff::RequestState&) { return nullptr; })
      : engine(config, executor, clock, std::move(rule)) {}

  role::KvTables tables_of(const handoff::RequestState& state) {
    role::KvTables tables;
    const auto take = [this](size_t count) {
      std::vector<kv::BlockId> blocks;
      for (size_t i = 0; i < count; ++i) blocks.push_back(kv::BlockId{next_block++});
      return blocks;
    };
    const handoff::HandoffShape shape = handoff::shape_of(state, kBlockSize, 1);
    tables.shared = take(shape.num_shared());
    for (uint32_t c = 0; c < shape.num_choices(); ++c) tables.own.push_back(take(shape.num_own(c) + 2));
    return tables;
  }
  void prefill(uint64_t id, const handoff::RequestState& state, const role::KvTables& tables) {
    engine.start_prefill({{0, id}, 1, state, tables, std::vector<uint32_t>(state.choices.size(), 0)});
  }
  // Runs until the prefill of `id` is sampled; the other news are dropped.
  role::Sampled sampled(uint64_t id) {
    for (int step = 0; step < 1000 && engine.has_work(); ++step) {
      for (role::EngineNews& news : engine.run_step()) {
        if (auto* sampled = std::get_if<role::Sampled>(&news); sampled && sampled->request == RequestId{0, id}) {
          return *sampled;
        }
      }
    }
    FAIL("never sampled");
    return {};
  }
  // The first tokens taken in, as a target does, and the rest generated.
  std::vector<std::vector<TokenId>> decode(uint64_t id, handoff::RequestState state, const role::KvTables& tables,
                                           const role::Sampled& first, Finish& last) {
    for (const handoff::TokenEntry& entry : first.first) {
      state.choices[entry.choice].tokens.push_back(entry.token);
      state.choices[entry.choice].is_finished = entry.finish != Finish::kNone;
    }
    std::vector<std::vector<TokenId>> got;
    for (const handoff::ChoiceState& choice : state.choices) got.push_back(choice.tokens);
    engine.start_decode({{0, id}, state, tables});
    while (engine.has_work()) {
      for (const role::EngineNews& news : engine.run_step()) {
        for (const handoff::TokenEntry& entry : std::get<role::StepTokens>(news).tokens) {
          CHECK(entry.index == got[entry.choice].size());
          got[entry.choice].push_back(entry.token);
          last = entry.finish;
        }
      }
    }
    return got;
  }

  sched::ScriptedExecutor executor{{.num_blocks = 4096, .block_size = kBlockSize}};
  ManualClock clock;
  ModelEngine engine;
  uint32_t next_block = 0;
};

TEST_CASE("a prefill is computed in chunks, reports each block once when it is full, and samples every choice") {
  ModelEngineConfig config;
  config.budget = {20, 0, 1};
  config.num_layer_groups = 2;
  Rig rig(config);
  const handoff::RequestState state = state_of(50, 2, 8);
  rig.prefill(1, state, rig.tables_of(state));
  std::vector<int> num_reports(handoff::shape_of(state, kBlockSize, 2).num_parts(), 0);
  bool is_sampled = false;
  while (rig.engine.has_work()) {
    for (const role::EngineNews& news : rig.engine.run_step()) {
      if (const auto* parts = std::get_if<role::PartsComputed>(&news)) {
        for (const uint32_t block : parts->blocks) ++num_reports[block * 2 + parts->layer_group];
        CHECK(!is_sampled);
      } else {
        const auto& sampled = std::get<role::Sampled>(news);
        CHECK(sampled.first.size() == 2);
        CHECK(sampled.first[0].token != sampled.first[1].token);
        is_sampled = true;
      }
    }
  }
  CHECK(is_sampled);
  CHECK(std::ranges::all_of(num_reports, [](int count) { return count == 1; }));
  CHECK(rig.executor.num_steps() >= 3);
}

struct EarlyNews final : StepHost {
  void on_early_news(std::vector<role::EngineNews> told) override {
    for (role::EngineNews& one : told) news.push_back(std::move(one));
  }
  void at_boundary() override {
    if (const auto call = std::exchange(at_first_boundary, {})) call();
  }
  std::function<void()> at_first_boundary;
  std::vector<role::EngineNews> news;
};

// Tells of its layers when it has computed all; may fail after that.
class LayeredExecutor final : public sched::StepExecutor {
 public:
  explicit LayeredExecutor(uint32_t num_layers) : num_layers_(num_layers) {}
  Result<sched::StepOutcome> execute(const sched::Batch& batch) override { return executor_.execute(batch); }
  Result<sched::StepOutcome> execute_observed(const sched::Batch& batch, sched::StepObserver& observer) override {
    auto outcome = execute(batch);
    for (uint32_t layer = 1; layer <= num_layers_; ++layer) observer.on_layers_written(layer);
    if (num_failures == 0) return outcome;
    --num_failures;
    return Error{ErrorCode::kInternal, "as told"};
  }
  bool nests_steps() const override { return nests; }
  int num_failures = 0;
  bool nests = false;

 private:
  const uint32_t num_layers_;
  sched::ScriptedExecutor executor_{{.num_blocks = 4096, .block_size = kBlockSize}};
};

TEST_CASE("groups of layers are told of in the step, each part once, also of a step that fails and runs again") {
  for (const uint32_t layers_per_group : {2u, 0u}) {
    for (const int num_failures : {0, 1, 2}) {
      ModelEngineConfig config;
      config.budget = {40, 0, 1};
      config.num_layer_groups = 3;
      config.layers_per_group = layers_per_group;
      LayeredExecutor executor(5);  // the last group's second layer is not told of
      executor.num_failures = num_failures;
      ManualClock clock;
      ModelEngine engine(config, executor, clock, [](const handoff::RequestState&) { return nullptr; });
      Rig blocks;
      const handoff::RequestState state = state_of(70, 2, 8);
      engine.start_prefill({{0, 1}, 1, state, blocks.tables_of(state), {0, 0}});
      const handoff::HandoffShape shape = handoff::shape_of(state, kBlockSize, 3);
      std::vector<int> early(shape.num_parts(), 0), late(shape.num_parts(), 0);
      const auto count = [](std::vector<int>& counts, const std::vector<role::EngineNews>& news) {
        for (const role::EngineNews& one : news) {
          const auto* parts = std::get_if<role::PartsComputed>(&one);
          for (size_t i = 0; parts != nullptr && i < parts->blocks.size(); ++i) {
            ++counts[parts->blocks[i] * 3 + parts->layer_group];
          }
        }
      };
      EarlyNews host;
      while (engine.has_work()) count(late, engine.run_step(&host));
      count(early, host.news);
      for (uint32_t part = 0; part < shape.num_parts(); ++part) {
        CHECK(early[part] == (layers_per_group > 0 && part % 3 < 2 ? 1 : 0));
        CHECK(early[part] + late[part] == 1);
      }
    }
  }
}

TEST_CASE("a choice's first token tells how much of the prompt was cached; a later one does not") {
  Rig rig;
  handoff::RequestState state = state_of(50, 2, 8);
  const role::KvTables tables = rig.tables_of(state);
  rig.prefill(9, state, tables);
  for (const handoff::TokenEntry& entry : rig.sampled(9).first) CHECK(entry.num_cached == 0);
  rig.engine.start_prefill({{0, 1}, 1, state, tables, {32, 32}});
  for (const handoff::TokenEntry& entry : rig.sampled(1).first) CHECK(entry.num_cached == 32);
  for (handoff::ChoiceState& choice : state.choices) choice.tokens = {7};
  rig.engine.start_prefill({{0, 2}, 1, state, tables, {48, 48}});
  for (const handoff::TokenEntry& entry : rig.sampled(2).first) CHECK(entry.num_cached == 0);
}

TEST_CASE("prompts go in the order of a single process: begun answers, then by arrival, length and priority") {
  ModelEngineConfig config;
  config.budget = {16, 0, 1};  // one prompt at a time, nearly
  config.line = {1, 500};
  Rig rig(config);
  const auto start = [&](uint64_t id, int64_t at_ms, uint32_t num_prompt, int32_t priority, bool has_begun = false) {
    rig.clock.set_ns(at_ms * 1'000'000);
    handoff::RequestState state = state_of(num_prompt, 1, 8);
    if (has_begun) state.choices[0].tokens = {7};
    rig.engine.start_prefill({{0, id}, 1, state, rig.tables_of(state), {0}, priority});
  };
  start(1, 0, 300, 0);               // counts as 300 ms
  start(2, 100, 100, 0);             // as 200
  start(3, 250, 100, 0);             // as 350: short, and too late
  start(4, 300, 200, -1);            // as 0
  start(5, 300, 16, 1);              // as 816
  start(6, 310, 200, 9, true);
  std::vector<uint64_t> order;
  while (rig.engine.has_work()) {
    for (const role::EngineNews& news : rig.engine.run_step()) {
      if (const auto* sampled = std::get_if<role::Sampled>(&news)) order.push_back(sampled->request.low);
    }
  }
  CHECK(order == std::vector<uint64_t>{6, 4, 2, 1, 3, 5});
}

TEST_CASE("between two layers of a long prompt, decodes and short prompts that came meanwhile run; long ones wait") {
  ModelEngineConfig config;
  config.budget = {200, 0, 1};
  LayeredExecutor executor(3);
  executor.nests = true;
  ManualClock clock;
  ModelEngine engine(config, executor, clock, [](const handoff::RequestState&) { return nullptr; });
  Rig blocks;
  EarlyNews host;
  const auto start = [&](uint64_t id, uint32_t num_prompt) {
    const handoff::RequestState state = state_of(num_prompt, 1, 8);
    engine.start_prefill({{0, id}, 1, state, blocks.tables_of(state), {0}});
  };
  start(1, 150);
  host.at_first_boundary = [&] {
    CHECK(engine.is_in_step({0, 1}));
    start(2, 40);
    start(3, 65);
  };
  const std::vector<role::EngineNews> last = engine.run_step(&host);
  const auto is_sampled = [](const std::vector<role::EngineNews>& news, uint64_t id) {
    return std::ranges::any_of(news, [id](const role::EngineNews& one) {
      const auto* sampled = std::get_if<role::Sampled>(&one);
      return sampled != nullptr && sampled->request == RequestId{0, id};
    });
  };
  CHECK(is_sampled(host.news, 2));
  CHECK(!is_sampled(host.news, 1));
  CHECK(is_sampled(last, 1));
  CHECK(!is_sampled(host.news, 3));
  CHECK(!engine.is_in_step({0, 1}));
  CHECK(is_sampled(engine.run_step(&host), 3));
  CHECK(!engine.has_work());
}

TEST_CASE("choices end by length, by a stop token once min_tokens are out, and by a stop string") {
  Rig rig;
  handoff::RequestState state = state_of(5, 2, 6);
  const role::KvTables tables = rig.tables_of(state);
  rig.prefill(1, state, tables);
  Finish last = Finish::kNone;
  const auto whole = rig.decode(1, state, tables, rig.sampled(1), last);
  CHECK(whole[0].size() == 6);
  CHECK(whole[1].size() == 6);
  CHECK(last == Finish::kLength);

  // The same again, one choice, with its third token made a stop token. It is banned until three tokens are out.
  state.choices.resize(1);
  state.stop_token_ids = {whole[0][2]};
  rig.prefill(2, state, tables);
  CHECK(rig.decode(2, state, tables, rig.sampled(2), last)[0] ==
        std::vector<TokenId>(whole[0].begin(), whole[0].begin() + 3));
  CHECK(last == Finish::kStop);
  state.min_tokens = 4;
  rig.prefill(3, state, tables);
  const auto longer = rig.decode(3, state, tables, rig.sampled(3), last);
  CHECK(longer[0].size() >= 4);
  CHECK(longer[0][2] != whole[0][2]);
}

// Stops at the third token it sees, whichever that is.
class ThirdToken final : public sched::StopRule {
 public:
  bool push(TokenId, bool may_stop) override { return ++num_seen_ >= 3 && may_stop; }

 private:
  int num_seen_ = 0;
};

TEST_CASE("a stop rule sees each token once, also those that were emitted elsewhere") {
  Rig rig({}, [](const handoff::RequestState&) { return std::make_unique<ThirdToken>(); });
  const handoff::RequestState state = state_of(20, 1, 10);
  const role::KvTables tables = rig.tables_of(state);
  rig.prefill(1, state, tables);
  Finish last = Finish::kNone;
  CHECK(rig.decode(1, state, tables, rig.sampled(1), last)[0].size() == 3);
  CHECK(last == Finish::kStopRule);
}

ModelEngineConfig with_masks(sched::CountedMaskRule rule = {}) {
  ModelEngineConfig config;
  config.make_masks = [rule](const sched::Grammar& grammar) {
    CHECK(grammar == sched::Grammar{sched::GrammarKind::kChoice, "counted"});
    return [rule] { return std::make_unique<sched::CountedMask>(rule); };
  };
  return config;
}

handoff::RequestState with_grammar(handoff::RequestState state) {
  state.grammar_kind = handoff::GrammarKind::kChoice;
  state.grammar_source = "counted";
  return state;
}

TEST_CASE("a grammar holds for prefill and decode as in one piece, and its end is told apart from an end token") {
  const handoff::RequestState state = with_grammar(state_of(20, 2, 10));
  Rig rig(with_masks());
  const role::KvTables tables = rig.tables_of(state);
  rig.prefill(1, state, tables);
  Finish last = Finish::kNone;
  const auto whole = rig.decode(1, state, tables, rig.sampled(1), last);
  for (const auto& tokens : whole) {
    CHECK(tokens.size() == 10);
    CHECK(sched::CountedMask::accepts(tokens));
  }
  CHECK(last == Finish::kLength);

  // The first tokens as if they came from elsewhere: computed anew, not chosen anew.
  handoff::RequestState half = state;
  for (size_t c = 0; c < 2; ++c) half.choices[c].tokens.assign(whole[c].begin(), whole[c].begin() + 6);
  const role::KvTables more = rig.tables_of(half);
  rig.prefill(2, half, more);
  CHECK(rig.decode(2, half, more, rig.sampled(2), last) == whole);

  Rig short_rig(with_masks({.num_tokens = 4}));
  handoff::RequestState ended = state;
  ended.ignore_eos = true;
  ended.min_tokens = 8;
  const role::KvTables other = short_rig.tables_of(ended);
  short_rig.prefill(3, ended, other);
  const auto four = short_rig.decode(3, ended, other, short_rig.sampled(3), last);
  CHECK(last == Finish::kComplete);
  for (size_t c = 0; c < 2; ++c) CHECK(four[c] == std::vector<TokenId>(whole[c].begin(), whole[c].begin() + 4));
}

// The fault: the neighbour's decode stood still until the grammar was compiled.
TEST_CASE("a choice whose mask is not ready holds up nobody, and has its prompt computed meanwhile") {
  auto is_ready = std::make_shared<bool>(false);
  class LateMask final : public sched::TokenMask {
   public:
    explicit LateMask(std::shared_ptr<bool> is_ready) : is_ready_(std::move(is_ready)) {}
    Result<std::span<const uint32_t>> allowed() override {
      CHECK(*is_ready_);
      return mask_.allowed();
    }
    bool is_ready() const override { return *is_ready_; }
    Status commit(TokenId token) override { return mask_.commit(token); }
    bool is_over() const override { return mask_.is_over(); }

   private:
    std::shared_ptr<bool> is_ready_;
    sched::CountedMask mask_{sched::CountedMaskRule{}};
  };
  ModelEngineConfig config;
  config.make_masks = [is_ready](const sched::Grammar&) {
    return [is_ready] { return std::make_unique<LateMask>(is_ready); };
  };
  Rig rig(config);
  const handoff::RequestState late = with_grammar(state_of(20, 1, 10)), other = state_of(30, 1, 10);
  rig.prefill(1, late, rig.tables_of(late));
  const role::KvTables tables = rig.tables_of(other);
  rig.prefill(2, other, tables);
  CHECK(rig.sampled(2).first.size() == 1);
  const handoff::RequestState plain = state_of(25, 1, 10);
  const role::KvTables computed = rig.tables_of(plain);
  rig.prefill(3, plain, computed);
  handoff::RequestState decoding = with_grammar(plain);
  decoding.choices[0].tokens = {rig.sampled(3).first[0].token};
  rig.engine.start_decode({{0, 3}, decoding, computed});
  CHECK(rig.engine.run_step().empty());  // all that is left waits
  CHECK(rig.engine.waits_for_masks());
  CHECK(rig.engine.has_work());
  // It gets on, if not for ever. The fault: as long as it waited, so that one hard grammar made a stuck engine of it.
  for (const uint32_t running_ms : {1u, 1u, 0u}) {
    CHECK(rig.engine.progress().step_running_ms == running_ms);
    rig.clock.advance_ms(6'000);
    CHECK(rig.engine.run_step().empty());
  }
  *is_ready = true;
  std::set<uint64_t> served;
  for (int step = 0; step < 3; ++step) {
    for (const role::EngineNews& news : rig.engine.run_step()) {
      if (const auto* sampled = std::get_if<role::Sampled>(&news)) served.insert(sampled->request.low);
      if (const auto* tokens = std::get_if<role::StepTokens>(&news)) served.insert(tokens->request.low);
    }
  }
  CHECK(served == std::set<uint64_t>{1, 3});
  CHECK(!rig.engine.waits_for_masks());
  CHECK(rig.engine.progress().step_running_ms == 0);
}

TEST_CASE("a grammar that fails, or that this node does not know, fails its request here and no other") {
  const auto failures_of = [](const ModelEngineConfig& config) {
    Rig rig(config);
    const handoff::RequestState bad = with_grammar(state_of(20, 1, 10)), good = state_of(30, 1, 10);
    rig.prefill(1, bad, rig.tables_of(bad));
    rig.prefill(2, good, rig.tables_of(good));
    std::vector<std::string> failures;
    bool is_good_sampled = false;
    while (rig.engine.has_work()) {
      for (const role::EngineNews& news : rig.engine.run_step()) {
        if (const auto* failed = std::get_if<role::JobFailed>(&news)) {
          CHECK(failed->request == RequestId{0, 1});
          CHECK(failed->code == ErrorCode::kInvalidArgument);  // so that no other node is tried
          failures.push_back(failed->message);
        }
        const auto* sampled = std::get_if<role::Sampled>(&news);
        is_good_sampled |= sampled != nullptr && sampled->request == RequestId{0, 2};
      }
    }
    CHECK(is_good_sampled);
    return failures;
  };
  using Failures = std::vector<std::string>;
  CHECK(failures_of({}) == Failures{"this node cannot hold answers to a grammar"});
  CHECK(failures_of(with_masks({.mask_fails_at = 0})) == Failures{"the mask fails"});
  CHECK(failures_of(with_masks({.commit_fails_at = 0})) == Failures{"the commit fails"});
}

TEST_CASE("log-probabilities come with a prefill's first tokens and with each later one, when they are asked for") {
  Rig rig;
  handoff::RequestState state = state_of(20, 1, 3);
  const role::KvTables tables = rig.tables_of(state);
  rig.prefill(1, state, tables);
  CHECK(rig.sampled(1).first[0].rank == 0);
  state.sampling.num_logprobs = 2;
  rig.prefill(2, state, tables);
  const handoff::TokenEntry first = rig.sampled(2).first[0];
  CHECK(first.rank >= 1);
  CHECK(first.top.size() == 2);
  state.choices[0].tokens = {first.token};
  rig.engine.start_decode({{0, 2}, state, tables});
  const auto news = rig.engine.run_step();
  REQUIRE(news.size() == 1);
  const handoff::TokenEntry& later = std::get<role::StepTokens>(news[0]).tokens[0];
  CHECK(later.rank >= 1);
  CHECK(later.logprob < 0);
  CHECK(later.top.size() == 2);
}

TEST_CASE("an item that fails alone ends its request; a step that fails once is run again") {
  Rig rig;
  const handoff::RequestState good = state_of(40, 1, 4);
  handoff::RequestState bad = good;
  bad.prompt[30] = 999;
  rig.executor.fail_step(0, Error{ErrorCode::kUnavailable, "once"});
  rig.executor.fail_steps_with(999);
  rig.prefill(1, good, rig.tables_of(good));
  rig.prefill(2, bad, rig.tables_of(bad));
  bool has_failed = false, is_sampled = false;
  while (rig.engine.has_work()) {
    for (const role::EngineNews& news : rig.engine.run_step()) {
      if (const auto* failed = std::get_if<role::JobFailed>(&news)) {
        CHECK(failed->request == RequestId{0, 2});
        CHECK(failed->message.find("scripted failure") != std::string::npos);
        has_failed = true;
      }
      if (const auto* sampled = std::get_if<role::Sampled>(&news)) {
        CHECK(sampled->request == RequestId{0, 1});
        is_sampled = true;
      }
    }
  }
  CHECK(has_failed);
  CHECK(is_sampled);
}

TEST_CASE("more decodes than fit take turns, and leave room for a prompt") {
  ModelEngineConfig config;
  config.max_sequences = 4;
  Rig rig(config);
  std::vector<uint32_t> num_steps(7, 0);
  for (uint64_t id = 0; id < 7; ++id) {
    handoff::RequestState state = state_of(10, 1, 25);
    const role::KvTables tables = rig.tables_of(state);
    rig.prefill(id + 1, state, tables);
    for (const handoff::TokenEntry& entry : rig.sampled(id + 1).first) {
      state.choices[0].tokens.push_back(entry.token);
    }
    rig.engine.start_decode({{0, id + 1}, state, tables});
  }
  for (int step = 0; step < 7; ++step) {
    const auto news = rig.engine.run_step();
    CHECK(news.size() == 4);
    for (const role::EngineNews& one : news) ++num_steps[std::get<role::StepTokens>(one).request.low - 1];
  }
  CHECK(std::ranges::max(num_steps) - std::ranges::min(num_steps) <= 2);
}

TEST_CASE("progress tells steps and whether one runs") {
  Rig rig;
  CHECK(rig.engine.progress().step_seq == 0);
  CHECK(rig.engine.run_step().empty());
  const handoff::RequestState state = state_of(10, 1, 4);
  rig.executor.set_observer([&](uint64_t, const sched::Batch&) {
    rig.clock.advance_ms(30);
    CHECK(rig.engine.progress().step_running_ms == 30);
  });
  rig.prefill(1, state, rig.tables_of(state));
  rig.sampled(1);
  CHECK(rig.engine.progress().step_seq == 1);
  CHECK(rig.engine.progress().step_running_ms == 0);
}

}  // namespace
}  // namespace tandem::node
