#pragma once
// SimNet: virtual time and the network of a simulated cluster. Channels are ordered; between channels anything may
// overtake. A link that is cut holds a session's bytes back, as TCP does, and breaks data connections. From one seed
// the same run comes out again.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/handoff/ids.h"

namespace tandem::mocker {

using handoff::Nanos;

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x123456789ABCDEFull) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  uint64_t below(uint64_t limit) { return (next() >> 11) % limit; }
  Nanos between(Nanos low, Nanos high) {  // both included
    return low + static_cast<Nanos>(below(static_cast<uint64_t>(high - low + 1)));
  }
  bool chance(double p) { return static_cast<double>(below(1u << 30)) < p * (1u << 30); }

 private:
  uint64_t state_;
};

// What happens when, in order of time and then of asking.
class EventQueue {
 public:
  void at(Nanos when, std::function<void()> what) {
    events_.push({std::max(when, clock_.now_ns()), next_++, std::move(what)});
  }
  void after(Nanos delay, std::function<void()> what) { at(clock_.now_ns() + delay, std::move(what)); }
  Nanos now() const { return clock_.now_ns(); }
  // Runs what is due until `end`, or until `is_over`.
  void run_until(Nanos end, const std::function<bool()>& is_over);
  uint64_t num_run() const { return num_run_; }

 private:
  struct Event {
    Nanos when;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : number > other.number;
    }
  };
  ManualClock clock_;
  std::priority_queue<Event> events_;
  uint64_t next_ = 0, num_run_ = 0;
};

// One direction of one connection.
struct ChannelKey {
  enum Kind : uint8_t { kToNode, kToGateway, kData, kLocal };  // kLocal: what a node's own kernel tells it
  Kind kind = kLocal;
  size_t from = 0, to = 0;
  uint64_t connection = 0;
  auto operator<=>(const ChannelKey&) const = default;
};

struct Channel {
  struct Item {
    Nanos ready = 0;
    std::function<void()> deliver;
  };
  std::deque<Item> items;
  Nanos last_ready = 0;
};

struct NetConfig {
  Nanos delay_min = 20'000, delay_max = 3'000'000;
  double p_drop = 0, p_duplicate = 0, p_corrupt = 0;  // of data frames; a drop breaks the connection
};

class SimNet {
 public:
  SimNet(EventQueue& events, SimRandom& random, const NetConfig& config)
      : events_(events), random_(random), config_(config) {}

  // May the channel deliver now? Set by the cluster: the receiver runs and the link is up.
  std::function<bool(const ChannelKey&)> may_deliver;

  // `deliver` is called after all that was sent on the channel before.
  void send(const ChannelKey& channel, std::function<void()> deliver);
  // Delivers what waited, after a link healed or a process went on.
  void wake_all();
  void erase(const ChannelKey& channel) { channels_.erase(channel); }  // what is in flight is lost
  const NetConfig& config() const { return config_; }

 private:
  void pump(const ChannelKey& key);

  EventQueue& events_;
  SimRandom& random_;
  NetConfig config_;
  std::map<ChannelKey, Channel> channels_;
};

}  // namespace tandem::mocker
