#include "cluster/supervisor/supervisor.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

namespace tandem::supervisor {
namespace {

std::string how_it_ended(const ProcessExit& exit) {
  return exit.signal != 0 ? fmt::format("was ended by signal {}", exit.signal)
                          : fmt::format("ended with code {}", exit.code);
}

}  // namespace

const char* phase_name(ChildPhase phase) {
  switch (phase) {
    case ChildPhase::kStarting: return "starting";
    case ChildPhase::kReady: return "ready";
    case ChildPhase::kPausing: return "restarting";
    case ChildPhase::kLeft: return "left";
    case ChildPhase::kEnding: return "ending";
    case ChildPhase::kEnded: return "ended";
  }
  return "?";
}

Supervisor::Supervisor(SupervisorConfig config, std::vector<ChildSpec> children, Processes& processes,
                       const Clock& clock)
    : config_(config), processes_(processes), clock_(clock), looked_ns_(clock.now_ns()) {
  for (ChildSpec& spec : children) {
    children_.emplace_back();
    children_.back().spec = std::move(spec);
    children_.back().due_ns = clock_.now_ns();
  }
}

bool Supervisor::is_done() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) {
    return child.phase == ChildPhase::kLeft || child.phase == ChildPhase::kEnded;
  });
}

bool Supervisor::are_all_ready() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) {
    return child.phase == ChildPhase::kReady || child.phase == ChildPhase::kLeft;
  });
}

Child* Supervisor::find(const std::string& name) {
  for (Child& child : children_) {
    if (child.spec.name == name) return &child;
  }
  return nullptr;
}

void Supervisor::step(double max_wait_s) {
  const double waited_s = wait_s(max_wait_s);
  const std::vector<ProcessEvent> events = processes_.wait(waited_s);
  forgive_own_stall(waited_s);
  for (const ProcessEvent& event : events) {
    const auto known = by_process_.find(event.process);
    if (known == by_process_.end()) continue;
    Child& child = children_[known->second];
    if (event.exit) on_exit(child, *event.exit);
    else on_line(child, event.line);
  }
  for (Child& child : children_) look_after(child);
  if (is_stopping_) stop_stage();
}

double Supervisor::wait_s(double max_wait_s) const {
  int64_t until_ns = clock_.now_ns() + static_cast<int64_t>(max_wait_s * 1e9);
  for (const Child& child : children_) {
    if (child.phase == ChildPhase::kPausing || child.phase == ChildPhase::kEnding) {
      until_ns = std::min(until_ns, child.due_ns);
    } else if (child.process && !child.is_killed_silent) {
      until_ns = std::min(until_ns, child.heard_ns + config_.silence_ns);
    }
  }
  return std::max(static_cast<double>(until_ns - clock_.now_ns()) * 1e-9, 0.0);
}

// What stopped this process (a suspended session, a paused virtual machine) stopped the children too: they get the
// whole time to say something.
void Supervisor::forgive_own_stall(double waited_s) {
  const int64_t passed_ns = clock_.now_ns() - std::exchange(looked_ns_, clock_.now_ns());
  if (passed_ns < static_cast<int64_t>(waited_s * 1e9) + config_.own_stall_ns) return;
  for (Child& child : children_) child.heard_ns += passed_ns;
}

void Supervisor::start(Child& child) {
  auto started = processes_.start(child.spec);
  if (!started) return on_fault(child, "could not be started: " + started.error().message);
  if (child.num_faults > 0 || child.was_ready) ++child.num_restarts;
  child.process = started.value();
  child.pid = processes_.pid(*child.process);
  child.phase = ChildPhase::kStarting;
  child.heard_ns = clock_.now_ns();
  child.is_killed_silent = false;
  child.said.clear();
  by_process_[*child.process] = static_cast<size_t>(&child - children_.data());
}

void Supervisor::on_line(Child& child, const std::string& line) {
  child.heard_ns = clock_.now_ns();
  const size_t space = std::min(line.find(' '), line.size());
  const std::string word = line.substr(0, space);
  std::string rest = line.substr(std::min(space + 1, line.size()));
  if (word == "beat") return;
  if (word != "ready") {
    child.said[word] = std::move(rest);
    return;
  }
  child.ready_text = std::move(rest);
  if (child.phase != ChildPhase::kStarting) return;
  child.phase = ChildPhase::kReady;
  child.was_ready = true;
  child.ready_ns = child.heard_ns;
  news_.push_back(fmt::format("{} is ready, pid {}", child.spec.name, child.pid));
}

