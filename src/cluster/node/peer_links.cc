#include "cluster/node/peer_links.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "cluster/wire/peer_codec.h"
#include "cluster/wire/wire_limits.h"

namespace tandem::node {

using handoff::NodeRef;
using handoff::PeerMessage;
using transport::Bytes;
using transport::Connection;

namespace {

// What one connection may have on its way, so that a slow peer costs no more memory than this.
constexpr size_t kMaxFramesUnderWay = 64;
constexpr size_t kMaxBytesUnderWay = 8 << 20;
constexpr int64_t kAheadOfRateNs = 2'000'000;  // a timer's steps are coarser than a frame at some rates
constexpr size_t kMaxLinks = 4096;
constexpr int64_t kLeastPauseNs = 1'000'000;  // a timer's step: what is owed adds up to it
constexpr int64_t kMostPaidCpuNs = 2'000'000;  // for one frame: the thread does other things between its pieces
constexpr int64_t kGreetingNs = 10'000'000'000;  // well over the transport's own limit
constexpr int64_t kRefusalLogNs = 1'000'000'000;   // strangers do not fill the log

constexpr std::string_view kGreeting = "tandem-kv 2";

// Who speaks, to which process, for a restarted one must not take its predecessor's frames, and by what right.
std::string greeting_of(const NodeRef& from, const NodeRef& to, const KvPass& pass) {
  std::string text(kGreeting);
  for (const uint64_t number : {from.incarnation, to.incarnation, pass.request.high, pass.request.low, pass.token}) {
    text += "\n" + std::to_string(number);
  }
  return text + "\n" + from.id;
}

bool take_number(std::string_view& text, uint64_t& number) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return false;
  const auto [at, error] = std::from_chars(text.data(), text.data() + end, number);
  const bool is_good = error == std::errc() && at == text.data() + end;
  text.remove_prefix(end + 1);
  return is_good;
}

// The speaker and what it shows; absent: no such greeting, or for another process.
std::optional<NodeRef> read_greeting(std::string_view text, const NodeRef& self, KvPass& pass) {
  if (!text.starts_with(kGreeting) || text.size() <= kGreeting.size() || text[kGreeting.size()] != '\n') return {};
  text.remove_prefix(kGreeting.size() + 1);
  NodeRef from;
  uint64_t incarnation = 0;
  for (uint64_t* number : {&from.incarnation, &incarnation, &pass.request.high, &pass.request.low, &pass.token}) {
    if (!take_number(text, *number)) return {};
  }
  if (incarnation != self.incarnation || text.empty() || text.size() > wire::kMaxNameBytes) return {};
  from.id = text;
  return from;
}

uint32_t payload_bytes_of(const PeerMessage& message) {
  if (const auto* push = std::get_if<handoff::Push>(&message)) return push->payload.size_bytes;
  if (const auto* mirror = std::get_if<handoff::Mirror>(&message)) return mirror->payload.size_bytes;
  return 0;
}

}  // namespace

class PeerLinks::Link final : public transport::ConnectionHandler, public transport::LoopClient {
 public:
  Link(PeerLinks& links, uint64_t number, NodeRef peer, int64_t made_at_ns)
      : links_(links), number_(number), peer_(std::move(peer)), made_at_ns_(made_at_ns) {}
  ~Link() {
    links_.loop_.forget(*this);
    links_.loop_.forget(intake_);
  }

  uint64_t number() const { return number_; }
  const NodeRef& peer() const { return peer_; }
  int64_t made_at_ns() const { return made_at_ns_; }
  bool has_connection() const { return connection_ != nullptr; }
  void own(std::unique_ptr<Connection> connection) { connection_ = std::move(connection); }

  void send(FrameMaker make, FrameClass frame_class) {
    waiting_.push(std::move(make), frame_class);
    pump();
  }

  void on_open(Connection& connection) override { links_.opened(*this, connection); }
  transport::Placement on_header(Connection&, Bytes header, uint64_t payload_bytes) override;
  void on_frame(Connection&, Bytes, Bytes) override;
  void on_sent(Connection&, uint64_t tag) override {
    const auto it = under_way_.find(tag);
    if (it == under_way_.end()) return;
    bytes_under_way_ -= it->second.size();
    under_way_.erase(it);
    pump();
  }
  void on_writable(Connection&) override { pump(); }
  void on_close(Connection& connection, const Error& reason) override {
    log_info("cluster/node", "a KV connection ended", {{"peer", peer_.id}, {"why", reason.message}});
    links_.opened(*this, connection);  // if it never was, it is still to be owned
    links_.lose(*this);
  }

  void on_timer() override { pump(); }

 private:
  // The end of a pause. A timer of its own, for the link's is its sender's.
  struct Intake final : transport::LoopClient {
    explicit Intake(Link& l) : link(l) {}
    void on_timer() override { link.connection_->resume(); }
    Link& link;
  };
  void pump();
  bool may_send_now();

