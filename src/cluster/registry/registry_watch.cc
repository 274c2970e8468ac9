#include "cluster/registry/registry_watch.h"

#include <utility>

#include "base/log.h"

namespace tandem::registry {

RegistryWatch::RegistryWatch(Registry& registry, double poll_s, std::function<void()> on_view)
    : registry_(registry), poll_s_(poll_s), on_view_(std::move(on_view)), thread_([this] { run(); }) {}

std::optional<View> RegistryWatch::take() {
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

Status RegistryWatch::poll() {
  TRY_ASSIGN(std::optional<View> view, registry_.poll(revision_));
  if (!view) return Done{};
  revision_ = view->revision;
  {
    Lock lock(mutex_);
    view_ = std::move(*view);
  }
  on_view_();
  return Done{};
}

void RegistryWatch::run() {
  for (;;) {
    const Status polled = poll();
    if (static_cast<bool>(polled) != is_reached_) {
      if (polled) log_warning("cluster/registry", "the registry is back");
      else log_warning("cluster/registry", "the registry cannot be reached", {{"why", polled.error().message}});
      is_reached_ = static_cast<bool>(polled);
    }
    Lock lock(mutex_);
    if (!is_stopping_ && !is_woken_) wake_.wait_for(mutex_, poll_s_);
    is_woken_ = false;
    if (is_stopping_) return;
  }
}

}  // namespace tandem::registry
