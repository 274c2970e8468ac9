#pragma once
// Team: the threads of one CPU device. The caller of run() is member 0; the others are started once, pinned, and wait
// in between: they spin for a moment, then park, since a spinning thread takes a shared machine's cores from others.
// When others use the cores, fewer members take part (TeamSizer); the rest stay parked and cost nothing.
//
// One run at a time. Members hold DenormalsOff while they work.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "plugins/cpu/team_sizer.h"

namespace tandem::cpu {

// What the members do together.
class TeamTask {
 public:
  virtual ~TeamTask() = default;
  // By the caller of run(), before any work(): how many members take part, 0 .. num_active - 1.
  virtual void prepare(uint32_t /*num_active*/) {}
  // Runs of one kind do equal work. 0: it waits for other things than its members (files, new pages), so that how it
  // went says nothing about the cores.
  virtual uint64_t kind() const { return 0; }
  virtual void work(uint32_t member) = 0;
};

class Team {
 public:
  // 0: one member per core that this process may use. Threads are pinned when there are at least as many cores.
  // Throws std::system_error, with no thread left behind, when the system does not give one.
  explicit Team(uint32_t num_members);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  uint32_t num_members() const { return num_members_; }
  // Members that take part in the next run, or in the one that is under way. The caller's thread, and inside work().
  uint32_t num_active() const { return num_active_; }

  // Every active member runs task.work(); returns when all have.
  void run(TeamTask& task);
  // The same with so many members, 1 .. num_members(), whatever others do on the machine.
  void run_with(uint32_t num_active, TeamTask& task);

  // Inside work(): returns when all active members have called it. What they wrote before is visible after. The last
  // one to arrive runs `last` before any returns: small serial work costs no second barrier that way.
  template <class Step>
  void barrier(uint32_t member, Step&& last) {
    const uint32_t num_active = num_active_;  // once all have arrived, the next run may change it
    if (num_active == 1) return last();
    const uint32_t seen = barrier_count_.load(std::memory_order_acquire);
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_active) {
      last();
      open_barrier();
    } else {
      members_[member].spun_ns += wait_change(barrier_count_, seen);
    }
  }
  void barrier(uint32_t member) {
    barrier(member, [] {});
  }

 private:
  // Counted by the member itself; the caller reads it after the run's last barrier.
  struct alignas(64) Member {
    int64_t spun_ns = 0;    // waiting for others without parking
    int64_t worked_ns = 0;  // on a core, less that
  };

  void member_loop(uint32_t member);
  void stop();
  void take_part(TeamTask& task, uint32_t member);
  void open_barrier();
  // Waits until `word` is no longer `seen`; returns how much of that time it spun.
  static int64_t wait_change(const std::atomic<uint32_t>& word, uint32_t seen);

  const uint32_t num_members_;
  TeamSizer sizer_;
  uint32_t num_active_;  // written between runs
  TeamTask* task_ = nullptr;
  // Each on its own cache line: members poll one while another is written.
  alignas(64) std::atomic<uint32_t> run_word_{0};        // a new value starts a run: its number and how many take part
  alignas(64) std::atomic<uint32_t> grown_count_{0};     // a new value calls members that sat out
  alignas(64) std::atomic<uint32_t> num_arrived_{0};     // at the barrier
  alignas(64) std::atomic<uint32_t> barrier_count_{0};   // a new value opens the barrier
  alignas(64) std::atomic<bool> is_stopping_{false};
  std::unique_ptr<Member[]> members_;
  std::vector<std::thread> threads_;
};

// The cores that this process may use: its affinity mask. Empty when that cannot be read.
std::vector<int> usable_cores();
uint32_t num_usable_cores();  // at least 1

}  // namespace tandem::cpu
