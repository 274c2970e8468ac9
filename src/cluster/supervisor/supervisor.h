#pragma once
// Supervisor: keeps a set of child processes alive: restarts what ends by a fault, after pauses that grow; kills what
// is silent; ends all in order. Policy only: processes and time are given to it.
//
// A child speaks to its supervisor in lines: "beat" at least each second, "ready" with an optional text once it
// serves, and others, which are kept for whoever shows them. One thread.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/supervisor/processes.h"

namespace tandem::supervisor {

struct SupervisorConfig {
  int64_t silence_ns = 5'000'000'000;       // without a line: killed
  int64_t own_stall_ns = 1'000'000'000;     // that this process itself was late: nobody's silence meanwhile counts
  int64_t first_pause_ns = 250'000'000;     // before a restart; doubles with each fault
  int64_t longest_pause_ns = 10'000'000'000;
  int64_t settled_ns = 60'000'000'000;      // ready for so long: pauses begin anew
  uint32_t max_failed_starts = 3;           // of a child that never was ready: then all ends, with an Error
};

enum class ChildPhase : uint8_t {
  kStarting,
  kReady,
  kPausing,  // it ended and will be started again
  kLeft,     // it ended by itself with code 0 and is not started again
  kEnding,   // asked to
  kEnded,    // with the cluster
};
const char* phase_name(ChildPhase phase);

struct Child {
  ChildSpec spec;
  ChildPhase phase = ChildPhase::kPausing;
  std::optional<ProcessId> process;  // while there is one
  int pid = 0;                       // of the newest process
  uint32_t num_restarts = 0;
  std::string ready_text;
  std::map<std::string, std::string> said;  // other lines: the first word to the newest rest

  uint32_t num_faults = 0;  // since it was settled
  bool was_ready = false;   // in any of its lives
  bool is_killed_silent = false;
  int64_t heard_ns = 0, ready_ns = 0;
  int64_t due_ns = 0;  // of the restart, or of the kill while it ends
};

class Supervisor {
 public:
  // Borrows both.
  Supervisor(SupervisorConfig config, std::vector<ChildSpec> children, Processes& processes, const Clock& clock);

  // Waits for news for at most `max_wait_s`, then does what is due. The first one starts the children.
  void step(double max_wait_s);
  // Asks the children to end, stage by stage. Until its stage comes a child is still restarted.
  void begin_stop();

  bool is_stopping() const { return is_stopping_; }
  bool is_done() const;  // no process is left, and none will be started
  bool are_all_ready() const;
  const std::vector<Child>& children() const { return children_; }
  Child* find(const std::string& name);
  // Why the cluster ends although nobody asked.
  const std::optional<Error>& failure() const { return failure_; }
  // What happened since the last call, a line each: "d1 was ended by signal 9; starts again in 0.25 s".
  std::vector<std::string> take_news() { return std::exchange(news_, {}); }

 private:
  void start(Child& child);
  void on_line(Child& child, const std::string& line);
  void on_exit(Child& child, const ProcessExit& exit);
  void on_fault(Child& child, const std::string& what);
  void look_after(Child& child);
  void stop_stage();
  void ask_to_end(Child& child);
  double wait_s(double max_wait_s) const;
  void forgive_own_stall(double waited_s);

  const SupervisorConfig config_;
  Processes& processes_;
  const Clock& clock_;
  std::vector<Child> children_;
  std::map<ProcessId, size_t> by_process_;
  std::vector<std::string> news_;
  std::optional<Error> failure_;
  int64_t looked_ns_;  // when it last waited for news
  bool is_stopping_ = false;
};

}  // namespace tandem::supervisor
