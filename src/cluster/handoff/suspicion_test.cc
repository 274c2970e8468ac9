#include "cluster/handoff/suspicion.h"

#include <doctest/doctest.h>

#include "cluster/handoff/bad_pairs.h"
#include "cluster/handoff/node_sessions.h"
#include "cluster/handoff/token_judge.h"

namespace tandem::handoff {
namespace {

const Timing kTiming;

Nanos suspect_after_gaps(Nanos usual, Nanos rare, int num_rare) {
  BeatGaps gaps;
  Nanos now = 0;
  gaps.heard(now);
  for (int i = 0; i < 3000; ++i) gaps.heard(now += i % 1000 < num_rare ? rare : usual);
  return gaps.suspect_after(kTiming);
}

TEST_CASE("suspicion adapts to the session's own beats, between its bounds") {
  CHECK(suspect_after_gaps(50 * kMs, 50 * kMs, 0) == 150 * kMs);
  CHECK(suspect_after_gaps(50 * kMs, 95 * kMs, 3) == 200 * kMs);   // 2 x the upper edge of [90, 100)
  CHECK(suspect_after_gaps(50 * kMs, 400 * kMs, 5) == 300 * kMs);
  CHECK(suspect_after_gaps(50 * kMs, 400 * kMs, 1) == 150 * kMs);  // one in a thousand is above p99.9
  CHECK(BeatGaps().suspect_after(kTiming) == 150 * kMs);
}

TEST_CASE("the observer's own stall counts only inside the window") {
  OwnStall stall;
  for (Nanos now = 0; now <= 1000 * kMs; now += 10 * kMs) stall.looked(now);
  CHECK(stall.largest_since(0) == 0);
  stall.looked(1400 * kMs);
  CHECK(stall.largest_since(900 * kMs) == 400 * kMs);
  CHECK(stall.largest_since(1300 * kMs) == 100 * kMs);
  CHECK(stall.largest_since(1400 * kMs) == 0);
}

TEST_CASE("when most busy sessions fall silent together the gateway blames itself") {
  CHECK(!is_own_fault({1, 1}));
  CHECK(is_own_fault({2, 2}));
  CHECK(is_own_fault({3, 2}));
  CHECK(!is_own_fault({4, 2}));
  CHECK(!is_own_fault({3, 1}));
}

TEST_CASE("a stuck engine is told from a slow one") {
  Beat beat;
  beat.step_predicted_ms = 100;
  beat.step_running_ms = 999;
  CHECK(!is_stuck(beat, kTiming));
  beat.step_running_ms = 1001;
  CHECK(is_stuck(beat, kTiming));
  beat.step_predicted_ms = 400;
  beat.step_running_ms = 1999;
  CHECK(!is_stuck(beat, kTiming));
  beat.step_running_ms = 2001;
  CHECK(is_stuck(beat, kTiming));
  CHECK(!is_stuck(beat, kTiming, 2));
}

TEST_CASE("a bad pair is avoided for 1 s, doubling to 30 s; failures of requests in flight together count once") {
  BadPairs pairs;
  Nanos now = 0;
  CHECK(!pairs.is_bad("p", "d", now));
  for (const Nanos expected : {1, 2, 4, 8, 16, 30, 30}) {
    pairs.failed("p", "d", now, kTiming);
    pairs.failed("p", "d", now, kTiming);
    CHECK(pairs.is_bad("p", "d", now + expected * 1000 * kMs - 1));
    CHECK(!pairs.is_bad("p", "d", now + expected * 1000 * kMs));
    now += expected * 1000 * kMs;
  }
  pairs.failed("p", "d", now, kTiming);
  CHECK(!pairs.is_bad("p", "e", now));
  pairs.worked("p", "d");
  pairs.failed("p", "d", now, kTiming);
  CHECK(!pairs.is_bad("p", "d", now + 1000 * kMs));
  pairs.forget("d");
  CHECK(!pairs.is_bad("p", "d", now));
}

TokenEntry entry(uint32_t choice, uint32_t index, TokenId token, Finish finish = Finish::kNone) {
  return {{}, 1, choice, index, token, 0, finish};
}

TEST_CASE("each index goes out once and in order, per choice; what comes again is compared") {
  TokenJudge judge(2);
  CHECK(judge.judge(entry(0, 0, 7)) == Verdict::kEmit);
  CHECK(judge.judge(entry(0, 0, 7)) == Verdict::kRepeated);
  CHECK(judge.judge(entry(0, 0, 8)) == Verdict::kMismatch);
  CHECK(judge.judge(entry(0, 2, 9)) == Verdict::kGap);
  CHECK(judge.judge(entry(1, 1, 9)) == Verdict::kGap);
  CHECK(judge.judge(entry(1, 0, 9, Finish::kStop)) == Verdict::kEmit);
  CHECK(judge.judge(entry(1, 1, 9)) == Verdict::kGap);  // after its end
  CHECK(judge.judge(entry(2, 0, 9)) == Verdict::kGap);  // no such choice
  CHECK(!judge.is_finished());
  CHECK(judge.judge(entry(0, 1, 9, Finish::kLength)) == Verdict::kEmit);
  CHECK(judge.is_finished());
}

TEST_CASE("a node serves one session per gateway, the newest") {
  NodeSessions sessions;
  const NodeRef gateway{"g", 1}, restarted{"g", 2};
  using Result = NodeSessions::HelloResult;
  CHECK(sessions.on_hello(gateway, {1, 5, 1}, 10, 0) == Result::kFirst);
  CHECK(sessions.heard("g", 10, 1) != nullptr);
  CHECK(sessions.on_hello(gateway, {1, 5, 2}, 11, 2) == Result::kReplaces);
  CHECK(sessions.heard("g", 10, 3) == nullptr);
  CHECK(sessions.on_hello(gateway, {1, 5, 1}, 12, 4) == Result::kRefused);
  CHECK(sessions.on_hello(restarted, {2, 5, 1}, 13, 5) == Result::kReplaces);
  CHECK(sessions.heard("g", 11, 6) == nullptr);
  CHECK(sessions.on_hello({"h", 9}, {9, 5, 1}, 14, 7) == Result::kFirst);
  CHECK(sessions.heard("h", 14, 1000 * kMs) != nullptr);
  CHECK(sessions.expire(5 + 2000 * kMs - 1, kTiming).empty());
  CHECK(sessions.expire(5 + 2000 * kMs, kTiming) == std::vector<std::string>{"g"});
  CHECK(sessions.heard("g", 13, 5 + 2000 * kMs) == nullptr);
  CHECK(sessions.all().size() == 1);
}

}  // namespace
}  // namespace tandem::handoff
