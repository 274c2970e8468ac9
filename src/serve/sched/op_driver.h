#pragma once
// OpDriver: throws operations at a scheduler (submit, step, failing step, cancel, preempt, time) and checks after each
// one that the invariants hold, that a failed step left no trace, and that every token a request got is the one it
// gets alone. Behind the property test (random numbers) and the fuzz target (bytes). One thread.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "serve/sched/scheduler.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::sched {

class OpDriver {
 public:
  // A number below its argument (at least 1).
  using Source = std::function<uint32_t(uint32_t below)>;

  OpDriver(const SchedulerConfig& config, Source source);

  void run_op();
  void drain();  // steps until all requests have ended; stops the process when that takes unreasonably long

  // Small pools and limits, so that edges are reached; which, the source decides.
  static SchedulerConfig random_config(const Source& source);

  uint64_t num_finished() const { return num_finished_; }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Expected {
    std::vector<TokenId> tokens;
    Finish finish;
  };
  struct Watched {  // an open request
    Request request;
    std::vector<Expected> expected;  // by choice
    std::vector<std::vector<TokenId>> got;
    std::vector<bool> is_finished;
    bool has_prompt_logprobs = false;
  };

  Request random_request();
  Expected expect(const Request& request, uint32_t choice) const;
  void submit();
  void cancel();
  void step();
  void fail_step();
  void fail_item();
  void see(const Update& update, bool may_fail);
  void see_delta(Watched& watched, const ChoiceDelta& delta, bool is_cancel);

  Source source_;
  SchedulerConfig config_;
  Scheduler scheduler_;
  ScriptedExecutor executor_;
  int64_t now_ns_ = 1;
  uint64_t next_id_ = 1;
  uint64_t num_finished_ = 0;
  std::map<RequestId, Watched> open_;
};

}  // namespace tandem::sched
