#pragma once
// UnixProcesses: child processes of this program by fork and exec, watched through pidfds.
//
// Each child has a process group of its own, so that a Ctrl-C in the terminal reaches the supervisor alone, and is
// killed by the kernel when the thread that started it ends. Its standard input is empty; on the descriptor that the
// variable kChannelVariable names it speaks to its supervisor.

#include <map>
#include <memory>
#include <string>

#include "cluster/supervisor/processes.h"
#include "net/transport/owned_fd.h"

namespace tandem::supervisor {

inline constexpr const char* kChannelVariable = "TANDEM_SUPERVISOR_FD";

class UnixProcesses final : public Processes {
 public:
  // `program` is a path; it sees its file's name as its own.
  explicit UnixProcesses(std::string program) : program_(std::move(program)) {}
  ~UnixProcesses() override;  // kills what still runs

  Result<ProcessId> start(const ChildSpec& spec) override;
  int pid(ProcessId process) const override { return running_.at(process).pid; }
  void send_signal(ProcessId process, int signal) override;
  std::vector<ProcessEvent> wait(double timeout_s) override;

 private:
  struct Running {
    int pid = 0;
    transport::OwnedFd handle;   // pidfd: the pid may be another process's by the time that a signal is sent
    transport::OwnedFd channel;  // read end
    std::string unread;          // a line's beginning
  };
  void read_channel(ProcessId id, Running& running, std::vector<ProcessEvent>& events) const;
  static std::optional<ProcessExit> reap(const Running& running);

  const std::string program_;
  std::map<ProcessId, Running> running_;
  uint64_t next_ = 1;
};

}  // namespace tandem::supervisor