  PeerLinks& links_;
  const uint64_t number_;
  const NodeRef peer_;
  const int64_t made_at_ns_;
  FrameQueue<FrameMaker> waiting_;
  std::map<uint64_t, std::vector<std::byte>> under_way_;  // payloads by tag
  size_t bytes_under_way_ = 0;
  uint64_t next_tag_ = 1;
  int64_t all_sent_ns_ = 0;  // when what was sent has gone, at the rate that it is held to
  std::optional<PeerMessage> message_;  // of the frame that is coming in
  std::vector<std::byte> incoming_;
  int64_t begin_cpu_ns_ = 0;  // its header came
  Intake intake_{*this};
  std::unique_ptr<Connection> connection_;  // last: dies while its handler lives
};

// With a rate to keep: not too far ahead of it; the timer calls again.
bool PeerLinks::Link::may_send_now() {
  if (links_.bytes_per_s_ == 0 || links_.loop_.now_ns() >= all_sent_ns_ - kAheadOfRateNs) return true;
  links_.loop_.set_timer(*this, all_sent_ns_ - kAheadOfRateNs);
  return false;
}

void PeerLinks::Link::pump() {
  while (!waiting_.is_empty() && connection_ && under_way_.size() < kMaxFramesUnderWay &&
         bytes_under_way_ < kMaxBytesUnderWay && may_send_now()) {
    const FrameMaker make = waiting_.pop();
    PeerMessage message;
    std::vector<std::byte> payload;
    if (!make(message, payload)) continue;
    auto* push = std::get_if<handoff::Push>(&message);
    if (push != nullptr) push->checksum = hash_64(payload.data(), payload.size());
    auto frame = wire::encode_peer(message);
    const uint64_t tag = next_tag_++;
    const auto it = under_way_.emplace(tag, std::move(payload)).first;
    bytes_under_way_ += it->second.size();
    waiting_.count_popped(it->second.size());
    transport::Frame sent;
    if (frame) sent.header = transport::bytes_of(frame->header);
    if (!it->second.empty()) sent.payload = {Bytes(it->second)};
    sent.tag = tag;
    const Status status = frame ? connection_->send(sent) : Status(frame.error());
    if (!status) {
      log_warning("cluster/node", "a KV frame cannot be sent", {{"peer", peer_.id}, {"why", status.error().message}});
      return links_.lose(*this);
    }
    links_.frames_sent_.add();
    const size_t size_bytes = frame->header.size() + it->second.size();
    links_.bytes_sent_.add(size_bytes);
    if (links_.bytes_per_s_ == 0) continue;
    const double seconds = static_cast<double>(size_bytes) / static_cast<double>(links_.bytes_per_s_);
    all_sent_ns_ = std::max(all_sent_ns_, links_.loop_.now_ns()) + static_cast<int64_t>(seconds * 1e9);
  }
}

transport::Placement PeerLinks::Link::on_header(Connection&, Bytes header, uint64_t payload_bytes) {
  begin_cpu_ns_ = links_.cpu_now_ns();
  auto read = wire::decode_peer(transport::text_of(header));
  if (!read) {
    log_warning("cluster/node", "a KV frame is not one", {{"peer", peer_.id}, {"why", read.error().message}});
    return transport::Placement::close();
  }
  message_ = std::move(*read);
  if (!message_) return transport::Placement::skip();  // a kind of the next version
  if (payload_bytes_of(*message_) != payload_bytes) return transport::Placement::close();
  if (payload_bytes == 0) return transport::Placement::hold();
  incoming_.resize(payload_bytes);
  return transport::Placement::into({transport::MutableBytes(incoming_)});
}

void PeerLinks::Link::on_frame(Connection& connection, Bytes header, Bytes) {
  const PeerMessage message = *std::exchange(message_, std::nullopt);
  const uint32_t size_bytes = payload_bytes_of(message);
  links_.frames_received_.add();
  links_.bytes_received_.add(header.size() + size_bytes);
  const bool is_push = std::holds_alternative<handoff::Push>(message);
  const uint64_t checksum = is_push ? hash_64(incoming_.data(), size_bytes) : 0;
  links_.owner_.on_peer_frame(peer_, message, checksum, incoming_.data());
  const int64_t pause_ns = links_.pause_after_ns(begin_cpu_ns_);
  if (pause_ns == 0 || !connection_ || !connection.is_open()) return;
  connection.pause();
  links_.loop_.set_timer(intake_, links_.loop_.now_ns() + pause_ns);
}

// How long no frame is wanted after one that was begun at that time of the thread's.
int64_t PeerLinks::pause_after_ns(int64_t begin_cpu_ns) {
  if (!pace_.gives_way || !pace_.gives_way()) return 0;
  const auto cost_ns = static_cast<double>(std::min(pace_.cpu_now_ns() - begin_cpu_ns, kMostPaidCpuNs));
  const int64_t now_ns = loop_.now_ns();
  intake_at_ns_ = std::max(intake_at_ns_, now_ns) + static_cast<int64_t>(cost_ns * (1 / pace_.share - 1));
  return intake_at_ns_ - now_ns >= kLeastPauseNs ? intake_at_ns_ - now_ns : 0;
}

