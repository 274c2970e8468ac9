#include "cluster/mocker/sim_net.h"

#include <algorithm>

namespace tandem::mocker {

void EventQueue::run_until(Nanos end, const std::function<bool()>& is_over) {
  while (!events_.empty() && events_.top().when <= end && !is_over()) {
    Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    clock_.set_ns(event.when);
    ++num_run_;
    event.what();
  }
}

void SimNet::send(const ChannelKey& channel, std::function<void()> deliver) {
  Channel& c = channels_[channel];
  // Most messages are quick, some are as late as the configuration allows.
  const Nanos most = random_.chance(0.1) ? config_.delay_max : config_.delay_min * 5;
  const Nanos ready =
      std::max(c.last_ready, events_.now() + random_.between(config_.delay_min, std::max(config_.delay_min, most)));
  c.last_ready = ready;
  c.items.push_back({ready, std::move(deliver)});
  events_.at(ready, [this, channel] { pump(channel); });
}

void SimNet::pump(const ChannelKey& key) {
  for (;;) {
    const auto it = channels_.find(key);
    if (it == channels_.end() || it->second.items.empty()) return;
    if (it->second.items.front().ready > events_.now() || !may_deliver(key)) return;
    const std::function<void()> deliver = std::move(it->second.items.front().deliver);
    it->second.items.pop_front();
    deliver();  // may send, and may erase the channel
  }
}

void SimNet::wake_all() {
  for (const auto& [key, channel] : channels_) {
    if (channel.items.empty()) continue;
    events_.after(0, [this, waiting = key] { pump(waiting); });
  }
}

}  // namespace tandem::mocker
