#include "net/transport/event_loop.h"

#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <string>
#include <thread>

using namespace tandem;
using namespace tandem::transport;

namespace {

struct Recorder final : LoopClient {
  explicit Recorder(EventLoop& own_loop) : loop(own_loop) {}
  ~Recorder() { loop.forget(*this); }
  void on_io(uint32_t events) override {
    io.push_back(events);
    if (hook) hook();
  }
  void on_task() override {
    ++num_tasks;
    if (is_repeating) loop.defer(*this);
  }
  void on_timer() override { timers.push_back(loop.now_ns()); }

  EventLoop& loop;
  std::vector<uint32_t> io;
  int num_tasks = 0;
  bool is_repeating = false;
  std::vector<int64_t> timers;
  std::function<void()> hook;
};

}  // namespace

TEST_CASE("timers come once, when the clock says so, and can be moved and cleared") {
  ManualClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  Recorder one(*loop), two(*loop);
  loop->set_timer(one, 1'000);
  loop->set_timer(two, 2'000);
  loop->run_once(0);
  CHECK(one.timers.empty());
  loop->set_timer(one, 3'000);
  clock.set_ns(2'500);
  loop->run_once(0);
  CHECK(one.timers.empty());
  CHECK(two.timers == std::vector<int64_t>{2'500});
  clock.set_ns(3'000);
  loop->run_once(0);
  loop->run_once(0);
  CHECK(one.timers == std::vector<int64_t>{3'000});
  loop->set_timer(one, 4'000);
  loop->clear_timer(one);
  clock.set_ns(5'000);
  loop->run_once(0);
  CHECK(one.timers.size() == 1);
}

TEST_CASE("a task that asks for another turn does not keep the loop") {
  SystemClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  Recorder one(*loop), two(*loop);
  one.is_repeating = true;
  loop->defer(one);
  loop->defer(one);
  loop->defer(two);
  loop->run_once(-1);  // does not sleep with work to do
  CHECK(one.num_tasks == 1);
  CHECK(two.num_tasks == 1);
  loop->run_once(-1);
  CHECK(one.num_tasks == 2);
  CHECK(two.num_tasks == 1);
}

TEST_CASE("a client that unwatches another in the same round spares it the event") {
  SystemClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  int first[2], second[2];
  REQUIRE(pipe(first) == 0);
  REQUIRE(pipe(second) == 0);
  Recorder one(*loop), two(*loop);
  one.hook = [&] { loop->unwatch(second[0]); };
  two.hook = [&] { loop->unwatch(first[0]); };
  REQUIRE(loop->watch(first[0], EPOLLIN, one));
  REQUIRE(loop->watch(second[0], EPOLLIN, two));
  REQUIRE(write(first[1], "x", 1) == 1);
  REQUIRE(write(second[1], "x", 1) == 1);
  loop->run_once(0);
  CHECK(one.io.size() + two.io.size() == 1);
  for (const int fd : {first[0], first[1], second[0], second[1]}) close(fd);
}

TEST_CASE("posted work runs on the loop's thread, in order, and wakes it") {
  SystemClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  std::vector<int> order;
  std::thread::id ran_on;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) loop->post([&order, i] { order.push_back(i); });
    loop->post([&] { ran_on = std::this_thread::get_id(); });
    loop->stop();
  });
  loop->run();
  other.join();
  REQUIRE(order.size() == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(order[static_cast<size_t>(i)] == i);
  CHECK(ran_on == std::this_thread::get_id());
}

TEST_CASE("what is retired dies after the round") {
  SystemClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  auto object = std::make_shared<int>(1);
  std::weak_ptr<int> seen = object;
  loop->retire(std::move(object));
  CHECK(!seen.expired());
  loop->run_once(-1);
  CHECK(seen.expired());
}
