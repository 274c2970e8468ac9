#include "net/transport/ucx_connection.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "net/transport/stream_greeting.h"

namespace tandem::transport {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr uint64_t kWindow = 8;  // chunks sent and not credited

}  // namespace

UcxConnection::UcxConnection(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxContexts> contexts,
                             OwnedFd socket, ConnectionHandler* handler, Lobby* lobby)
    : FramedConnection(loop, limits, handler, lobby),
      contexts_(std::move(contexts)),
      socket_(std::move(socket)),
      input_(sizeof(Greeting) + limits.max_greeting_bytes + kMaxCarrierBytes) {
  set_stream_options(socket_.get(), limits);
}

Result<std::unique_ptr<Connection>> UcxConnection::connect(EventLoop& loop, const TransportLimits& limits,
                                                           std::shared_ptr<UcxContexts> contexts, OwnedFd socket,
                                                           Bytes greeting, ConnectionHandler& handler) {
  if (greeting.size() > limits.max_greeting_bytes) {
    return Error{ErrorCode::kInvalidArgument, "the greeting is too long"};
  }
  std::unique_ptr<UcxConnection> made(
      new UcxConnection(loop, limits, std::move(contexts), std::move(socket), &handler, nullptr));
  made->is_connecting_ = true;
  made->owner_greeting_.assign(greeting.begin(), greeting.end());
  TRY(loop.watch(made->socket_.get(), EPOLLOUT, *made));
  return std::unique_ptr<Connection>(std::move(made));
}

void UcxConnection::accept(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxContexts> contexts,
                           OwnedFd socket, Lobby& lobby) {
  if (!lobby.has_room()) return;
  std::unique_ptr<UcxConnection> made(
      new UcxConnection(loop, limits, std::move(contexts), std::move(socket), nullptr, &lobby));
  if (loop.watch(made->socket_.get(), EPOLLIN, *made)) lobby.enter(std::move(made));
}

void UcxConnection::release() {
  if (socket_) loop_.unwatch(socket_.get());
  socket_.reset();
  if (worker_ != nullptr) worker_->leave();
  // A callback on the stack may still look at a chunk.
  loop_.retire(std::make_shared<std::map<uint64_t, UcxBytes>>(std::move(inbox_)));
  inbox_.clear();
  worker_.reset();
}

void UcxConnection::on_io(uint32_t) {
  if (state_ == State::kGreeting) {
    if (Status status = greet(); !status) fail(std::move(status).error());
    return;
  }
  if (state_ != State::kOpen) return;
  char byte;
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  loop_.unwatch(socket_.get());
  worker_->drain();  // what it sent before it went
  if (got > 0 && !broken_) broken_ = Error{ErrorCode::kCorrupt, "bytes behind the greeting"};
  on_broken(got == 0 ? "closed" : strerror(errno));
}

void UcxConnection::on_message(const UcxHeader& header, UcxBytes bytes) {
  const bool is_whole = header.kind == UcxHeader::Kind::kChunk && header.number - next_chunk_ < kWindow &&
                        bytes.bytes().size() <= kChunkBytes && !bytes.bytes().empty();
  if (is_whole) {
    inbox_.emplace(header.number, std::move(bytes));
  } else if (header.kind == UcxHeader::Kind::kCredit && header.number >= num_credited_ && header.number <= num_sent_) {
    num_credited_ = header.number;
  } else if (!broken_) {
    broken_ = Error{ErrorCode::kCorrupt, "a message that no peer sends"};
  }
  loop_.defer(*this);
}

void UcxConnection::on_broken(const char* reason) {
  if (!broken_) broken_ = peer_gone(std::string("the peer is gone: ") + reason);
  loop_.defer(*this);
}

Status UcxConnection::greet() {
  if (!is_connecting_) return take_greeting();
  TRY(check_connected(socket_.get()));
  is_connecting_ = false;
  TRY(start_worker());
  TRY(send_greeting(GreetingKind::kHello, owner_greeting_));
  return loop_.watch(socket_.get(), EPOLLIN, *this);
}

Status UcxConnection::start_worker() {
  TRY_ASSIGN(auto context, contexts_->of(socket_.get()));
  TRY_ASSIGN(worker_, UcxWorker::create(loop_, std::move(context), *this));
  return Done{};
}

Status UcxConnection::send_greeting(GreetingKind kind, Bytes owner_greeting) const {
  std::vector<std::byte> introduction;
  if (worker_ != nullptr) {
    TRY_ASSIGN(introduction, worker_->introduction());
  }
  if (introduction.size() > kMaxCarrierBytes) return Error{ErrorCode::kUnavailable, "UCX: too long an address"};
  return send_stream_greeting(socket_.get(), {.kind = kind, .connection_id = static_cast<uint64_t>(id())},
                              owner_greeting, introduction);
}

Status UcxConnection::take_greeting() {
  TRY_ASSIGN(const size_t size,
             receive_stream_greeting(socket_.get(), input_, input_end_, is_accepting(), limits_));
  if (size == 0) return Done{};
  if (size != input_end_) return Error{ErrorCode::kCorrupt, "bytes behind the greeting"};
  const Bytes input(input_.data(), size);
  const auto greeting = copy_from<Greeting>(input);
  if (is_accepting()) {
    if (!admit(input.subspan(sizeof greeting, greeting.owner_bytes))) {
      TRY(send_greeting(GreetingKind::kRefusal, {}));
      return Error{ErrorCode::kCancelled, "refused"};
    }
    TRY(start_worker());
  }
  TRY(worker_->connect(input.subspan(sizeof greeting + greeting.owner_bytes)));
  if (is_accepting()) TRY(send_greeting(GreetingKind::kWelcome, {}));
  opened(greeting.connection_id);
  return Done{};
}

void UcxConnection::flush() {
  while (!queue_.is_empty() && num_sent_ - num_credited_ < kWindow && !broken_) {
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(kChunkBytes);
    const size_t size = queue_.copy_to(MutableBytes(bytes.get(), kChunkBytes));
    for (const uint64_t tag : queue_.take_sent()) sent_tags_.emplace_back(num_sent_, tag);
    worker_->send({.kind = UcxHeader::Kind::kChunk, .number = num_sent_++}, std::move(bytes), size);
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
  worker_->send({.kind = UcxHeader::Kind::kCredit, .number = credit_given_}, nullptr, 0);
}

}  // namespace tandem::transport
