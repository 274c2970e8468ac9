#include "plugins/cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <string>
#include <system_error>

#include "compute/kernels/denormals_off.h"

namespace tandem::cpu {
namespace {

// Long enough for the next op of a step to begin, short enough to be unseen by neighbours.
constexpr int64_t kSpinNs = 60'000;
constexpr int kPausesPerLook = 64;

int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void pin_thread(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace

uint32_t num_usable_cores() {
  const size_t cores = usable_cores().size();
  return cores == 0 ? 1 : static_cast<uint32_t>(cores);
}

Team::Team(uint32_t num_members) : num_members_(num_members == 0 ? num_usable_cores() : num_members) {
  const std::vector<int> cores = usable_cores();
  threads_.reserve(num_members_ - 1);
  for (uint32_t member = 1; member < num_members_; ++member) {
    try {
      threads_.emplace_back([this, member] { member_loop(member); });
    } catch (const std::system_error& failure) {
      stop();
      throw std::system_error(failure.code(), "cannot start thread " + std::to_string(member + 1) + " of " +
                                                  std::to_string(num_members_));
    }
    // Member 0 is the caller's thread, which is not ours to pin; the others keep off one core for it.
    if (cores.size() >= num_members_) pin_thread(threads_.back(), cores[member]);
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  is_stopping_.store(true);
  run_count_.fetch_add(1);
  run_count_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::wait_change(const std::atomic<uint32_t>& word, uint32_t seen) {
  const int64_t start_ns = monotonic_ns();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return;
      pause_cpu();
    }
    if (monotonic_ns() - start_ns > kSpinNs) break;
  }
  while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
}

void Team::run(TeamTask& task) {
  const kernels::DenormalsOff denormals_off;
  if (num_members_ == 1) {
    task.work(0);
    return;
  }
  task_ = &task;
  run_count_.fetch_add(1, std::memory_order_seq_cst);  // as in barrier()
  run_count_.notify_all();
  task.work(0);
  barrier();
}

void Team::barrier() {
  if (num_members_ == 1) return;
  const uint32_t seen = barrier_count_.load(std::memory_order_acquire);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_members_) {
    num_arrived_.store(0, std::memory_order_relaxed);
    // A full barrier: notify_all() looks for parked members with a plain load, which must not pass this write.
    barrier_count_.fetch_add(1, std::memory_order_seq_cst);
    barrier_count_.notify_all();
  } else {
    wait_change(barrier_count_, seen);
  }
}

void Team::member_loop(uint32_t member) {
  const kernels::DenormalsOff denormals_off;
  uint32_t seen = 0;
  for (;;) {
    wait_change(run_count_, seen);
    seen = run_count_.load(std::memory_order_acquire);
    if (is_stopping_.load()) return;
    task_->work(member);
    barrier();
  }
}

}  // namespace tandem::cpu
