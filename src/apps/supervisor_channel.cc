#include "apps/supervisor_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "base/thread_safety.h"
#include "cluster/supervisor/unix_processes.h"

namespace tandem::apps {
namespace {

constexpr double kBeat_s = 0.5;

void write_line(int fd, std::string line) {
  line += '\n';
  for (size_t written = 0; written < line.size();) {
    const ssize_t count = write(fd, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the supervisor is gone, and this process will be in a moment
    written += static_cast<size_t>(count);
  }
}

}  // namespace

struct SupervisorChannel::State {
  explicit State(int its_fd) : fd(its_fd) {}

  const int fd;
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> lines GUARDED_BY(mutex);
  bool is_ending GUARDED_BY(mutex) = false;
  Mutex look_mutex;  // held while it runs
  std::function<std::string()> look GUARDED_BY(look_mutex);
  std::thread thread;

  std::string looked() {
    Lock lock(look_mutex);
    return look ? look() : std::string();
  }

  // Lines that wait; after kBeat_s, or at the end, those there are.
  std::vector<std::string> next_lines(bool& is_over) {
    Lock lock(mutex);
    if (lines.empty() && !is_ending) changed.wait_for(mutex, kBeat_s);
    is_over = is_ending;
    return std::exchange(lines, {});
  }

  void run() {
    for (bool is_over = false; !is_over;) {
      const std::vector<std::string> said = next_lines(is_over);
      for (const std::string& line : said) write_line(fd, line);
      if (is_over || !said.empty()) continue;
      const std::string seen = looked();
      if (!seen.empty()) write_line(fd, seen);
      write_line(fd, "beat");
    }
  }
};

SupervisorChannel::SupervisorChannel() {
  const char* text = std::getenv(supervisor::kChannelVariable);
  const int fd = text != nullptr ? std::atoi(text) : 0;
  if (fd <= STDERR_FILENO || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return;
  state_ = std::make_unique<State>(fd);
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);  // the thread inherits it
  state_->thread = std::thread([state = state_.get()] { state->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SupervisorChannel::~SupervisorChannel() {
  if (state_ == nullptr) return;
  {
    Lock lock(state_->mutex);
    state_->is_ending = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

void SupervisorChannel::say(std::string line) {
  if (state_ == nullptr) return;
  Lock lock(state_->mutex);
  state_->lines.push_back(std::move(line));
  state_->changed.notify_all();
}

void SupervisorChannel::look_before_beats(std::function<std::string()> look) {
  if (state_ == nullptr) return;
  Lock lock(state_->look_mutex);
  state_->look = std::move(look);
}

}  // namespace tandem::apps
