#include "cluster/node/frame_queue.h"

#include <doctest/doctest.h>

namespace tandem::node {
namespace {

struct Waiting {
  FrameClass frame_class;
  size_t size_bytes;
  int number;
};

struct Sent {
  size_t usual_bytes = 0, catch_up_bytes = 0;
};

TEST_CASE("frames that catch up get a fifth of the bytes while others wait, and all of them alone") {
  for (const size_t catch_up_bytes : {100u, 1000u, 5000u}) {
    CAPTURE(catch_up_bytes);
    FrameQueue<Waiting> queue;
    Sent sent;
    const auto push = [&](FrameClass frame_class, int number) {
      queue.push({frame_class, frame_class == FrameClass::kUsual ? 700u : catch_up_bytes, number}, frame_class);
    };
    int last[2] = {-1, -1};
    const auto pop = [&] {
      const Waiting frame = queue.pop();
      queue.count_popped(frame.size_bytes);
      (frame.frame_class == FrameClass::kUsual ? sent.usual_bytes : sent.catch_up_bytes) += frame.size_bytes;
      int& previous = last[static_cast<int>(frame.frame_class)];
      CHECK(frame.number == previous + 1);  // in order within the class
      previous = frame.number;
    };
    int next[2] = {0, 0};
    for (int i = 0; i < 3; ++i) push(FrameClass::kCatchUp, next[1]++);
    for (int i = 0; i < 3; ++i) pop();  // nobody else waits
    CHECK(sent.catch_up_bytes == 3 * catch_up_bytes);
    sent = {};
    for (int i = 0; i < 4000; ++i) {  // both always wait
      while (next[0] - last[0] < 4) push(FrameClass::kUsual, next[0]++);
      while (next[1] - last[1] < 4) push(FrameClass::kCatchUp, next[1]++);
      pop();
    }
    const size_t fifth = (sent.usual_bytes + sent.catch_up_bytes) / 5;
    CHECK(sent.catch_up_bytes <= fifth + catch_up_bytes);
    CHECK(sent.catch_up_bytes + catch_up_bytes + 700 >= fifth);  // nor do they starve
    while (!queue.is_empty()) pop();
    CHECK(last[0] == next[0] - 1);
    CHECK(last[1] == next[1] - 1);
  }
}

TEST_CASE("a lull saves nothing up for frames that catch up") {
  FrameQueue<Waiting> queue;
  const auto pop = [&] {
    const Waiting frame = queue.pop();
    queue.count_popped(frame.size_bytes);
    return frame.frame_class;
  };
  for (int i = 0; i < 100; ++i) queue.push({FrameClass::kUsual, 1000, i}, FrameClass::kUsual);
  for (int i = 0; i < 99; ++i) CHECK(pop() == FrameClass::kUsual);
  queue.push({FrameClass::kCatchUp, 1000, 0}, FrameClass::kCatchUp);
  CHECK(pop() == FrameClass::kUsual);
  CHECK(pop() == FrameClass::kCatchUp);
}

}  // namespace
}  // namespace tandem::node
