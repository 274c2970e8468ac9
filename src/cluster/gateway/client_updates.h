#pragma once
// ClientUpdates: the tokens and ends that one round of the gateway brings, as one update for each request, in the shape
// that one process gives. One thread.

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cluster/handoff/messages.h"
#include "serve/sched/request.h"

namespace tandem::gateway {

class ClientUpdates {
 public:
  // hides_tokens: of a client who wants something of the prompt alone.
  void open(sched::RequestId id, std::shared_ptr<sched::TokenSink> sink, uint32_t num_choices, bool wants_logprobs,
            bool hides_tokens = false);
  void set_scheduled(sched::RequestId id, int64_t scheduled_ns);

  void add(sched::RequestId id, const handoff::TokenEntry& entry);
  // Nothing: all choices are finished. kCancelled: those that are not end so, as they do in one process.
  void end(sched::RequestId id, std::optional<Error> error);

  // Gives out what has come since; returns those that have ended. Their sinks are let go.
  std::vector<sched::RequestId> publish();

  std::vector<sched::RequestId> open_ids() const;

 private:
  struct Client {
    std::shared_ptr<sched::TokenSink> sink;
    bool wants_logprobs = false;
    bool hides_tokens = false;
    std::vector<uint8_t> is_finished;  // by choice
    int64_t scheduled_ns = 0;
    uint32_t num_cached_tokens = 0;
    sched::Update update;              // what is to be given out
    bool has_news = false;
  };

  std::map<sched::RequestId, Client> clients_;
  std::vector<sched::RequestId> changed_;
};

}  // namespace tandem::gateway
