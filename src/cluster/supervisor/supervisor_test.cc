#include "cluster/supervisor/supervisor.h"

#include <doctest/doctest.h>
#include <signal.h>

#include "cluster/supervisor/scripted_processes_for_test.h"

namespace tandem::supervisor {
namespace {

constexpr ProcessExit kKilled = {0, SIGKILL};

// A gateway and two nodes, started.
struct Cluster {
  ManualClock clock;
  ScriptedProcesses processes{clock};
  Supervisor supervisor;

  static std::vector<ChildSpec> specs() {
    std::vector<ChildSpec> specs(3);
    specs[0].name = "gateway";
    specs[0].stop_grace_ns = 30'000'000'000;
    specs[1].name = "p1";
    specs[2].name = "d1";
    specs[1].stop_stage = specs[2].stop_stage = 1;
    specs[1].may_leave = specs[2].may_leave = true;
    return specs;
  }

  Cluster() : supervisor({}, specs(), processes, clock) { supervisor.step(0); }

  void all_say(const std::string& line) {
    for (const char* name : {"gateway", "p1", "d1"}) processes.say(name, line);
    supervisor.step(0);
  }
  // Everybody who lives beats, but `silent`.
  void pass_s(double seconds, const std::string& silent = {}) {
    for (double passed = 0; passed < seconds; passed += 0.5) {
      for (const Child& child : supervisor.children()) {
        if (child.process && child.spec.name != silent) processes.say(child.spec.name, "beat");
      }
      supervisor.step(0);
      clock.advance_ms(500);
      supervisor.step(0);
    }
  }
  ChildPhase phase(const std::string& name) { return supervisor.find(name)->phase; }
  std::string news() {
    std::string all;
    for (const std::string& line : supervisor.take_news()) all += line + "\n";
    return all;
  }
};

TEST_CASE("children start at once and are ready when they say so") {
  Cluster cluster;
  CHECK(cluster.processes.started.size() == 3);
  CHECK(cluster.phase("d1") == ChildPhase::kStarting);
  CHECK_FALSE(cluster.supervisor.are_all_ready());
  cluster.all_say("ready 127.0.0.1:8000");
  CHECK(cluster.supervisor.are_all_ready());
  CHECK(cluster.supervisor.find("gateway")->ready_text == "127.0.0.1:8000");
  CHECK(cluster.news().find("gateway is ready, pid 1001\n") == 0);
  cluster.processes.say("gateway", "status {\"a\": 1}");
  cluster.supervisor.step(0);
  CHECK(cluster.supervisor.find("gateway")->said.at("status") == "{\"a\": 1}");
}

TEST_CASE("DEP-07: what dies starts again after pauses that double to the longest and begin anew once it has settled") {
  Cluster cluster;
  cluster.all_say("ready");
  cluster.news();
  const int64_t pauses_ms[] = {250, 500, 1000, 2000, 4000, 8000, 10000, 10000};
  size_t num_starts = 1;
  for (const int64_t pause_ms : pauses_ms) {
    cluster.processes.end("d1", kKilled);
    cluster.supervisor.step(0);
    CHECK(cluster.phase("d1") == ChildPhase::kPausing);
    cluster.all_say("beat");
    cluster.clock.advance_ms(static_cast<double>(pause_ms) - 1);
    cluster.all_say("beat");
    CHECK(cluster.processes.num_starts("d1") == num_starts);
    cluster.clock.advance_ms(1);
    cluster.all_say("beat");
    CHECK(cluster.processes.num_starts("d1") == ++num_starts);
    cluster.all_say("ready");
  }
  CHECK(cluster.news().find("d1 was ended by signal 9; starts again in 0.25 s\nd1 is ready") == 0);
  CHECK(cluster.supervisor.find("d1")->num_restarts == num_starts - 1);
  CHECK(cluster.processes.num_starts("p1") == 1);
  cluster.pass_s(61);
  cluster.processes.end("d1", kKilled);
  cluster.supervisor.step(0);
  CHECK(cluster.news().find("starts again in 0.25 s") != std::string::npos);
}

TEST_CASE("the wait for news is no longer than until the next thing is due") {
  Cluster cluster;
  cluster.all_say("ready");
  const int64_t began_ns = cluster.clock.now_ns();
  cluster.processes.end("d1", kKilled);
  cluster.supervisor.step(100);
  cluster.supervisor.step(100);
  CHECK(cluster.clock.now_ns() - began_ns == 250'000'000);
  CHECK(cluster.processes.num_starts("d1") == 2);
  cluster.supervisor.step(100);
  CHECK(cluster.clock.now_ns() - began_ns == 5'000'000'000);
}

TEST_CASE("five seconds of silence are a death, also while it starts") {
  Cluster cluster;
  cluster.processes.say("gateway", "ready");
  cluster.processes.say("p1", "ready");
  cluster.pass_s(4.5, "d1");
  CHECK(cluster.processes.signals.empty());
  cluster.pass_s(1, "d1");
  CHECK(cluster.processes.was_sent("d1", SIGKILL));
  CHECK(cluster.processes.signals.size() == 1);  // once, and nobody else
  cluster.pass_s(3, "d1");
  CHECK(cluster.processes.signals.size() == 1);
  cluster.processes.end("d1", kKilled);
  cluster.supervisor.step(0);
  CHECK(cluster.news().find("d1 was silent and has been killed; starts again") != std::string::npos);
}

TEST_CASE("a supervisor that was itself stopped reads what was said before it judges") {
  Cluster cluster;
  cluster.all_say("ready");
  cluster.clock.advance_ms(20'000);
  cluster.all_say("beat");
  CHECK(cluster.processes.signals.empty());
}

TEST_CASE("what was stopped with its supervisor gets the whole time to say something") {
  Cluster cluster;
  cluster.all_say("ready");
  cluster.pass_s(4, "d1");
  cluster.clock.advance_ms(40'000);
  cluster.supervisor.step(0);
  CHECK(cluster.processes.signals.empty());
  cluster.pass_s(0.5, "d1");
  CHECK(cluster.processes.signals.empty());
  cluster.pass_s(5, "d1");  // it had been silent before the stop, and is afterwards
  CHECK(cluster.processes.was_sent("d1", SIGKILL));
  CHECK(cluster.processes.signals.size() == 1);
}

TEST_CASE("DEP-07: what never was ready ends the cluster after three attempts, with the reason") {
  Cluster cluster;
  cluster.processes.say("gateway", "ready");
  cluster.processes.say("p1", "ready");
  for (int attempt = 0; attempt < 3; ++attempt) {
    CHECK_FALSE(cluster.supervisor.failure());
    cluster.pass_s(1);
    cluster.processes.end("d1", {1, 0});
    cluster.supervisor.step(0);
  }
  REQUIRE(cluster.supervisor.failure());
  CHECK(cluster.supervisor.failure()->message.find("d1 ended with code 1, 3 times in a row") == 0);
  CHECK(cluster.processes.num_starts("d1") == 3);
  CHECK(cluster.processes.was_sent("gateway", SIGTERM));
  cluster.processes.end("gateway", {});
  cluster.supervisor.step(0);
  CHECK(cluster.processes.was_sent("p1", SIGTERM));
  cluster.processes.end("p1", {});
  cluster.supervisor.step(0);
  CHECK(cluster.supervisor.is_done());
}

TEST_CASE("a process that cannot be had is a fault like any other") {
  ManualClock clock;
  ScriptedProcesses processes(clock);
  processes.refused = {"p1"};
  Supervisor supervisor({}, Cluster::specs(), processes, clock);
  supervisor.step(0);
  CHECK(supervisor.find("p1")->phase == ChildPhase::kPausing);
  processes.refused.clear();
  supervisor.step(1);
  CHECK(supervisor.find("p1")->phase == ChildPhase::kStarting);
  CHECK(supervisor.take_news()[0].find("p1 could not be started: no process") == 0);
}

TEST_CASE("a node that ends with code 0 has left, and is not started again; a gateway is") {
  Cluster cluster;
  cluster.all_say("ready");
  cluster.processes.end("p1", {0, 0});
  cluster.processes.end("gateway", {0, 0});
  cluster.pass_s(20);
  CHECK(cluster.processes.num_starts("gateway") == 2);
  cluster.processes.say("gateway", "ready");
  cluster.supervisor.step(0);
  CHECK(cluster.phase("p1") == ChildPhase::kLeft);
  CHECK(cluster.processes.num_starts("p1") == 1);
  CHECK(cluster.supervisor.are_all_ready());
  CHECK(cluster.news().find("p1 has left the cluster") != std::string::npos);
}

TEST_CASE("the gateway ends first; until it has, nodes are still restarted; then they are asked, then killed") {
  Cluster cluster;
  cluster.all_say("ready");
  cluster.supervisor.begin_stop();
  CHECK(cluster.processes.was_sent("gateway", SIGTERM));
  cluster.pass_s(3);
  CHECK(cluster.processes.signals.size() == 1);
  cluster.processes.end("d1", kKilled);
  cluster.pass_s(1);
  CHECK(cluster.processes.num_starts("d1") == 2);
  cluster.processes.say("d1", "ready");
  cluster.processes.end("gateway", {0, 0});
  cluster.supervisor.step(0);
  CHECK(cluster.phase("gateway") == ChildPhase::kEnded);
  CHECK(cluster.processes.was_sent("p1", SIGTERM));
  CHECK(cluster.processes.was_sent("d1", SIGTERM));
  cluster.processes.end("p1", {0, 0});
  cluster.pass_s(4);
  CHECK_FALSE(cluster.processes.was_sent("d1", SIGKILL));
  cluster.pass_s(2);
  CHECK(cluster.processes.was_sent("d1", SIGKILL));
  CHECK_FALSE(cluster.supervisor.is_done());
  cluster.processes.end("d1", kKilled);
  cluster.supervisor.step(0);
  CHECK(cluster.supervisor.is_done());
  CHECK_FALSE(cluster.supervisor.failure());
}

TEST_CASE("a child that waits for its restart when its stage ends is over") {
  Cluster cluster;
  cluster.all_say("ready");
  cluster.processes.end("gateway", kKilled);
  cluster.processes.end("d1", kKilled);
  cluster.supervisor.step(0);
  cluster.supervisor.begin_stop();
  CHECK(cluster.phase("gateway") == ChildPhase::kEnded);
  cluster.supervisor.step(0);
  CHECK(cluster.phase("d1") == ChildPhase::kEnded);
  CHECK(cluster.processes.was_sent("p1", SIGTERM));
}

}  // namespace
}  // namespace tandem::supervisor