void Supervisor::on_exit(Child& child, const ProcessExit& exit) {
  by_process_.erase(*child.process);
  child.process.reset();
  if (child.phase == ChildPhase::kEnding) {
    child.phase = ChildPhase::kEnded;
    news_.push_back(fmt::format("{} {}", child.spec.name, how_it_ended(exit)));
    return;
  }
  // Code 0 is a node's own word that it has left: it was drained.
  if (child.spec.may_leave && child.phase == ChildPhase::kReady && exit.signal == 0 && exit.code == 0) {
    child.phase = ChildPhase::kLeft;
    news_.push_back(child.spec.name + " has left the cluster");
    return;
  }
  on_fault(child, child.is_killed_silent ? "was silent and has been killed" : how_it_ended(exit));
}

void Supervisor::on_fault(Child& child, const std::string& what) {
  const int64_t now_ns = clock_.now_ns();
  if (child.phase == ChildPhase::kReady && now_ns - child.ready_ns >= config_.settled_ns) child.num_faults = 0;
  ++child.num_faults;
  if (!child.was_ready && child.num_faults >= config_.max_failed_starts) {
    news_.push_back(fmt::format("{} {}", child.spec.name, what));
    child.phase = ChildPhase::kEnded;
    if (!failure_) {
      failure_ = Error{ErrorCode::kUnavailable, fmt::format("{} {}, {} times in a row; see {}", child.spec.name, what,
                                                            child.num_faults, child.spec.log_path)};
    }
    begin_stop();
    return;
  }
  int64_t pause_ns = config_.first_pause_ns;
  for (uint32_t i = 1; i < child.num_faults && pause_ns < config_.longest_pause_ns; ++i) pause_ns *= 2;
  pause_ns = std::min(pause_ns, config_.longest_pause_ns);
  child.phase = ChildPhase::kPausing;
  child.due_ns = now_ns + pause_ns;
  news_.push_back(fmt::format("{} {}; starts again in {} s", child.spec.name, what,
                              static_cast<double>(pause_ns) * 1e-9));
}

void Supervisor::look_after(Child& child) {
  const int64_t now_ns = clock_.now_ns();
  switch (child.phase) {
    case ChildPhase::kPausing:
      if (now_ns >= child.due_ns) start(child);
      break;
    case ChildPhase::kStarting:
    case ChildPhase::kReady:
      if (now_ns - child.heard_ns < config_.silence_ns || child.is_killed_silent) break;
      child.is_killed_silent = true;
      processes_.send_signal(*child.process, SIGKILL);
      break;
    case ChildPhase::kEnding:
      if (now_ns < child.due_ns) break;
      news_.push_back(child.spec.name + " did not end in time and is killed");
      processes_.send_signal(*child.process, SIGKILL);
      child.due_ns = now_ns + child.spec.stop_grace_ns;
      break;
    case ChildPhase::kLeft:
    case ChildPhase::kEnded: break;
  }
}

void Supervisor::begin_stop() {
  is_stopping_ = true;
  stop_stage();
}

// The lowest stage that is not over is asked to end. Later stages go on, so that what the earlier ones still have under
// way survives a fault even now.
void Supervisor::stop_stage() {
  std::optional<uint32_t> stage;
  for (const Child& child : children_) {
    const bool is_over = child.phase == ChildPhase::kLeft || child.phase == ChildPhase::kEnded;
    if (!is_over) stage = std::min(stage.value_or(child.spec.stop_stage), child.spec.stop_stage);
  }
  for (Child& child : children_) {
    if (stage && child.spec.stop_stage == *stage) ask_to_end(child);
  }
}

void Supervisor::ask_to_end(Child& child) {
  if (child.phase == ChildPhase::kPausing) child.phase = ChildPhase::kEnded;
  if (child.phase != ChildPhase::kStarting && child.phase != ChildPhase::kReady) return;
  child.phase = ChildPhase::kEnding;
  child.due_ns = clock_.now_ns() + child.spec.stop_grace_ns;
  processes_.send_signal(*child.process, SIGTERM);
}

}  // namespace tandem::supervisor
