#include "net/transport/ucx_connection.h"

#include <string.h>

#include <utility>

namespace tandem::transport {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr uint64_t kWindow = 8;  // chunks sent and not credited

}  // namespace

Result<std::unique_ptr<Connection>> UcxConnection::connect(EventLoop& loop, const TransportLimits& limits,
                                                           std::shared_ptr<UcxWorker> worker,
                                                           const ucp_ep_params_t& where, Bytes greeting,
                                                           ConnectionHandler& handler) {
  if (greeting.size() > limits.max_greeting_bytes) {
    return Error{ErrorCode::kInvalidArgument, "the greeting is too long"};
  }
  std::unique_ptr<UcxConnection> made(new UcxConnection(loop, limits, std::move(worker), &handler, nullptr));
  TRY_ASSIGN(made->endpoint_, made->worker_->open(where, *made));
  made->send_greeting(GreetingKind::kHello, greeting);
  return std::unique_ptr<Connection>(std::move(made));
}

void UcxConnection::accept(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxWorker> worker,
                           const ucp_ep_params_t& where, Lobby& lobby) {
  std::unique_ptr<UcxConnection> made(new UcxConnection(loop, limits, std::move(worker), nullptr, &lobby));
  auto endpoint = made->worker_->open(where, *made);
  if (!endpoint) return;
  made->endpoint_ = *endpoint;
  lobby.enter(std::move(made));
}

void UcxConnection::release() {
  if (endpoint_ != nullptr) {
    // A peer that is busy sending may hear of a forced end late, or not at all.
    if (!broken_) worker_->send(endpoint_, {UcxHeader::Kind::kGoodbye, 0, 0}, nullptr, 0);
    worker_->close(std::exchange(endpoint_, nullptr));
  }
  // A callback on the stack may still look at a chunk.
  loop_.retire(std::make_shared<std::map<uint64_t, UcxBytes>>(std::move(inbox_)));
  inbox_.clear();
  greeting_.reset();
}

void UcxConnection::on_message(const UcxHeader& header, UcxBytes bytes) {
  const bool is_whole = header.kind == UcxHeader::Kind::kChunk && header.number - next_chunk_ < kWindow &&
                        bytes.bytes().size() <= kChunkBytes && !bytes.bytes().empty();
  if (is_refused_) return;
  if (is_whole) {
    inbox_.emplace(header.number, std::move(bytes));
  } else if (header.kind == UcxHeader::Kind::kCredit && header.number >= num_credited_ && header.number <= num_sent_) {
    num_credited_ = header.number;
  } else if (header.kind == UcxHeader::Kind::kGreeting && !greeting_ && state_ == State::kGreeting) {
    greeting_.emplace(std::move(bytes));
  } else if (header.kind == UcxHeader::Kind::kGoodbye) {
    return on_broken("closed");
  } else if (!broken_) {
    broken_ = Error{ErrorCode::kCorrupt, "a message that no peer sends"};
  }
  loop_.defer(*this);
}

void UcxConnection::on_broken(const char* reason) {
  if (!broken_) broken_ = peer_gone(std::string("the peer is gone: ") + reason);
  loop_.defer(*this);
}

void UcxConnection::continue_greeting() {
  if (greeting_) {
    const UcxBytes message = std::move(*greeting_);
    greeting_.reset();
    if (Status status = take_greeting(message.bytes()); !status) fail(std::move(status).error());
  } else if (broken_) {
    fail(*broken_);
  }
}

Status UcxConnection::take_greeting(Bytes message) {
  if (message.size() < sizeof(Greeting)) return Error{ErrorCode::kCorrupt, "the peer's greeting is none"};
  const auto greeting = copy_from<Greeting>(message);
  TRY(check_greeting(greeting, limits_));
  if (greeting.kind == GreetingKind::kRefusal && !is_accepting()) return peer_gone("the peer refused the connection");
  const GreetingKind expected = is_accepting() ? GreetingKind::kHello : GreetingKind::kWelcome;
  if (greeting.kind != expected || message.size() != sizeof greeting + greeting.owner_bytes) {
    return Error{ErrorCode::kCorrupt, "the peer's greeting is out of order"};
  }
  if (is_accepting()) {
    const bool is_admitted = admit(message.subspan(sizeof greeting));
    send_greeting(is_admitted ? GreetingKind::kWelcome : GreetingKind::kRefusal, {});
    is_refused_ = !is_admitted;
    if (is_refused_) return Done{};  // the peer ends it, or the time-out does: closing now would lose the refusal
  }
  opened(greeting.connection_id);
  return Done{};
}

void UcxConnection::send_greeting(GreetingKind kind, Bytes owner_greeting) {
  const Greeting greeting = {.kind = kind,
                             .connection_id = static_cast<uint64_t>(id()),
                             .owner_bytes = static_cast<uint32_t>(owner_greeting.size())};
  const size_t size = sizeof greeting + owner_greeting.size();
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  memcpy(bytes.get(), &greeting, sizeof greeting);
  if (!owner_greeting.empty()) memcpy(bytes.get() + sizeof greeting, owner_greeting.data(), owner_greeting.size());
  worker_->send(endpoint_, {}, std::move(bytes), size);
}

void UcxConnection::flush() {
  while (!queue_.is_empty() && num_sent_ - num_credited_ < kWindow && !broken_) {
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(kChunkBytes);
    const size_t size = queue_.copy_to(MutableBytes(bytes.get(), kChunkBytes));
    for (const uint64_t tag : queue_.take_sent()) sent_tags_.emplace_back(num_sent_, tag);
    worker_->send(endpoint_, {UcxHeader::Kind::kChunk, 0, num_sent_++}, std::move(bytes), size);
    note_progress();
  }
}

std::vector<uint64_t> UcxConnection::take_sent() {
  std::vector<uint64_t> tags;
  while (!sent_tags_.empty() && sent_tags_.front().first < num_credited_) {
    tags.push_back(sent_tags_.front().second);
    sent_tags_.pop_front();
  }
  return tags;
}

void UcxConnection::fill() {
  while (!is_stopped()) {
    const auto chunk = inbox_.find(next_chunk_);
    if (chunk == inbox_.end()) break;
    const Bytes unread = chunk->second.bytes().subspan(chunk_offset_);
    auto used = reader_.feed(unread, *this);
    if (!used) return fail(used.error());
    if (state_ == State::kClosed) return;
    note_progress();
    chunk_offset_ += *used;
    if (*used < unread.size()) continue;
    inbox_.erase(chunk);
    ++next_chunk_;
    chunk_offset_ = 0;
  }
  if (state_ == State::kClosed) return;
  give_credit();
  // Later chunks may be here when the next one never comes.
  if (!broken_ || inbox_.contains(next_chunk_)) return;
  Error reason = *broken_;
  if (reader_.is_mid_frame()) reason.message += ", in mid-frame";
  fail(std::move(reason));
}

void UcxConnection::give_credit() {
  if (credit_given_ == next_chunk_ || broken_) return;
  credit_given_ = next_chunk_;
  worker_->send(endpoint_, {UcxHeader::Kind::kCredit, 0, credit_given_}, nullptr, 0);
}

}  // namespace tandem::transport
