// Source, target and holder by themselves: what each does on each message, the ones that must change nothing included.
#include <doctest/doctest.h>

#include <algorithm>

#include "cluster/handoff/holder.h"
#include "cluster/handoff/source.h"
#include "cluster/handoff/target.h"

namespace tandem::handoff {
namespace {

const NodeRef kP{"p", 1}, kQ{"q", 2}, kD{"d", 3};
const RequestId kRequest{0, 42};
const Timing kTiming;

RequestState state_with(size_t prompt, std::vector<std::vector<TokenId>> choices) {
  RequestState state;
  for (size_t i = 0; i < prompt; ++i) state.prompt.push_back(static_cast<TokenId>(i));
  state.max_tokens = 100;
  for (auto& tokens : choices) state.choices.push_back({std::move(tokens), false});
  return state;
}

template <class T>
const T* find(const Actions& actions) {  // the first of this kind, inside an envelope or not
  for (const Action& action : actions) {
    if constexpr (std::is_constructible_v<Action, T>) {
      if (const T* found = std::get_if<T>(&action)) return found;
    }
    if constexpr (std::is_constructible_v<SessionMessage, T>) {
      const auto* send = std::get_if<ToGateway>(&action);
      if (send && std::holds_alternative<T>(send->message)) return &std::get<T>(send->message);
    }
    if constexpr (std::is_constructible_v<PeerMessage, T>) {
      const auto* send = std::get_if<ToPeer>(&action);
      if (send && std::holds_alternative<T>(send->message)) return &std::get<T>(send->message);
    }
  }
  return nullptr;
}

Reserve reserve_for(const RequestState& state, Attempt attempt, const NodeRef& source = kP) {
  return {kRequest, attempt, source, shape_of(state, 16, 2), 64, 1000};
}

Push push_of(Attempt attempt, uint32_t block, uint32_t group, uint64_t landing = 9) {
  return {kRequest, attempt, landing, block, group, 77, {1, 100}};
}

Commit commit_of(const RequestState& state, Attempt attempt, TokenId token, Finish finish = Finish::kNone) {
  Commit commit{kRequest, attempt, shape_of(state, 16, 2).num_parts(), {}, state};
  for (uint32_t c = 0; c < state.choices.size(); ++c) {
    const auto index = static_cast<uint32_t>(state.choices[c].tokens.size());
    commit.first.push_back({kRequest, attempt, c, index, token, 0, finish});
  }
  return commit;
}

struct FilledTarget {  // 20 prompt tokens: 2 blocks of 2 layer groups
  RequestState state = state_with(20, {{}});
  Actions out;
  Target target{reserve_for(state, 1), kD, 9, 5, PartSet(shape_of(state, 16, 2).num_parts()), out};

