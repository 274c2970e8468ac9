#pragma once
// SupervisorChannel: what this process says to the supervisor that started it, if one did (cluster/supervisor): a beat
// each half second, from a thread of its own, and lines in between.

#include <functional>
#include <memory>
#include <string>

namespace tandem::apps {

class SupervisorChannel {
 public:
  // Beats from now on. Make it after the SignalWatcher.
  SupervisorChannel();
  ~SupervisorChannel();

  // Any thread; the line goes out at once. Nothing without a supervisor.
  void say(std::string line);
  // Runs `look` before each beat; what it returns is said with it. It should go through the threads whose silence is to
  // count as this process's own. Empty: none; returns when the last one has ended.
  void look_before_beats(std::function<std::string()> look);

 private:
  struct State;
  std::unique_ptr<State> state_;  // null: no supervisor
};

}  // namespace tandem::apps
