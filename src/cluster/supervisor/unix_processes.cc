#include "cluster/supervisor/unix_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

extern char** environ;

namespace tandem::supervisor {
namespace {

using transport::OwnedFd;

constexpr int kChannelFd = 3;  // in the child
constexpr size_t kMaxLineBytes = 1 << 20;
constexpr int kCannotStart = 127;  // as a shell says it

Error system_error(const std::string& what) { return {ErrorCode::kUnavailable, what + ": " + strerror(errno)}; }

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

bool has_same_name(const std::string& a, const std::string& b) {
  const size_t end = a.find('=');
  return end != std::string::npos && a.compare(0, end + 1, b, 0, end + 1) == 0;
}

// This process's variables with those of `more` in place of their namesakes.
std::vector<std::string> environment_with(std::vector<std::string> more) {
  more.push_back(std::string(kChannelVariable) + "=" + std::to_string(kChannelFd));
  std::vector<std::string> all;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (std::none_of(more.begin(), more.end(), [&](const std::string& own) { return has_same_name(own, text); })) {
      all.push_back(text);
    }
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// All that the child needs, made before the fork: after it only async-signal-safe calls are allowed.
struct Launch {
  std::string program;
  std::vector<std::string> arguments, environment;
  std::vector<char*> argument_pointers, environment_pointers;
  cpu_set_t cores;
  bool is_pinned = false;
  int null_fd = -1, log_fd = -1, channel_fd = -1;
  pid_t supervisor = 0;
};

[[noreturn]] void become_child(const Launch& launch) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launch.supervisor) _exit(kCannotStart);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  if (launch.is_pinned) sched_setaffinity(0, sizeof launch.cores, &launch.cores);
  // Moved out of the way first, so that no copy falls on another's number.
  const int null_fd = fcntl(launch.null_fd, F_DUPFD, kChannelFd + 1);
  const int log_fd = fcntl(launch.log_fd, F_DUPFD, kChannelFd + 1);
  const int channel_fd = fcntl(launch.channel_fd, F_DUPFD, kChannelFd + 1);
  if (dup2(null_fd, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0 ||
      dup2(channel_fd, kChannelFd) < 0) {
    _exit(kCannotStart);
  }
  close_range(kChannelFd + 1, ~0U, 0);
  execve(launch.program.c_str(), launch.argument_pointers.data(), launch.environment_pointers.data());
  _exit(kCannotStart);
}

Launch launch_of(const std::string& program, const ChildSpec& spec) {
  Launch launch;
  launch.program = program;
  launch.arguments = {program.substr(program.rfind('/') + 1)};
  launch.arguments.insert(launch.arguments.end(), spec.arguments.begin(), spec.arguments.end());
  launch.environment = environment_with(spec.variables);
  launch.argument_pointers = pointers_to(launch.arguments);
  launch.environment_pointers = pointers_to(launch.environment);
  CPU_ZERO(&launch.cores);
  for (const int core : spec.cores) CPU_SET(core, &launch.cores);
  launch.is_pinned = !spec.cores.empty();
  launch.supervisor = getpid();
  return launch;
}

}  // namespace

UnixProcesses::~UnixProcesses() {
  for (const auto& [id, running] : running_) {
    send_signal(id, SIGKILL);
    siginfo_t ignored;
    while (waitid(P_PID, static_cast<id_t>(running.pid), &ignored, WEXITED) < 0 && errno == EINTR) {
    }
  }
}

Result<ProcessId> UnixProcesses::start(const ChildSpec& spec) {
  const OwnedFd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd) return system_error("/dev/null");
  const OwnedFd log_fd(open(spec.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log_fd) return system_error(spec.log_path);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("pipe");
  Running running;
  running.channel = OwnedFd(ends[0]);
  const OwnedFd write_end(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);

  Launch launch = launch_of(program_, spec);
  launch.null_fd = null_fd.get();
  launch.log_fd = log_fd.get();
  launch.channel_fd = write_end.get();
  const pid_t pid = fork();
  if (pid < 0) return system_error("fork");
  if (pid == 0) become_child(launch);
  running.pid = pid;
  // Nobody else waits for this child, so the pid is its own until reap().
  running.handle = OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!running.handle) {
    const Error error = system_error("pidfd_open");
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return error;
  }
  const ProcessId id{next_++};
  running_.emplace(id, std::move(running));
  return id;
}

void UnixProcesses::send_signal(ProcessId process, int signal) {
  const auto found = running_.find(process);
  if (found != running_.end()) syscall(SYS_pidfd_send_signal, found->second.handle.get(), signal, nullptr, 0);
}

void UnixProcesses::read_channel(ProcessId id, Running& running, std::vector<ProcessEvent>& events) const {
  if (!running.channel) return;
  char buffer[16 << 10];
  ssize_t got = 0;
  while ((got = read(running.channel.get(), buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) running.unread.append(buffer, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end = 0; (end = running.unread.find('\n', begin)) != std::string::npos; begin = end + 1) {
      events.push_back({id, running.unread.substr(begin, end - begin), {}});
    }
    running.unread.erase(0, begin);
    if (running.unread.size() > kMaxLineBytes) running.unread.clear();
  }
  if (got == 0) running.channel.reset();  // closed: it would be readable for ever
}

std::optional<ProcessExit> UnixProcesses::reap(const Running& running) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(running.pid), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return {};
  if (info.si_code == CLD_EXITED) return ProcessExit{info.si_status, 0};
  return ProcessExit{0, info.si_status};
}

std::vector<ProcessEvent> UnixProcesses::wait(double timeout_s) {
  std::vector<pollfd> polled;
  for (const auto& [id, running] : running_) {
    polled.push_back({running.handle.get(), POLLIN, 0});
    if (running.channel) polled.push_back({running.channel.get(), POLLIN, 0});
  }
  const int timeout_ms = static_cast<int>(std::ceil(std::clamp(timeout_s, 0.0, 3600.0) * 1e3));
  poll(polled.data(), polled.size(), timeout_ms);
  std::vector<ProcessEvent> events;
  for (auto next = running_.begin(); next != running_.end();) {
    auto& [id, running] = *next;
    const std::optional<ProcessExit> exit = reap(running);
    read_channel(id, running, events);  // after reap(): what it said last comes before its end
    if (exit) events.push_back({id, {}, exit});
    next = exit ? running_.erase(next) : std::next(next);
  }
  return events;
}

}  // namespace tandem::supervisor
