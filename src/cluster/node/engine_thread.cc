#include "cluster/node/engine_thread.h"

#include <algorithm>
#include <utility>

namespace tandem::node {

namespace {

constexpr double kMaskWait_s = 0.001;

// Of a command or of news: all of them are about one.
template <class Variant>
const handoff::RequestId& request_of(const Variant& variant) {
  return std::visit([](const auto& held) -> const handoff::RequestId& { return held.request; }, variant);
}

}  // namespace

EngineThread::EngineThread(ModelEngineConfig config, sched::StepExecutor& executor, const Clock& clock,
                           StopRuleMaker make_stop_rule, std::function<void()> on_news)
    : engine_(std::move(config), executor, clock, std::move(make_stop_rule)),
      on_news_(std::move(on_news)),
      thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  {
    Lock lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineThread::post(EngineCommand command) {
  ++num_posted_;
  const bool is_prefill = std::holds_alternative<role::StartPrefill>(command) ||
                          std::holds_alternative<role::StopPrefill>(command);
  if (is_prefill) {
    prefills_[request_of(command)] = num_posted_;
  } else if (!std::holds_alternative<role::ExtendTable>(command)) {
    decodes_[request_of(command)] = num_posted_;
  }
  {
    Lock lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

bool EngineThread::is_outdated(const role::EngineNews& news, uint64_t num_commands) const {
  const auto is_newer = [&](const Changes& changes) {
    const auto it = changes.find(request_of(news));
    return it != changes.end() && it->second > num_commands;
  };
  if (std::holds_alternative<role::StepTokens>(news)) return is_newer(decodes_);
  if (std::holds_alternative<role::JobFailed>(news)) return is_newer(decodes_) || is_newer(prefills_);
  return is_newer(prefills_);
}

std::vector<role::EngineNews> EngineThread::take_news() {
  std::vector<Report> reports;
  {
    Lock lock(news_mutex_);
    reports.swap(reports_);
  }
  std::vector<role::EngineNews> all;
  for (Report& report : reports) {
    for (role::EngineNews& news : report.news) {
      if (!is_outdated(news, report.num_commands)) all.push_back(std::move(news));
    }
    // News of the step's own requests, which knew fewer commands, are still to come.
    if (report.is_early) continue;
    const auto is_known = [&](const auto& change) { return change.second <= report.num_commands; };
    std::erase_if(prefills_, is_known);
    std::erase_if(decodes_, is_known);
  }
  return all;
}

uint64_t EngineThread::newest_step() {
  Lock lock(mutex_);
  return newest_step_;
}

void EngineThread::obey(EngineCommand& command) {
  if (auto* prefill = std::get_if<role::StartPrefill>(&command)) {
    engine_.start_prefill(std::move(*prefill));
  } else if (const auto* stop = std::get_if<role::StopPrefill>(&command)) {
    engine_.stop_prefill(stop->request);
  } else if (auto* decode = std::get_if<role::StartDecode>(&command)) {
    engine_.start_decode(std::move(*decode));
  } else if (const auto* extension = std::get_if<role::ExtendTable>(&command)) {
    engine_.extend(*extension);
  } else if (const auto* end = std::get_if<role::StopDecoding>(&command)) {
    engine_.stop_decode(end->request);
  }
}

void EngineThread::publish(Report report) {
  bool was_empty = false;
  {
    Lock lock(news_mutex_);
    was_empty = reports_.empty();
    reports_.push_back(std::move(report));
  }
  if (was_empty) on_news_();
}

void EngineThread::on_early_news(std::vector<role::EngineNews> news) {
  if (news.empty()) return;
  // A step's own requests have had no command since it began that was obeyed.
  const bool is_own = engine_.is_in_step(request_of(news.front()));
  publish({is_own ? num_known_to_step_ : num_known_, std::move(news), true});
}

void EngineThread::at_boundary() {
  std::vector<EngineCommand> commands;
  {
    Lock lock(mutex_);
    commands.swap(commands_);
  }
  num_known_ += commands.size();
  for (EngineCommand& command : commands) {
    // In the order of arrival for each request: behind one that waits, all wait.
    const auto is_same = [&](const EngineCommand& other) { return request_of(other) == request_of(command); };
    const bool waits = engine_.is_in_step(request_of(command)) || std::ranges::any_of(deferred_, is_same);
    if (waits) {
      deferred_.push_back(std::move(command));
    } else {
      obey(command);
    }
  }
}

void EngineThread::run() {
  bool may_compute = false;  // false after a step that had nothing to run: only a command changes that
  for (;;) {
    std::vector<EngineCommand> commands;
    uint64_t step = 0;
    {
      Lock lock(mutex_);
      while (commands_.empty() && deferred_.empty() && !is_stopping_ && !may_compute) {
        if (!engine_.waits_for_masks()) {
          wake_.wait(mutex_);
        } else if (!wake_.wait_for(mutex_, kMaskWait_s)) {
          may_compute = true;
        }
      }
      if (is_stopping_) return;
      commands.swap(commands_);
      step = ++newest_step_;
    }
    num_known_ += commands.size();
    num_known_to_step_ = num_known_;
    const bool is_any = !commands.empty() || !deferred_.empty();
    for (EngineCommand& command : std::exchange(deferred_, {})) obey(command);
    for (EngineCommand& command : commands) obey(command);
    const uint64_t before = engine_.progress().step_seq;
    std::vector<role::EngineNews> news;
    if (engine_.has_work()) news = engine_.run_step(this);
    may_compute = engine_.has_work() && engine_.progress().step_seq != before;
    num_ended_.store(step, std::memory_order_release);
    // Also without news: what waits for the step's end is to be told of it.
    const bool took_any_within = num_known_ != num_known_to_step_;
    if (!news.empty() || is_any || took_any_within) publish({num_known_to_step_, std::move(news)});
  }
}

}  // namespace tandem::node
