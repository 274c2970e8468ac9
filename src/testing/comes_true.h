#pragma once
// Waiting in tests for what another thread brings about.

#include <chrono>
#include <functional>
#include <thread>

namespace tandem::testing {

// Polls `is_so` until it says so. False after ten minutes: what that bounds is a hang, never how fast something is.
inline bool comes_true(const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tandem::testing
