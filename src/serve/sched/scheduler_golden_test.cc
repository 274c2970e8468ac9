// Schedules as text: tests/golden/*.sched say what arrives when, and below the line what each step then does.
// UPDATE_GOLDEN=1 rewrites the part below the line.
//
//   config KEY=NUMBER...      fields of SchedulerConfig
//   step_us BASE PER_TOKEN    how long a step takes
//   at MS NAME prompt=N[@GROUP] max=N [n=N] [prio=N] [tenant=NAME] [logprobs=N]   prompts of one group share content
//   cancel MS NAME | fail STEP

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "serve/sched/scheduler.h"
#include "serve/sched/scripted_executor.h"
#include "testing/golden.h"

namespace tandem::sched {
namespace {

struct Event {
  int64_t at_ns = 0;
  std::string name;
  std::optional<Request> request;  // none: cancel
};

struct Scenario {
  SchedulerConfig config;
  double base_us = 5000;
  double per_token_us = 0;
  std::vector<Event> events;
  std::vector<uint64_t> failing_steps;
};

std::map<std::string, std::string> pairs_in(std::istringstream& line) {
  std::map<std::string, std::string> pairs;
  for (std::string word; line >> word;) {
    const size_t equals = word.find('=');
    REQUIRE(equals != std::string::npos);
    pairs[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return pairs;
}

void set(SchedulerConfig& config, const std::string& key, double value) {
  const auto number = static_cast<uint32_t>(value);
  if (key == "block_size") config.block_size = number;
  else if (key == "num_blocks") config.num_blocks = number;
  else if (key == "num_private_blocks") config.num_private_blocks = number;
  else if (key == "enable_prefix_caching") config.enable_prefix_caching = number != 0;
  else if (key == "max_num_seqs") config.max_num_seqs = number;
  else if (key == "max_num_batched_tokens") config.max_num_batched_tokens = number;
  else if (key == "max_model_len") config.max_model_len = number;
  else if (key == "window_ms") config.window_ms = value;
  else if (key == "tpot_target_ms") config.tpot_target_ms = value;
  else if (key == "min_chunk") config.min_chunk = number;
  else if (key == "short_first_ms_per_token") config.line.short_first_ms_per_token = value;
  else if (key == "decode_reserve_blocks") config.decode_reserve_blocks = number;
  else FAIL("unknown configuration key " << key);
}

Event arrival(std::istringstream& line) {
  Event event;
  double at_ms = 0;
  line >> at_ms >> event.name;
  event.at_ns = static_cast<int64_t>(at_ms * 1e6);
  Request request;
  std::string group = event.name;
  size_t length = 0;
  for (const auto& [key, value] : pairs_in(line)) {
    if (key == "prompt") {
      length = std::stoul(value);
      if (const size_t at = value.find('@'); at != std::string::npos) group = value.substr(at + 1);
    } else if (key == "max") request.max_tokens = static_cast<uint32_t>(std::stoul(value));
    else if (key == "n") request.num_choices = static_cast<uint32_t>(std::stoul(value));
    else if (key == "prio") request.priority = std::stoi(value);
    else if (key == "logprobs") request.prompt_logprobs = std::stoi(value);
    else if (key == "tenant") request.tenant = value;
    else FAIL("unknown key " << key);
  }
  for (size_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>((group[0] * 131 + i * 17) % 900));
  event.request = std::move(request);
  return event;
}

Scenario parse(const std::string& text) {
  Scenario scenario;
  scenario.config.max_model_len = 4096;
  std::istringstream lines(text);
  for (std::string raw; std::getline(lines, raw);) {
    std::istringstream line(raw);
    std::string word;
    if (!(line >> word) || word[0] == '#') continue;
    if (word == "config") {
      for (const auto& [key, value] : pairs_in(line)) set(scenario.config, key, std::stod(value));
    } else if (word == "step_us") {
      line >> scenario.base_us >> scenario.per_token_us;
    } else if (word == "at") {
      scenario.events.push_back(arrival(line));
    } else if (word == "cancel") {
      double at_ms = 0;
      Event& event = scenario.events.emplace_back();
      line >> at_ms >> event.name;
      event.at_ns = static_cast<int64_t>(at_ms * 1e6);
    } else if (word == "fail") {
      line >> scenario.failing_steps.emplace_back();
    } else {
      FAIL("unknown line: " << raw);
    }
  }
  return scenario;
}

class Player {
 public:
  explicit Player(const Scenario& scenario)
      : scenario_(scenario),
        scheduler_(scenario.config),
        executor_({scenario.config.num_blocks, scenario.config.block_size, 1000, 0}) {
    for (const uint64_t step : scenario.failing_steps) executor_.fail_step(step, {ErrorCode::kInternal, "scripted"});
  }

  std::string play() {
    size_t next = 0;
    for (int step = 0; step < 500; ++step) {
      if (scheduler_.is_idle() && next == scenario_.events.size()) return text_;
      if (scheduler_.is_idle()) now_ns_ = std::max(now_ns_, scenario_.events[next].at_ns);
      while (next < scenario_.events.size() && scenario_.events[next].at_ns <= now_ns_) take(scenario_.events[next++]);
      if (!scheduler_.is_idle()) run_step(step);
      scheduler_.check_invariants();
    }
    FAIL("the schedule does not end");
    return text_;
  }

 private:
  void take(const Event& event) {
    if (!event.request) {
      if (const auto update = scheduler_.cancel(ids_[event.name])) show(*update);
      return;
    }
    const RequestId id{names_.size() + 1};
    names_[id] = event.name;
    ids_[event.name] = id;
    scheduler_.add(id, *event.request, event.at_ns);
  }

  // Sequences are numbered in the order of their requests' arrival.
  std::string name_of_sequence(SequenceId wanted) const {
    uint64_t first = 1;
    for (const auto& [id, name] : names_) {
      const auto event = std::ranges::find(scenario_.events, name, &Event::name);
      const uint64_t n = event->request->num_choices;
      const uint64_t choice = static_cast<uint64_t>(wanted) - first;
      if (choice < n) return n == 1 ? name : name + "." + std::to_string(choice);
      first += n;
    }
    return "?";
  }

  void run_step(int step) {
    std::ostringstream line;
    line << "t=" << static_cast<double>(now_ns_) * 1e-6 << " step " << step << ":";
    const uint64_t preempted_before = scheduler_.counts().num_preemptions;
    const Batch batch = scheduler_.plan_step(now_ns_);
    for (const BatchItem& item : batch.items) {
      line << " " << name_of_sequence(item.sequence) << "[" << item.begin << "," << item.begin + item.count << ")"
           << (item.samples ? "*" : "");
    }
    for (const BlockCopy& copy : batch.copies) line << " copy " << kv::index(copy.from) << ">" << kv::index(copy.to);
    if (const uint64_t more = scheduler_.counts().num_preemptions - preempted_before) line << " preempted=" << more;
    line << " | running=" << scheduler_.counts().num_running << " waiting=" << scheduler_.counts().num_waiting
         << " free=" << scheduler_.pool().num_free() << " cached=" << scheduler_.pool().num_cached();
    auto outcome = executor_.execute(batch);
    const double seconds = 1e-6 * (scenario_.base_us + scenario_.per_token_us * batch.num_tokens);
    now_ns_ += static_cast<int64_t>(seconds * 1e9);
    if (!outcome) {
      scheduler_.rollback();
      text_ += line.str() + " FAILED: " + outcome.error().message + "\n";
      return;
    }
    text_ += line.str() + "\n";
    for (const Update& update : scheduler_.commit({std::move(*outcome), now_ns_, seconds}).updates) show(update);
  }

  void show(const Update& update) {
    for (const ChoiceDelta& delta : update.deltas) {
      if (!delta.finish) continue;
      const char* reasons[] = {"stop", "length", "cancelled"};
      text_ += "  " + names_[update.request] + "." + std::to_string(delta.choice) + " ends: " +
               reasons[static_cast<int>(delta.finish->reason)] +
               (update.is_last ? ", cached=" + std::to_string(update.num_cached_tokens) : "") + "\n";
    }
  }

  const Scenario scenario_;
  Scheduler scheduler_;
  ScriptedExecutor executor_;
  int64_t now_ns_ = 0;
  std::map<RequestId, std::string> names_;
  std::map<std::string, RequestId> ids_;
  std::string text_;
};

TEST_CASE("schedules are as they were") {
  constexpr const char* kLine = "---\n";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(TANDEM_SOURCE_DIR "/tests/golden")) {
    if (entry.path().extension() == ".sched") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  CHECK(files.size() >= 8);
  for (const auto& file : files) {
    CAPTURE(file.filename().string());
    std::ifstream stream(file);
    const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    const size_t line = text.find(kLine);
    REQUIRE(line != std::string::npos);
    const std::string played = Player(parse(text.substr(0, line))).play();
    const std::string difference = testing::golden_difference(file.string(), text.substr(0, line) + kLine + played);
    CHECK_MESSAGE(difference.empty(), difference);
  }
}

}  // namespace
}  // namespace tandem::sched
