#include "cluster/gateway/registry_watch.h"

#include <utility>

#include "base/log.h"

namespace tandem::gateway {

RegistryWatch::RegistryWatch(registry::Registry& registry, double poll_s, std::function<void()> on_view)
    : registry_(registry), poll_s_(poll_s), on_view_(std::move(on_view)), thread_([this] { run(); }) {}

std::optional<registry::View> RegistryWatch::take() {
  Lock lock(mutex_);
  return std::exchange(view_, std::nullopt);
}

void RegistryWatch::poll_now() {
  {
    Lock lock(mutex_);
    is_woken_ = true;
  }
  wake_.notify_one();
}

void RegistryWatch::stop() {
  {
    Lock lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool RegistryWatch::poll() {
  auto view = registry_.poll(revision_);
  if (!view) return false;
  if (!*view) return true;
  revision_ = (*view)->revision;
  {
    Lock lock(mutex_);
    view_ = std::move(**view);
  }
  on_view_();
  return true;
}

void RegistryWatch::run() {
  bool was_reached = true;
  for (;;) {
    const bool is_reached = poll();
    if (is_reached != was_reached) {
      log_warning("cluster/gateway", is_reached ? "the registry is back" : "the registry cannot be reached");
      was_reached = is_reached;
    }
    Lock lock(mutex_);
    if (!is_stopping_ && !is_woken_) wake_.wait_for(mutex_, poll_s_);
    is_woken_ = false;
    if (is_stopping_) return;
  }
}

}  // namespace tandem::gateway