  void push(uint32_t block, uint32_t group) { target.on_push(push_of(1, block, group), 77, kP, out); }
  void fill() {
    for (uint32_t block = 0; block < 2; ++block) {
      for (uint32_t group = 0; group < 2; ++group) push(block, group);
    }
  }
};

TEST_CASE("a shape: full prompt blocks are shared, each choice has the rest") {
  const HandoffShape shape = shape_of(state_with(40, {{1, 2}, {}, {1, 2, 3, 4, 5, 6, 7, 8, 9}}), 16, 2);
  CHECK(shape.num_shared() == 2);
  CHECK(shape.num_own(0) == 1);
  CHECK(shape.num_own(1) == 1);
  CHECK(shape.num_own(2) == 2);
  CHECK(shape.num_blocks() == 6);
  CHECK(place_of(shape, 1) == BlockPlace{true, 0, 1, 16});
  CHECK(place_of(shape, 2) == BlockPlace{false, 0, 0, 10});
  CHECK(place_of(shape, 5) == BlockPlace{false, 2, 1, 1});
  CHECK(shape_of(state_with(32, {{}, {}}), 16, 1).num_blocks() == 2);  // nothing of their own yet
}

TEST_CASE("what arrived for one attempt counts for the next where it covers the same positions") {
  const HandoffShape before = shape_of(state_with(20, {{}}), 16, 2);
  const HandoffShape after = shape_of(state_with(20, {{7}}), 16, 2);
  PartSet all(before.num_parts());
  for (uint32_t part = 0; part < all.size(); ++part) all.add(part);
  CHECK(carried_over(all, before, before).is_full());
  const PartSet kept = carried_over(all, before, after);
  CHECK(kept.has(0));
  CHECK(kept.has(1));
  CHECK(!kept.has(2));  // the last block has one more position now
  CHECK(carried_over(all, before, shape_of(state_with(21, {{}}), 16, 2)).count() == 0);
}

TEST_CASE("decode starts when the bitmap is full and the commit is here, whichever comes last") {
  FilledTarget t;
  CHECK(find<ReserveOk>(t.out)->landing == 9);
  SUBCASE("commit last") {
    t.fill();
    CHECK(t.target.state() == Target::State::kFilling);
    t.target.on_commit(commit_of(t.state, 1, 5), kP, t.out);
  }
  SUBCASE("a part last") {
    t.push(0, 0);
    t.push(0, 1);
    t.push(1, 1);
    t.target.on_commit(commit_of(t.state, 1, 5), kP, t.out);
    CHECK(t.target.state() == Target::State::kFilling);
    CHECK(!find<BeginDecode>(t.out));
    t.push(1, 0);
  }
  CHECK(t.target.state() == Target::State::kDecoding);
  CHECK(find<BeginDecode>(t.out)->state.choices[0].tokens == std::vector<TokenId>{5});
  CHECK(find<CommitAck>(t.out));
  REQUIRE(find<TokenBatch>(t.out));
  CHECK(find<TokenBatch>(t.out)->entries[0].index == 0);  // the first token is repeated
  t.out.clear();
  t.target.on_commit(commit_of(t.state, 1, 5), kP, t.out);  // again: acknowledged again, nothing else
  CHECK(t.out.size() == 1);
  CHECK(find<CommitAck>(t.out));
}

TEST_CASE("PDD-01: a part counts once, and what is forged, old or damaged changes nothing") {
  FilledTarget t;
  t.out.clear();
  CHECK(t.target.on_push(push_of(1, 0, 0), 77, kP, t.out) == Target::PushResult::kTaken);
  CHECK(t.target.on_push(push_of(1, 0, 0), 77, kP, t.out) == Target::PushResult::kRepeated);
  CHECK(t.target.received().count() == 1);
  const auto refuse = [&](const Push& push, uint64_t checksum, const NodeRef& from) {
    t.out.clear();
    CHECK(t.target.on_push(push, checksum, from, t.out) == Target::PushResult::kStale);
    CHECK(find<Stale>(t.out));
    CHECK(!find<CopyIn>(t.out));
    CHECK(t.target.received().count() == 1);
  };
  refuse(push_of(2, 0, 1), 77, kP);      // another attempt
  refuse(push_of(1, 0, 1), 78, kP);      // damaged on the way
  refuse(push_of(1, 0, 1), 77, kQ);      // not the source
  refuse(push_of(1, 0, 1, 8), 77, kP);   // another reservation's landing
  refuse(push_of(1, 2, 0), 77, kP);      // no such block
  refuse(push_of(1, 0, 2), 77, kP);      // no such layer group
  refuse(push_of(1, 0, 1), 77, {"p", 4});  // the source, started anew
  Commit other = commit_of(t.state, 1, 5);
  other.num_parts += 1;
  t.out.clear();
  t.target.on_commit(other, kP, t.out);
  CHECK(find<Stale>(t.out));
}

TEST_CASE("Reserve of a newer attempt: a filling target keeps what came, a decoding one goes on") {
  FilledTarget t;
  t.push(0, 0);
  SUBCASE("filling") {
    t.target.on_commit(commit_of(t.state, 1, 5), kP, t.out);
    t.out.clear();
    t.target.on_reserve(reserve_for(t.state, 2, kQ), 10, t.out);
    CHECK(find<ReserveOk>(t.out)->have.count() == 1);
    t.out.clear();
    t.target.on_push(push_of(1, 0, 1), 77, kP, t.out);  // the old source's late frame
    CHECK(find<Stale>(t.out)->newest == 2);
    for (uint32_t part = 1; part < 4; ++part) {
      t.target.on_push(push_of(2, part / 2, part % 2, 10), 77, kQ, t.out);
    }
    CHECK(t.target.state() == Target::State::kFilling);  // the old attempt's commit is void
    t.target.on_commit(commit_of(t.state, 2, 6), kQ, t.out);
    CHECK(t.target.state() == Target::State::kDecoding);
  }
  SUBCASE("decoding") {
    t.fill();
    t.target.on_commit(commit_of(t.state, 1, 5), kP, t.out);
    std::vector<TokenEntry> batch;
    t.target.on_tokens({{kRequest, 0, 0, 1, 6, -0.5f, Finish::kNone, 3, {{6, -0.5f}, {7, -1.5f}}}}, batch, t.out);
    t.out.clear();
    t.target.on_reserve(reserve_for(state_with(20, {{5}}), 2, kQ), 10, t.out);
    CHECK(find<Running>(t.out)->attempt == 2);
    REQUIRE(find<TokenBatch>(t.out)->entries.size() == 1);
    CHECK(find<TokenBatch>(t.out)->entries[0].index == 1);
    CHECK(find<TokenBatch>(t.out)->entries[0].attempt == 2);
    CHECK(find<TokenBatch>(t.out)->entries[0].logprob == -0.5f);  // told again as it was told
    CHECK(find<TokenBatch>(t.out)->entries[0].rank == 3);
    CHECK(find<TokenBatch>(t.out)->entries[0].top.size() == 2);
    CHECK(!t.target.is_mirrored());
  }
  SUBCASE("an older or equal one changes nothing") {
    t.out.clear();
    t.target.on_reserve(reserve_for(t.state, 1), 11, t.out);
    CHECK(t.out.empty());
    CHECK(t.target.landing() == 9);
  }
}

TEST_CASE("a superseded decode ends when its holder says so, and only then") {
  FilledTarget t;
  t.fill();
  t.target.on_commit(commit_of(t.state, 1, 5), kP, t.out);
  t.target.on_stale({kRequest, 1, 2}, kQ, t.out);  // not the holder
  CHECK(t.target.state() == Target::State::kDecoding);
  t.out.clear();
  SUBCASE("a newer attempt") {
    t.target.on_stale({kRequest, 1, 2}, kP, t.out);
    CHECK(t.target.state() == Target::State::kEnded);
    CHECK(find<StopDecode>(t.out));
  }
  SUBCASE("the holder knows nothing: unprotected, but alive") {
    t.target.on_stale({kRequest, 1, 0}, kP, t.out);
    CHECK(t.target.state() == Target::State::kDecoding);
    CHECK(!t.target.is_mirrored());
  }
}

TEST_CASE("the source pushes what is computed and wanted, then commits, and ends in an ack or a report") {
  const RequestState state = state_with(20, {{}});
  PartSet have(4);
  have.add(1);
  Actions out;
  Source source({kRequest, 3, kD, 9, 5, have, state, 0, 0, ""}, kP, 16, 2, 0);
  source.begin(out);
  CHECK(find<BeginPrefill>(out));
  out.clear();
  for (uint32_t part = 0; part < 4; ++part) source.on_computed(part / 2, part % 2, out);
  source.on_computed(0, 0, out);
  CHECK(out.size() == 3);  // one is there already, one came twice
  out.clear();
  source.on_sampled({{{}, 0, 0, 0, 8, 0, Finish::kNone}}, 100 * kMs, kTiming, 1000 * kMs, out);
  CHECK(find<First>(out)->entry.attempt == 3);
  CHECK(find<Commit>(out)->num_parts == 4);
  CHECK(source.state() == Source::State::kAwaitAck);
  out.clear();
  SUBCASE("ack") {
    source.on_commit_ack(2);
    CHECK(source.state() == Source::State::kAwaitAck);
    source.on_commit_ack(3);
    CHECK(source.state() == Source::State::kDone);
    source.on_connection_lost(kD, out);
    CHECK(out.empty());
  }
  SUBCASE("the connection breaks") {
    source.on_connection_lost(kQ, out);
    CHECK(out.empty());
    source.on_connection_lost(kD, out);
    CHECK(find<XferFailed>(out)->peer == kD);
  }
  SUBCASE("the target refuses") {
    source.on_stale({kRequest, 2, 3}, out);  // an older attempt's answer
    CHECK(out.empty());
    source.on_stale({kRequest, 3, 4}, out);
    CHECK(find<XferFailed>(out));
  }
  SUBCASE("no answer") {
    source.on_tick(1400 * kMs - 1, out);
    CHECK(out.empty());
    source.on_tick(1400 * kMs, out);
    CHECK(find<XferFailed>(out));
    CHECK(source.state() == Source::State::kFailed);
  }
}

TEST_CASE("a hand-off to the node itself moves nothing") {
  const RequestState state = state_with(20, {{3}});
  Actions out;
  Source source({kRequest, 3, kP, 9, 5, PartSet(), state, 0, 0, ""}, kP, 16, 2, 0);
  for (uint32_t part = 0; part < 4; ++part) source.on_computed(part / 2, part % 2, out);
  source.on_sampled({{{}, 0, 0, 1, 8, 0, Finish::kNone}}, 0, kTiming, 0, out);
  CHECK(!find<PushPart>(out));
  CHECK(!find<Commit>(out));
  Target target(reserve_for(state, 3, kP), kP, 9, 5, PartSet(4), out);
  target.on_local_commit(source.make_commit(), out);
  CHECK(target.state() == Target::State::kDecoding);
  CHECK(!target.is_mirrored());
}

TEST_CASE("the holder appends only its own attempt's frames, in order, and cuts by content") {
  Holder holder(kRequest, 1);
  CHECK(holder.pin(1, state_with(4, {{}})));
  holder.computed(state_with(4, {{}}));
  CHECK(holder.held(0) == 4);
  Actions out;
  holder.on_mirror({kRequest, 1, 0, 4, {10, 11}, {}}, false, kD, out);
  CHECK(holder.held(0) == 6);
  CHECK(find<MirrorAck>(out)->upto == 6);
  out.clear();
  holder.on_mirror({kRequest, 1, 0, 7, {12}, {}}, false, kD, out);  // a gap: told how far it is
  CHECK(find<MirrorAck>(out)->upto == 6);
  CHECK(!find<AppendMirror>(out));
  out.clear();
  holder.on_mirror({kRequest, 1, 0, 6, {12}, {}}, true, kD, out);  // a job of its own has the blocks
  CHECK(!find<AppendMirror>(out));
  CHECK(!holder.pin(1, state_with(4, {{}})));  // not newer

  SUBCASE("a newer attempt with equal tokens keeps them, and fences the old frames") {
    CHECK(holder.pin(2, state_with(4, {{10, 99, 12}})));
    CHECK(holder.held(0) == 5);  // 11 is not 99
    out.clear();
    holder.on_mirror({kRequest, 1, 0, 5, {11}, {}}, false, kD, out);
    CHECK(find<Stale>(out)->newest == 2);
    CHECK(holder.held(0) == 5);
  }
  SUBCASE("another prompt keeps only what is equal") {
    RequestState other = state_with(4, {{10}});
    other.prompt[2] = 77;
    CHECK(holder.pin(2, other));
    CHECK(holder.held(0) == 2);
  }
  SUBCASE("frames of an attempt it does not know yet") {
    out.clear();
    holder.on_mirror({kRequest, 5, 0, 6, {12}, {}}, false, kD, out);
    CHECK(find<MirrorStop>(out)->attempt == 5);
    CHECK(holder.held(0) == 6);
  }
  SUBCASE("release up to an attempt") {
    holder.on_release(0);
    CHECK(holder.is_pinned());
    holder.on_release(1);
    CHECK(!holder.is_pinned());
  }
}

TEST_CASE("mirror frames merge under back-pressure and start where the holder is") {
  MirrorSender sender;
  sender.start(kP, {0}, {95});
  Actions out;
  const auto tokens_at = [](uint32_t, uint32_t p) { return static_cast<TokenId>(p); };
  bool is_catch_up = false;  // all of the last ones
  const auto frames = [&] {
    std::vector<std::pair<uint32_t, size_t>> sent;  // from, how many
    is_catch_up = true;
    for (const Action& action : out) {
      const Mirror& frame = std::get<SendMirror>(action).frame;
      sent.emplace_back(frame.from_position, frame.tokens.size());
      is_catch_up &= std::get<SendMirror>(action).is_catch_up;
    }
    out.clear();
    return sent;
  };
  using Frames = std::vector<std::pair<uint32_t, size_t>>;
  sender.poll(kRequest, 1, {100}, tokens_at, out);
  CHECK(frames() == Frames{{0, 0}, {0, 64}});  // a question, and what is there
  CHECK(is_catch_up);
  for (uint32_t written = 101; written < 110; ++written) sender.poll(kRequest, 1, {written}, tokens_at, out);
  CHECK(frames().empty());  // two are in flight
  sender.on_ack(kP, {kRequest, 1, 0, 90});  // the holder has 90 already, so it will not take the frame from 0
  sender.poll(kRequest, 1, {110}, tokens_at, out);
  CHECK(frames() == Frames{{64, 46}});
  CHECK(is_catch_up);
  sender.on_ack(kP, {kRequest, 1, 0, 90});
  sender.on_ack(kP, {kRequest, 1, 0, 90});
  sender.poll(kRequest, 1, {111}, tokens_at, out);
  CHECK(frames() == Frames{{90, 21}});
  CHECK(sender.lag({111}) == 21);
  sender.on_ack(kQ, {kRequest, 1, 0, 111});  // not the holder
  CHECK(sender.lag({111}) == 21);
  sender.on_ack(kP, {kRequest, 1, 0, 111});
  CHECK(sender.lag({111}) == 0);
  sender.poll(kRequest, 1, {112}, tokens_at, out);
  CHECK(frames() == Frames{{111, 1}});
  CHECK(!is_catch_up);  // the holder has what there was when it was named
}

TEST_CASE("the field that forbids a hand-off is named; parallelism does not") {
  Fingerprint a{"w", "l", "bf16", "n", 16, 30, 3, 1, 1};
  Fingerprint b = a;
  b.tp = 3;
  CHECK(differing_field(a, b).empty());
  b.numerics = "other";
  CHECK(differing_field(a, b) == "numerics");
  b = a;
  b.block_size = 32;
  CHECK(differing_field(a, b) == "block_size");
}

}  // namespace
}  // namespace tandem::handoff
