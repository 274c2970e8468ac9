#pragma once
// BatchWindow: prompts are gathered for a moment so that one step takes many. Open only while something else runs
// (the device never idles for it) and what waits would not fill a step.

#include <cstdint>

namespace tandem::sched {

struct BatchWindow {
  int64_t window_ns = 0;

  struct View {
    int64_t now_ns = 0;
    int64_t oldest_arrival_ns = 0;  // of those waiting
    bool is_running = false;        // any sequence is
    bool is_full = false;           // what waits fills a step, or the free seats
  };

  bool is_open(const View& view) const {
    return view.is_running && !view.is_full && view.now_ns - view.oldest_arrival_ns < window_ns;
  }
};

}  // namespace tandem::sched
