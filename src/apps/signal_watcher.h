#pragma once
// SignalWatcher: SIGINT and SIGTERM as something to wait for. The first one is reported; the second ends the process
// at once, with status 1.
//
// Make it before any other thread: it blocks the two signals, and later threads inherit that.

#include <memory>

namespace tandem::apps {

class SignalWatcher {
 public:
  SignalWatcher();
  ~SignalWatcher();

  // Until told so, the first signal ends the process as well: there is nothing to drain yet.
  void start_reporting();
  // Blocks until the first signal; false when `timeout_s` passed without one.
  bool wait(double timeout_s);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::apps
