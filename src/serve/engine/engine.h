#pragma once
// Engine: the loop that serves requests: drain the mailbox, plan a step, execute it, commit, publish.
//
// One thread owns scheduler, pool and executor and takes no lock for them; others only submit and cancel. start()
// gives it a thread; without one, run_once() is the same loop by hand, for tests and the simulator. A step that fails
// is rolled back and planned again; when it fails again, its items are run apart and only those that fail alone end,
// with kInternal. The executor, clock and metrics outlive the engine.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "serve/engine/admission_gate.h"
#include "serve/engine/engine_metrics.h"
#include "serve/engine/generator.h"
#include "serve/sched/scheduler.h"

namespace tandem::engine {

struct EngineConfig {
  sched::SchedulerConfig sched;
  std::string model_name;       // metric label
  uint32_t vocab_size = 0;
  uint32_t max_logprobs = 64;
  uint32_t max_choices = 128;
};

class Engine final : public Generator {
 public:
  Engine(const EngineConfig& config, sched::StepExecutor& executor, const Clock& clock, MetricRegistry& metrics);
  ~Engine() override;  // as stop()

  // Any thread.
  Result<sched::RequestId> submit(sched::Request request, std::shared_ptr<sched::TokenSink> sink) override;
  Status check_room(const std::string& tenant) override;
  void cancel(sched::RequestId request) override;
  bool reset_prefix_cache() override;
  GeneratorLimits limits() const override;
  GeneratorLoad load() const override;
  bool is_draining() const { return gate_.is_closed(); }

  void start();        // once
  void begin_drain();  // new requests are refused with kUnavailable, those inside go on
  bool wait_idle(double timeout_s) const;  // false when requests are still open after this time
  void stop();         // ends open requests with kUnavailable, then the thread; again: nothing

  // The state of scheduler and pool as text; taken between two steps, so it waits for a running one (at most 5 s).
  std::string debug_dump();  // not during stop()

  // One turn; false when there was nothing to do. Only without start(), from one thread.
  bool run_once();
  const sched::Scheduler& scheduler() const { return scheduler_; }
  sched::Scheduler& scheduler() { return scheduler_; }

 private:
  struct Arrival {
    sched::RequestId id;
    sched::Request request;
    std::shared_ptr<sched::TokenSink> sink;
    int64_t arrival_ns;
  };
  struct Open {
    std::shared_ptr<sched::TokenSink> sink;
    RequestTimes times;
    uint32_t num_tokens = 0;  // of the first choice, and when they came
    int64_t first_ns = 0, last_ns = 0;
  };
  struct Thread;
  struct DumpSlot;

  Status check(const sched::Request& request) const;
  void run();
  void take_arrivals();
  void check_idle();
  void fail_stuck();
  void run_batch(const sched::Batch& batch);
  void finish_step(sched::StepOutcome outcome, double seconds);
  void publish(sched::Update update);
  void learn_pace(const Open& ended);
  void update_levels();
  void answer_dump();
  void end_all();

  const EngineConfig config_;
  sched::StepExecutor& executor_;
  const Clock& clock_;
  AdmissionGate gate_;
  BoundedQueue<Arrival> mailbox_;
  std::atomic<uint32_t> num_running_{0};
  std::atomic<double> kv_usage_{0};
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> drops_cache_{false};  // the engine thread is to do it
  std::unique_ptr<DumpSlot> dump_slot_;
  std::unique_ptr<Thread> thread_;

  // Engine thread
  EngineMetrics metrics_;
  sched::Scheduler scheduler_;
  std::map<sched::RequestId, Open> open_;
  std::vector<Arrival> inbox_;
  bool is_checked_ = false;  // since the scheduler became idle
  bool has_failed_ = false;  // the last step did, and was rolled back
  double seconds_per_output_ = 0;  // smoothed: of a token after the first, as requests see it
};

}  // namespace tandem::engine
