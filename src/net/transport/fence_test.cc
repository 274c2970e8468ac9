// The memory fence (docs/protocol.md, section 5), between processes: a peer that is stopped or killed in mid-push
// changes no byte of ours once we have dropped the connection.

#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <random>

#include "net/transport/transport_for_test.h"

using namespace tandem;
using namespace tandem::transport;

namespace {

constexpr size_t kBlockBytes = 360 << 10;
constexpr size_t kNumBlocks = 64;

// Pushes blocks of 'A' until the connection ends, in a process of its own: this program anew, since UCX does not
// survive a fork.
pid_t start_sender(const std::string& address, size_t frame_bytes) {
  const std::string size = std::to_string(frame_bytes);
  const pid_t child = fork();
  if (child != 0) return child;
  setenv("TANDEM_TEST_ADDRESS", address.c_str(), 1);
  setenv("TANDEM_TEST_FRAME_BYTES", size.c_str(), 1);
  execl("/proc/self/exe", "sender", "--test-case=the sender of the other cases", "--no-skip", "--out=/dev/null",
        static_cast<char*>(nullptr));
  _exit(3);
}

int wait_for(pid_t child, int options = 0) {
  int status = 0;
  REQUIRE(waitpid(child, &status, options) == child);
  return status;
}

}  // namespace

TEST_CASE("the sender of the other cases" * doctest::skip()) {
  const char* address = getenv("TANDEM_TEST_ADDRESS");
  const char* frame_bytes = getenv("TANDEM_TEST_FRAME_BYTES");
  REQUIRE(address != nullptr);
  REQUIRE(frame_bytes != nullptr);
  SystemClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  Network network(*loop, Rig::patient({}, nullptr), nullptr);
  RecordingEnd end;
  auto connection = network.connect(address, {}, end);
  REQUIRE(connection);
  const std::string block(strtoull(frame_bytes, nullptr, 10), 'A');
  REQUIRE(run_until(*loop, [&] {
    for (uint64_t i = 0; (*connection)->send(frame_of("push", block, i)); ++i) {
    }
    return !end.closed.empty();
  }));
}

TEST_CASE("SIGSTOP of a sender in mid-push, its blocks given to another, SIGCONT: no byte changes") {
  std::minstd_rand random(7);
  for (const std::string scheme : {"shm", "tcp", "ucx"}) {
    for (int trial = 0; trial < 12; ++trial) {
      CAPTURE(scheme);
      CAPTURE(trial);
      Rig rig(scheme);
      std::string pool(kBlockBytes * kNumBlocks, 'B');
      size_t next_block = 0;
      rig.acceptor.prepare = [&](RecordingEnd& end) {
        end.choose_placement = [&](Connection&, std::string_view, uint64_t) {
          const size_t at = next_block++ % kNumBlocks * kBlockBytes;
          return Placement::into({std::as_writable_bytes(std::span(pool)).subspan(at, kBlockBytes)});
        };
      };
      const pid_t child = start_sender(rig.listener->address(), kBlockBytes);
      REQUIRE(child > 0);
      const size_t stop_at = 1 + random() % kNumBlocks;
      REQUIRE(rig.run([&] { return next_block >= stop_at; }));
      kill(child, SIGSTOP);
      REQUIRE(WIFSTOPPED(wait_for(child, WUNTRACED)));
      CHECK(pool.find('A') != std::string::npos);
      rig.acceptor.connections[0]->close();   // drop it ...
      memset(pool.data(), 'C', pool.size());  // ... and the blocks are the next request's
      kill(child, SIGCONT);
      // Its end of the connection breaks; it goes on until it notices.
      const int status = wait_for(child);
      REQUIRE(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0);
      rig.settle();
      CHECK(pool.find_first_not_of('C') == std::string::npos);
      CHECK(rig.acceptor.ends[0]->closed.empty());
    }
  }
}

TEST_CASE("kill -9 of a sender in mid-frame ends the connection at once, whole frames before it are kept") {
  for (const std::string scheme : {"shm", "tcp", "ucx"}) {
    for (const bool is_held : {true, false}) {
      CAPTURE(scheme);
      CAPTURE(is_held);
      Rig rig(scheme);
      constexpr size_t kFrameBytes = 48 << 20;  // more than ring and sockets hold: the second is never whole
      std::string landed(kFrameBytes, 'B');
      int num_headers = 0;
      pid_t child = 0;
      rig.acceptor.prepare = [&](RecordingEnd& end) {
        end.choose_placement = [&](Connection&, std::string_view, uint64_t) {
          if (++num_headers == 2) kill(child, SIGKILL);
          return is_held ? Placement::hold() : Placement::into({std::as_writable_bytes(std::span(landed))});
        };
      };
      child = start_sender(rig.listener->address(), kFrameBytes);
      REQUIRE(child > 0);
      REQUIRE(rig.run([&] { return !rig.acceptor.ends.empty() && !rig.acceptor.ends[0]->closed.empty(); }));
      CHECK(WIFSIGNALED(wait_for(child)));
      const RecordingEnd& end = *rig.acceptor.ends[0];
      CHECK(end.frames.size() == 1);
      CHECK(end.closed[0].code == ErrorCode::kUnavailable);
      CHECK(end.closed[0].message.find("mid-frame") != std::string::npos);
    }
  }
}

TEST_CASE("a sender stopped in mid-frame is given up after the stall time-out") {
  for (const std::string scheme : {"shm", "tcp", "ucx"}) {
    CAPTURE(scheme);
    ManualClock clock;
    Rig rig(scheme, {}, &clock);
    constexpr size_t kFrameBytes = 48 << 20;
    std::string landed(kFrameBytes, 'B');
    bool has_begun = false;
    rig.acceptor.prepare = [&](RecordingEnd& end) {
      end.choose_placement = [&](Connection&, std::string_view, uint64_t) {
        has_begun = true;
        return Placement::into({std::as_writable_bytes(std::span(landed))});
      };
    };
    const pid_t child = start_sender(rig.listener->address(), kFrameBytes);
    REQUIRE(child > 0);
    REQUIRE(rig.run([&] { return has_begun; }));
    kill(child, SIGSTOP);
    REQUIRE(WIFSTOPPED(wait_for(child, WUNTRACED)));
    for (int i = 0; i < 100; ++i) rig.loop->run_once(0);  // what had left before
    RecordingEnd& end = *rig.acceptor.ends[0];
    REQUIRE(end.closed.empty());
    clock.advance_ms(4999);
    for (int i = 0; i < 3; ++i) rig.loop->run_once(0);
    CHECK(end.closed.empty());
    clock.advance_ms(2);
    rig.loop->run_once(0);
    REQUIRE(end.closed.size() == 1);
    CHECK(end.closed[0].code == ErrorCode::kDeadline);
    kill(child, SIGKILL);
    wait_for(child);
  }
}
