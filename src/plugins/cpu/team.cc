#include "plugins/cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <string>
#include <system_error>

#include "base/clock.h"
#include "compute/kernels/denormals_off.h"

namespace tandem::cpu {
namespace {

// Long enough for the next op of a step to begin, short enough to be unseen by neighbours.
constexpr int64_t kSpinNs = 60'000;
constexpr int kPausesPerLook = 64;
// A run's word is its number times this, plus how many take part. Numbers may wrap: nobody misses a run that he is in.
constexpr uint32_t kRunUnit = 1 << 11;

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

void pin_thread(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace

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

uint32_t num_usable_cores() {
  const size_t cores = usable_cores().size();
  return cores == 0 ? 1 : static_cast<uint32_t>(cores);
}

Team::Team(uint32_t num_members)
    : num_members_(num_members == 0 ? num_usable_cores() : num_members),
      sizer_(num_members_),
      num_active_(num_members_),
      members_(std::make_unique<Member[]>(num_members_)) {
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
  for (std::atomic<uint32_t>* word : {&run_word_, &grown_count_}) {
    word->fetch_add(1);
    word->notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

int64_t Team::wait_change(const std::atomic<uint32_t>& word, uint32_t seen) {
  int64_t start_ns = 0, spun_ns = 0;
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return spun_ns;
      pause_cpu();
    }
    const int64_t now_ns = monotonic_ns();
    if (start_ns == 0) start_ns = now_ns;
    spun_ns = now_ns - start_ns;
    if (spun_ns > kSpinNs) break;
  }
  while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
  return spun_ns;
}

void Team::take_part(TeamTask& task, uint32_t member) {
  Member& account = members_[member];
  account.spun_ns = 0;
  const int64_t start_ns = thread_cpu_ns();
  task.work(member);
  account.worked_ns = thread_cpu_ns() - start_ns - account.spun_ns;
  barrier(member);
}

void Team::run_with(uint32_t num_active, TeamTask& task) {
  const kernels::DenormalsOff denormals_off;
  const bool has_grown = num_active > num_active_;
  num_active_ = num_active;
  task.prepare(num_active);
  if (num_active > 1) {
    task_ = &task;
    const uint32_t run = run_word_.load(std::memory_order_relaxed) / kRunUnit + 1;
    run_word_.store(run * kRunUnit + num_active, std::memory_order_seq_cst);  // as in open_barrier()
    run_word_.notify_all();
    if (has_grown) {
      grown_count_.fetch_add(1, std::memory_order_seq_cst);
      grown_count_.notify_all();
    }
  }
  take_part(task, 0);
}

void Team::run(TeamTask& task) {
  const int64_t start_ns = monotonic_ns();
  const uint32_t num_active = sizer_.num_active();
  run_with(num_active, task);
  RunSample sample;
  sample.end_ns = monotonic_ns();
  sample.wall_ns = sample.end_ns - start_ns;
  sample.kind = task.kind();
  for (uint32_t member = 0; member < num_active; ++member) sample.worked_ns += members_[member].worked_ns;
  sizer_.add(sample);
}

void Team::open_barrier() {
  num_arrived_.store(0, std::memory_order_relaxed);
  // A full barrier: notify_all() looks for parked members with a plain load, which must not pass this write.
  barrier_count_.fetch_add(1, std::memory_order_seq_cst);
  barrier_count_.notify_all();
}

void Team::member_loop(uint32_t member) {
  const kernels::DenormalsOff denormals_off;
  uint32_t seen = 0;
  bool is_out = false;
  for (;;) {
    const uint32_t grown = grown_count_.load(std::memory_order_acquire);  // before the look at the run
    const uint32_t word = run_word_.load(std::memory_order_acquire);
    if (is_stopping_.load()) return;
    if (word == seen && !is_out) {
      wait_change(run_word_, seen);
      continue;
    }
    seen = word;
    is_out = word % kRunUnit <= member;
    if (is_out) {
      grown_count_.wait(grown, std::memory_order_acquire);
      continue;
    }
    take_part(*task_, member);
  }
}

}  // namespace tandem::cpu
