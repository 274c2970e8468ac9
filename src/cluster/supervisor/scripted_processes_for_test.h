#pragma once
// ScriptedProcesses: no processes, but a record of what was asked, and events that a test says.

#include <set>
#include <utility>

#include "base/clock.h"
#include "cluster/supervisor/processes.h"

namespace tandem::supervisor {

struct ScriptedProcesses final : Processes {
  explicit ScriptedProcesses(ManualClock& its_clock) : clock(its_clock) {}

  Result<ProcessId> start(const ChildSpec& spec) override {
    if (refused.contains(spec.name)) return Error{ErrorCode::kUnavailable, "no process to be had"};
    const ProcessId id{++next};
    started.emplace_back(spec.name, id);
    return id;
  }
  int pid(ProcessId process) const override { return 1000 + static_cast<int>(process); }
  void send_signal(ProcessId process, int signal) override { signals.emplace_back(process, signal); }
  // Time passes only while nothing happens.
  std::vector<ProcessEvent> wait(double timeout_s) override {
    if (events.empty()) clock.advance_ms(timeout_s * 1e3);
    return std::exchange(events, {});
  }

  ProcessId newest(const std::string& name) const {
    ProcessId id{};
    for (const auto& [started_name, process] : started) {
      if (started_name == name) id = process;
    }
    return id;
  }
  void say(const std::string& name, const std::string& line) { events.push_back({newest(name), line, {}}); }
  void end(const std::string& name, ProcessExit exit) { events.push_back({newest(name), {}, exit}); }
  size_t num_starts(const std::string& name) const {
    size_t count = 0;
    for (const auto& entry : started) count += entry.first == name;
    return count;
  }
  bool was_sent(const std::string& name, int signal) const {
    for (const auto& sent : signals) {
      if (sent == std::pair(newest(name), signal)) return true;
    }
    return false;
  }

  ManualClock& clock;
  std::set<std::string> refused;
  std::vector<std::pair<std::string, ProcessId>> started;
  std::vector<std::pair<ProcessId, int>> signals;
  std::vector<ProcessEvent> events;
  uint64_t next = 0;
};

}  // namespace tandem::supervisor
