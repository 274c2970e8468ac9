#pragma once
// Team: the threads of one CPU device. The caller of run() is member 0; the others are started once, pinned, and wait
// in between: they spin for a moment, then park, since a spinning thread takes a shared machine's cores from others.
//
// One run at a time. Members hold DenormalsOff while they work.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tandem::cpu {

// What the members do together.
class TeamTask {
 public:
  virtual ~TeamTask() = default;
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

  // Every member runs task.work(); returns when all have.
  void run(TeamTask& task);

  // Inside work(): returns when all members have called it. What they wrote before is visible after.
  void barrier();

 private:
  void member_loop(uint32_t member);
  void stop();
  // Waits until `word` is no longer `seen`.
  static void wait_change(const std::atomic<uint32_t>& word, uint32_t seen);

  const uint32_t num_members_;
  // Each on its own cache line: members poll one while another is written.
  alignas(64) std::atomic<uint32_t> run_count_{0};       // a new value starts a run
  alignas(64) std::atomic<uint32_t> num_arrived_{0};     // at the barrier
  alignas(64) std::atomic<uint32_t> barrier_count_{0};   // a new value opens the barrier
  alignas(64) std::atomic<bool> is_stopping_{false};
  TeamTask* task_ = nullptr;
  std::vector<std::thread> threads_;
};

// How many cores this process may use, its affinity mask counted.
uint32_t num_usable_cores();

}  // namespace tandem::cpu
