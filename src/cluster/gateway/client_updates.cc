#include "cluster/gateway/client_updates.h"

#include <algorithm>
#include <utility>

namespace tandem::gateway {
namespace {

std::optional<sched::Finish> finish_of(const handoff::TokenEntry& entry) {
  switch (entry.finish) {
    case handoff::Finish::kNone:
      return std::nullopt;
    case handoff::Finish::kStop:
      return sched::Finish{sched::FinishReason::kStop, entry.token, false};
    case handoff::Finish::kStopRule:
      return sched::Finish{sched::FinishReason::kStop, std::nullopt, true};
    case handoff::Finish::kComplete:
      return sched::Finish{sched::FinishReason::kStop, std::nullopt, false};
    case handoff::Finish::kLength:
      return sched::Finish{sched::FinishReason::kLength, std::nullopt, false};
  }
  return sched::Finish{sched::FinishReason::kLength, std::nullopt, false};
}

// One for each choice and update.
sched::ChoiceDelta& delta_of(sched::Update& update, uint32_t choice) {
  const auto found = std::ranges::find(update.deltas, choice, &sched::ChoiceDelta::choice);
  if (found != update.deltas.end()) return *found;
  sched::ChoiceDelta& delta = update.deltas.emplace_back();
  delta.choice = choice;
  return delta;
}

}  // namespace

void ClientUpdates::open(sched::RequestId id, std::shared_ptr<sched::TokenSink> sink, uint32_t num_choices,
                         bool wants_logprobs, bool hides_tokens) {
  Client client;
  client.sink = std::move(sink);
  client.wants_logprobs = wants_logprobs;
  client.hides_tokens = hides_tokens;
  client.is_finished.resize(num_choices);
  clients_.emplace(id, std::move(client));
}

void ClientUpdates::set_scheduled(sched::RequestId id, int64_t scheduled_ns) {
  const auto it = clients_.find(id);
  if (it != clients_.end()) it->second.scheduled_ns = scheduled_ns;
}

void ClientUpdates::add(sched::RequestId id, const handoff::TokenEntry& entry) {
  const auto it = clients_.find(id);
  if (it == clients_.end() || entry.choice >= it->second.is_finished.size()) return;
  Client& client = it->second;
  if (!std::exchange(client.has_news, true)) changed_.push_back(id);
  client.num_cached_tokens = std::max(client.num_cached_tokens, entry.num_cached);
  for (const handoff::PromptScore& score : entry.prompt_scores) {
    client.update.prompt_logprobs.push_back({score.token, score.logprob, score.rank, score.top});
  }
  if (!entry.embedding.empty()) client.update.embedding = entry.embedding;
  sched::ChoiceDelta& delta = delta_of(client.update, entry.choice);
  if (client.hides_tokens) {
    delta.finish = sched::Finish{sched::FinishReason::kLength, std::nullopt, false};
    client.is_finished[entry.choice] = 1;
    return;
  }
  delta.tokens.push_back(entry.token);
  if (client.wants_logprobs) delta.logprobs.push_back({entry.token, entry.logprob, entry.rank, entry.top});
  delta.finish = finish_of(entry);
  client.is_finished[entry.choice] = delta.finish.has_value();
}

void ClientUpdates::end(sched::RequestId id, std::optional<Error> error) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  Client& client = it->second;
  if (!std::exchange(client.has_news, true)) changed_.push_back(id);
  client.update.is_last = true;
  if (error && error->code != ErrorCode::kCancelled) {
    client.update.error = std::move(error);
    return;
  }
  for (uint32_t c = 0; error && c < client.is_finished.size(); ++c) {
    if (client.is_finished[c] != 0) continue;
    delta_of(client.update, c).finish = sched::Finish{sched::FinishReason::kCancelled, std::nullopt, false};
  }
}

std::vector<sched::RequestId> ClientUpdates::publish() {
  std::vector<sched::RequestId> ended;
  for (const sched::RequestId id : std::exchange(changed_, {})) {
    const auto it = clients_.find(id);
    Client& client = it->second;
    client.has_news = false;
    sched::Update update = std::exchange(client.update, {});
    update.request = id;
    update.scheduled_ns = client.scheduled_ns;
    update.num_cached_tokens = client.num_cached_tokens;
    const bool is_last = update.is_last;
    client.sink->publish(std::move(update));
    if (!is_last) continue;
    clients_.erase(it);
    ended.push_back(id);
  }
  return ended;
}

std::vector<sched::RequestId> ClientUpdates::open_ids() const {
  std::vector<sched::RequestId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  return ids;
}

}  // namespace tandem::gateway
