#pragma once
// NodeSessions: a node's side of its sessions, one current per gateway. A node holds nothing for a session older than
// the newest Hello it saw, and nothing for a gateway that it has not heard for a lease.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cluster/handoff/ids.h"
#include "cluster/handoff/timing.h"

namespace tandem::handoff {

class NodeSessions {
 public:
  struct Session {
    NodeRef gateway;
    SessionId id;
    uint64_t stream = 0;  // the driver's name of the connection
    Nanos last_heard = 0;
  };
  enum class HelloResult : uint8_t { kFirst, kReplaces, kRefused };

  // kReplaces: all that the older session held must go. A stream whose Hello is refused is to be closed.
  HelloResult on_hello(const NodeRef& gateway, const SessionId& id, uint64_t stream, Nanos now) {
    auto [it, is_new] = sessions_.try_emplace(gateway.id, Session{gateway, id, stream, now});
    if (is_new) return HelloResult::kFirst;
    Session& session = it->second;
    // Incarnations have no order. Of one process the higher counter is newer; of another process this one is, because
    // it has just spoken.
    if (session.gateway == gateway && id.counter <= session.id.counter) return HelloResult::kRefused;
    session = {gateway, id, stream, now};
    return HelloResult::kReplaces;
  }

  // The current session that this stream carries; null: none, its messages are void.
  Session* heard(const std::string& gateway, uint64_t stream, Nanos now) {
    const auto it = sessions_.find(gateway);
    if (it == sessions_.end() || it->second.stream != stream) return nullptr;
    it->second.last_heard = now;
    return &it->second;
  }
  const Session* find(const std::string& gateway) const {
    const auto it = sessions_.find(gateway);
    return it == sessions_.end() ? nullptr : &it->second;
  }

  // Gateways whose lease has ended; their sessions are forgotten.
  std::vector<std::string> expire(Nanos now, const Timing& timing) {
    std::vector<std::string> gone;
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      if (now - it->second.last_heard < timing.lease) {
        ++it;
        continue;
      }
      gone.push_back(it->first);
      it = sessions_.erase(it);
    }
    return gone;
  }

  const std::map<std::string, Session>& all() const { return sessions_; }

 private:
  std::map<std::string, Session> sessions_;
};

}  // namespace tandem::handoff
