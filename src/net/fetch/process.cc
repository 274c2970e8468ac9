#include "net/fetch/process.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

extern char** environ;

namespace tandem::fetch {
namespace {

constexpr size_t kMaxErrorBytes = 4096;

// The last bytes of all that comes, until the other end is closed.
std::string read_tail(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(fd, buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxErrorBytes) text.erase(0, text.size() - kMaxErrorBytes);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Status run_program(const std::vector<std::string>& arguments) {
  TANDEM_CHECK(!arguments.empty());
  int errors[2];
  if (pipe2(errors, O_CLOEXEC) != 0) return Error{ErrorCode::kInternal, std::string("pipe: ") + strerror(errno)};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(errors[1]);
  if (failed != 0) {
    close(errors[0]);
    return Error{failed == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInternal,
                 arguments[0] + ": " + strerror(failed)};
  }
  const std::string said = read_tail(errors[0]);
  close(errors[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Done{};
  const std::string how = WIFEXITED(status) ? "ended with code " + std::to_string(WEXITSTATUS(status))
                                            : "was ended by signal " + std::to_string(WTERMSIG(status));
  return Error{ErrorCode::kInternal, arguments[0] + " " + how + (said.empty() ? "" : ": " + said)};
}

}  // namespace tandem::fetch
