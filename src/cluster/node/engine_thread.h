#pragma once
// EngineThread: a ModelEngine on a thread of its own. Commands go in by a mailbox, read between two steps; news come
// out by another. Sleeps when there is nothing to compute.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <variant>
#include <vector>

#include "base/thread_safety.h"
#include "cluster/node/model_engine.h"

namespace tandem::node {

using EngineCommand = std::variant<role::StartPrefill, role::StopPrefill, role::StartDecode, role::ExtendTable,
                                   role::StopDecoding>;

class EngineThread final : private StepHost {
 public:
  // `on_news`: called on the engine thread when news wait that nobody has been called for; it only wakes somebody.
  // References outlive it.
  EngineThread(ModelEngineConfig config, sched::StepExecutor& executor, const Clock& clock,
               StopRuleMaker make_stop_rule, std::function<void()> on_news);
  ~EngineThread();  // waits for the step under way

  // The rest is for one other thread, the node's.

  void post(EngineCommand command);
  // What steps brought, in order. News of a job that was stopped or replaced since its step began are left out: they
  // would pass for the new job's.
  std::vector<role::EngineNews> take_news();

  // Steps that have begun and ended. A command posted before newest_step() was read is known to all later steps.
  uint64_t newest_step();
  uint64_t num_ended() const { return num_ended_.load(std::memory_order_acquire); }
  role::EngineProgress progress() const { return engine_.progress(); }
  // `read` of parts that news told of.
  template <class Read>
  void with_parts(const Read& read) {
    engine_.with_parts(read);
  }

 private:
  struct Report {
    uint64_t num_commands = 0;  // that the step knew of
    std::vector<role::EngineNews> news;
    bool is_early = false;  // in the middle of a step, of which later news are still to come
  };
  void run();
  void obey(EngineCommand& command);
  void on_early_news(std::vector<role::EngineNews> news) override;
  void at_boundary() override;
  void publish(Report report);

  ModelEngine engine_;
  const std::function<void()> on_news_;

  // The node's thread: the command that started or stopped a request's job last, while a step may not know of it.
  using Changes = std::map<handoff::RequestId, uint64_t>;
  bool is_outdated(const role::EngineNews& news, uint64_t num_commands) const;
  uint64_t num_posted_ = 0;
  Changes prefills_, decodes_;

  // The engine's thread
  uint64_t num_known_ = 0;               // commands that were taken
  std::vector<EngineCommand> deferred_;  // of them, those about requests of the step under way
  uint64_t num_known_to_step_ = 0;

  Mutex mutex_;
  CondVar wake_;
  std::vector<EngineCommand> commands_ GUARDED_BY(mutex_);
  uint64_t newest_step_ GUARDED_BY(mutex_) = 0;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> num_ended_{0};

  Mutex news_mutex_;
  std::vector<Report> reports_ GUARDED_BY(news_mutex_);

  std::thread thread_;  // last: uses the rest
};

}  // namespace tandem::node