PeerLinks::PeerLinks(transport::EventLoop& loop, transport::Network& network, NodeRef self, PeerOwner& owner,
                     MetricRegistry& metrics)
    : loop_(loop),
      network_(network),
      self_(std::move(self)),
      owner_(owner),
      frames_sent_(metrics.counter("tandem_handoff_frames_sent_total", "KV frames sent to peers.")),
      frames_received_(metrics.counter("tandem_handoff_frames_received_total", "KV frames received from peers.")),
      bytes_sent_(metrics.counter("tandem_handoff_sent_bytes_total", "Bytes of KV frames sent to peers.")),
      bytes_received_(metrics.counter("tandem_handoff_received_bytes_total", "Bytes of KV frames received.")),
      losses_(metrics.counter("tandem_handoff_peer_losses_total", "KV connections that broke or were not made.")),
      refused_(metrics.counter("tandem_handoff_refused_connections_total",
                               "KV connections refused: no valid token, or for another process.")) {}

PeerLinks::~PeerLinks() { loop_.forget(*this); }

Status PeerLinks::listen(const std::string& address) {
  TRY_ASSIGN(listener_, network_.listen(address, *this));
  return Done{};
}

transport::ConnectionHandler* PeerLinks::admit(Bytes greeting) {
  // Those that greeted and went before they were accepted have nobody else to end them.
  std::erase_if(links_, [this](const auto& entry) {
    return !entry.second->has_connection() && loop_.now_ns() - entry.second->made_at_ns() > kGreetingNs;
  });
  KvPass pass;
  auto from = read_greeting(transport::text_of(greeting), self_, pass);
  if (!from) return refuse("no greeting to this process");
  if (!owner_.is_let_in(pass)) return refuse("no valid token");
  if (links_.size() >= kMaxLinks) return refuse("too many connections");
  const uint64_t number = next_link_++;
  auto link = std::make_unique<Link>(*this, number, std::move(*from), loop_.now_ns());
  return links_.emplace(number, std::move(link)).first->second.get();
}

transport::ConnectionHandler* PeerLinks::refuse(const char* why) {
  refused_.add();
  ++num_refused_;
  if (loop_.now_ns() < refusal_logged_ns_) return nullptr;
  refusal_logged_ns_ = loop_.now_ns() + kRefusalLogNs;
  log_warning("cluster/node", "a KV connection is refused",
              {{"why", why}, {"since_the_last_such_line", std::to_string(std::exchange(num_refused_, 0))}});
  return nullptr;
}

void PeerLinks::accepted(std::unique_ptr<Connection> connection) {
  const transport::ConnectionId id = connection->id();
  accepted_.emplace(id, std::move(connection));  // its handler's on_open() follows at once
}

void PeerLinks::opened(Link& link, Connection& connection) {
  if (const auto it = accepted_.find(connection.id()); it != accepted_.end()) {
    link.own(std::move(it->second));
    accepted_.erase(it);
  }
  sending_.try_emplace(link.peer(), link.number());
}

void PeerLinks::send(const NodeRef& to, const KvPass& pass, FrameMaker make, FrameClass frame_class) {
  const auto it = sending_.find(to);
  if (it != sending_.end()) return links_.at(it->second)->send(std::move(make), frame_class);
  if (pass.token == 0) return;  // an answer to what came over a connection that has gone
  const uint64_t number = next_link_++;
  auto link = std::make_unique<Link>(*this, number, to, loop_.now_ns());
  const std::string address = owner_.address_of(to);
  if (!address.empty() && links_.size() < kMaxLinks) {
    auto connection = network_.connect(address, transport::bytes_of(greeting_of(self_, to, pass)), *link);
    if (connection) {
      link->own(std::move(*connection));
      sending_.emplace(to, number);
      return links_.emplace(number, std::move(link)).first->second->send(std::move(make), frame_class);
    }
    log_info("cluster/node", "no KV connection", {{"peer", to.id}, {"why", connection.error().message}});
  }
  tell_lost(to);
}

void PeerLinks::lose(Link& link) {
  const auto sender = sending_.find(link.peer());
  if (sender != sending_.end() && sender->second == link.number()) sending_.erase(sender);
  tell_lost(link.peer());
  auto node = links_.extract(link.number());
  if (node) loop_.retire(std::shared_ptr<Link>(std::move(node.mapped())));
}

void PeerLinks::tell_lost(const NodeRef& peer) {
  losses_.add();
  if (std::find(lost_.begin(), lost_.end(), peer) == lost_.end()) lost_.push_back(peer);
  loop_.defer(*this);
}

void PeerLinks::on_task() {
  for (const NodeRef& peer : std::exchange(lost_, {})) owner_.on_peer_lost(peer);
}

}  // namespace tandem::node
