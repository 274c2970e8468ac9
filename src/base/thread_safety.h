#pragma once
// Mutex with lock annotations, checked by the `clang` preset (-Wthread-safety); gcc sees nothing.

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TANDEM_THREAD(x) __attribute__((x))
#else
#define TANDEM_THREAD(x)
#endif
#define GUARDED_BY(mu) TANDEM_THREAD(guarded_by(mu))
#define REQUIRES(mu) TANDEM_THREAD(requires_capability(mu))

namespace tandem {

class TANDEM_THREAD(capability("mutex")) Mutex {
 public:
  void lock() TANDEM_THREAD(acquire_capability()) { mutex_.lock(); }
  void unlock() TANDEM_THREAD(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class TANDEM_THREAD(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) TANDEM_THREAD(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() TANDEM_THREAD(release_capability()) { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for Mutex. Waits hold the mutex on return; spurious wake-ups happen, so wait in a loop.
class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    cond_.wait(held);
    held.release();
  }
  // False when `seconds` passed without a wake-up.
  bool wait_for(Mutex& mutex, double seconds) REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    const auto status = cond_.wait_for(held, std::chrono::duration<double>(seconds));
    held.release();
    return status == std::cv_status::no_timeout;
  }
  void notify_one() { cond_.notify_one(); }
  void notify_all() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace tandem
