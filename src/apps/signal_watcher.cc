#include "apps/signal_watcher.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "base/thread_safety.h"

namespace tandem::apps {

struct SignalWatcher::State {
  Mutex mutex;
  CondVar changed;
  bool is_reporting GUARDED_BY(mutex) = false;
  bool has_signal GUARDED_BY(mutex) = false;
  bool is_ending GUARDED_BY(mutex) = false;
  sigset_t signals;
  std::thread thread;

  void run() {
    for (;;) {
      int signal = 0;
      if (sigwait(&signals, &signal) != 0) continue;
      Lock lock(mutex);
      if (is_ending) return;
      if (!is_reporting || has_signal) _exit(1);
      has_signal = true;
      changed.notify_all();
    }
  }
};

SignalWatcher::SignalWatcher() : state_(std::make_unique<State>()) {
  sigemptyset(&state_->signals);
  sigaddset(&state_->signals, SIGINT);
  sigaddset(&state_->signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &state_->signals, nullptr);
  state_->thread = std::thread([this] { state_->run(); });
}

SignalWatcher::~SignalWatcher() {
  {
    Lock lock(state_->mutex);
    state_->is_ending = true;
  }
  pthread_kill(state_->thread.native_handle(), SIGTERM);  // wakes sigwait
  state_->thread.join();
}

void SignalWatcher::start_reporting() {
  Lock lock(state_->mutex);
  state_->is_reporting = true;
}

bool SignalWatcher::wait(double timeout_s) {
  Lock lock(state_->mutex);
  if (!state_->has_signal) state_->changed.wait_for(state_->mutex, timeout_s);
  return state_->has_signal;
}

}  // namespace tandem::apps
