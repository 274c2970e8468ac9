#pragma once
// FrameQueue: frames that wait for one connection. Those that only bring a new mirror up to date give way: while others
// wait they get at most a fifth of the bytes; alone they get all.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace tandem::node {

enum class FrameClass : uint8_t { kUsual, kCatchUp };

template <class Frame>
class FrameQueue {
 public:
  void push(Frame frame, FrameClass frame_class) {
    (frame_class == FrameClass::kUsual ? usual_ : catch_up_).push_back(std::move(frame));
  }
  bool is_empty() const { return usual_.empty() && catch_up_.empty(); }

  // The next one to send; there must be one. Order within a class.
  Frame pop() {
    const bool gives_way = !usual_.empty() && (catch_up_.empty() || allowance_bytes_ <= 0);
    popped_ = catch_up_.empty() || gives_way ? FrameClass::kUsual : FrameClass::kCatchUp;
    is_contended_ = !usual_.empty() && !catch_up_.empty();
    std::deque<Frame>& from = popped_ == FrameClass::kUsual ? usual_ : catch_up_;
    Frame frame = std::move(from.front());
    from.pop_front();
    return frame;
  }
  // The size of the one popped last, which was not known before; nothing for one that is not sent.
  void count_popped(size_t size_bytes) {
    if (!is_contended_) {
      allowance_bytes_ = 0;  // nothing is saved up for later
    } else if (popped_ == FrameClass::kUsual) {
      allowance_bytes_ += static_cast<int64_t>(size_bytes / kUsualPerCatchUp);
    } else {
      allowance_bytes_ -= static_cast<int64_t>(size_bytes);
    }
  }

 private:
  static constexpr size_t kUsualPerCatchUp = 4;  // bytes

  std::deque<Frame> usual_, catch_up_;
  int64_t allowance_bytes_ = 0;  // that frames which catch up may send while others wait
  FrameClass popped_ = FrameClass::kUsual;
  bool is_contended_ = false;
};

}  // namespace tandem::node
