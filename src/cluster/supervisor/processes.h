#pragma once
// Processes: child processes as the Supervisor needs them: start, signal, and what they say and how they end. An
// interface, so that the Supervisor's policy is tested without any (scripted_processes_for_test.h).
//
// One thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::supervisor {

struct ChildSpec {
  std::string name;                    // unique among the children
  std::vector<std::string> arguments;  // of the program, without its own name
  std::vector<std::string> variables;  // NAME=value, beside those of this process
  std::vector<int> cores;              // may run on these only; empty: on any
  std::string log_path;                // its stdout and stderr are appended there
  bool may_leave = false;              // with code 0 it has ended for good; else it is started again
  uint32_t stop_stage = 0;             // children of a lower stage end before those of a higher one are asked to
  int64_t stop_grace_ns = 5'000'000'000;  // from being asked to end to being killed
};

enum class ProcessId : uint64_t {};  // never given twice

struct ProcessExit {
  int code = 0;    // of exit(), when signal = 0
  int signal = 0;  // that ended it
};

struct ProcessEvent {
  ProcessId process{};
  std::string line;                 // that it said to its supervisor, without the line's end; empty with `exit`
  std::optional<ProcessExit> exit;  // nothing of this process comes after it
};

class Processes {
 public:
  virtual ~Processes() = default;

  // kUnavailable: no process, or no log file.
  virtual Result<ProcessId> start(const ChildSpec& spec) = 0;
  // Of one that has not been reported as ended.
  virtual int pid(ProcessId process) const = 0;
  virtual void send_signal(ProcessId process, int signal) = 0;
  // What has happened; waits for the first for at most `timeout_s`.
  virtual std::vector<ProcessEvent> wait(double timeout_s) = 0;
};

}  // namespace tandem::supervisor
