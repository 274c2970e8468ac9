#include "cluster/supervisor/unix_processes.h"

#include <doctest/doctest.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <sstream>

namespace tandem::supervisor {
namespace {

// Runs `sh -c SCRIPT`, gathers what comes of it.
struct Shell {
  UnixProcesses processes{"/bin/sh"};
  std::string folder = make_folder();
  std::vector<ProcessEvent> events;

  static std::string make_folder() {
    std::string path = "/tmp/tandem-processes-XXXXXX";
    REQUIRE(mkdtemp(path.data()) != nullptr);
    return path;
  }
  ~Shell() {
    unlink((folder + "/log").c_str());
    rmdir(folder.c_str());
  }
  ProcessId start(const std::string& script, std::vector<std::string> variables = {}) {
    ChildSpec spec;
    spec.name = "child";
    spec.arguments = {"-c", script};
    spec.variables = std::move(variables);
    spec.log_path = folder + "/log";
    auto started = processes.start(spec);
    REQUIRE(started);
    events.clear();
    return started.value();
  }
  void until(const std::function<bool()>& is_enough) {
    while (!is_enough()) {
      for (ProcessEvent& event : processes.wait(10)) events.push_back(std::move(event));
    }
  }
  void until_exit() {
    until([&] { return !events.empty() && events.back().exit; });
  }
  std::string log() const {
    std::stringstream text;
    text << std::ifstream(folder + "/log").rdbuf();
    return text.str();
  }
};

TEST_CASE("lines come whole and in order, then the exit; stdout and stderr go to the log, across restarts") {
  Shell shell;
  const ProcessId id = shell.start(
      "echo one; echo two >&2; printf 'beat\\nrea' >&$TANDEM_SUPERVISOR_FD; echo 'dy 127.0.0.1:1' >&3; exit 7");
  shell.until_exit();
  REQUIRE(shell.events.size() == 3);
  CHECK(shell.events[0].line == "beat");
  CHECK(shell.events[1].line == "ready 127.0.0.1:1");
  CHECK(shell.events[2].process == id);
  CHECK(shell.events[2].exit->code == 7);
  CHECK(shell.events[2].exit->signal == 0);
  shell.start("echo three");
  shell.until_exit();
  CHECK(shell.log() == "one\ntwo\nthree\n");
}

TEST_CASE("a child has its variables beside ours, no input, its own group, no other open file, no blocked signal") {
  Shell shell;
  setenv("TANDEM_TEST_OURS", "a", 1);
  setenv("TANDEM_TEST_BOTH", "b", 1);
  const int inherited = fcntl(STDIN_FILENO, F_DUPFD, 40);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  shell.start(
      "echo $TANDEM_TEST_OURS $TANDEM_TEST_BOTH; cat; echo $(($(ps -o pgid= -p $$) == $$)); "
      "for fd in /proc/$$/fd/*; do echo ${fd##*/}; done; grep SigBlk /proc/self/status",
      {"TANDEM_TEST_BOTH=c"});
  sigprocmask(SIG_SETMASK, &before, nullptr);
  shell.until_exit();
  close(inherited);
  // 4 is the shell's, for the folder that it lists.
  CHECK(shell.log() == "a c\n1\n0\n1\n2\n3\n4\nSigBlk:\t0000000000000000\n");
  unsetenv("TANDEM_TEST_OURS");
  unsetenv("TANDEM_TEST_BOTH");
}

TEST_CASE("a signal reaches the child, and how it ended is told") {
  Shell shell;
  const ProcessId id = shell.start("trap 'exit 5' TERM; echo ready >&3; while :; do sleep 0.01; done");
  shell.until([&] { return !shell.events.empty(); });
  shell.processes.send_signal(id, SIGTERM);
  shell.until_exit();
  CHECK(shell.events.back().exit->code == 5);
  const ProcessId second = shell.start("echo ready >&3; exec sleep 1000");
  shell.until([&] { return !shell.events.empty(); });
  shell.processes.send_signal(second, SIGKILL);
  shell.until_exit();
  CHECK(shell.events.back().exit->signal == SIGKILL);
  shell.processes.send_signal(second, SIGKILL);  // nobody's by now: ignored
}

TEST_CASE("a child that closes its channel lives on; a long text without an end of line does not grow for ever") {
  Shell shell;
  const ProcessId id = shell.start("exec 3>&-; sleep 0.05; exit 3");
  shell.until_exit();
  CHECK(shell.events.size() == 1);
  CHECK(shell.events[0].process == id);
  CHECK(shell.events[0].exit->code == 3);
  shell.start("head -c 3000000 /dev/zero >&3; echo >&3; echo beat >&3");
  shell.until_exit();
  CHECK(shell.events[shell.events.size() - 2].line == "beat");
  for (const ProcessEvent& event : shell.events) CHECK(event.line.size() <= (1 << 20) + 1);
}

TEST_CASE("a program or a log that is not there is said") {
  Shell shell;
  ChildSpec spec;
  spec.log_path = shell.folder + "/no/log";
  auto refused = shell.processes.start(spec);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find(spec.log_path) == 0);
  UnixProcesses nothing("/no/such/program");
  spec.log_path = "/dev/null";
  REQUIRE(nothing.start(spec));
  std::vector<ProcessEvent> events;
  while (events.empty()) events = nothing.wait(10);
  CHECK(events[0].exit->code == 127);
}

TEST_CASE("children die with their supervisor's process, and with the object") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    UnixProcesses processes("/bin/sh");
    ChildSpec spec;
    spec.arguments = {"-c", "echo ready >&3; exec sleep 1000"};
    spec.log_path = "/dev/null";
    const auto id = processes.start(spec);
    while (processes.wait(10).empty()) {
    }
    const int pid = id ? processes.pid(id.value()) : 0;
    if (write(ends[1], &pid, sizeof pid) < 0) _exit(1);
    kill(getpid(), SIGKILL);  // no destructor runs
  }
  int pid = 0;
  REQUIRE(read(ends[0], &pid, sizeof pid) == sizeof pid);
  CHECK(pid > 0);
  waitpid(supervisor, nullptr, 0);
  // It is a child of init by now, which reaps it; a zombie still has its pid.
  const auto is_running = [](int whose) {
    std::string state;
    std::ifstream status("/proc/" + std::to_string(whose) + "/stat");
    for (int field = 0; field < 3; ++field) status >> state;
    return bool(status) && state != "Z" && state != "X";
  };
  while (is_running(pid)) usleep(1000);
  {
    Shell shell;
    pid = shell.processes.pid(shell.start("exec sleep 1000"));
  }
  CHECK(kill(pid, 0) == -1);
  CHECK(errno == ESRCH);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace tandem::supervisor
