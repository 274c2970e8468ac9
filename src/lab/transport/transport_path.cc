#include <thread>

#include "base/clock.h"
#include "lab/transport/timed_path.h"
#include "net/transport/network.h"

namespace tandem::transport_lab {
namespace {

using namespace transport;

constexpr char kPing = 'P', kLast = 'L', kPush = 'f';
constexpr double kGiveUpS = 60;

// The receiving side: each payload lands in the next place of its pool; pings and the last frame are answered.
class Receiver final : public ConnectionHandler, public Acceptor {
 public:
  Receiver() : pool_(kPoolBytes) {}

  ConnectionHandler* admit(Bytes) override { return this; }
  void accepted(std::unique_ptr<Connection> connection) override { connection_ = std::move(connection); }
  Placement on_header(Connection&, Bytes header, uint64_t payload_bytes) override {
    if (header.size() != kHeaderBytes || payload_bytes > kPoolBytes) return Placement::close();
    if (payload_bytes == 0) return Placement::hold();
    const uint64_t at = pool_offset(num_landed_++, payload_bytes);
    return Placement::into({MutableBytes(pool_).subspan(at, payload_bytes)});
  }
  void on_frame(Connection& connection, Bytes header, Bytes) override {
    const char kind = text_of(header)[0];
    if (kind == kLast) num_landed_ = 0;
    // A refusal would only mean that the sender does not read: it ends the measurement then.
    if (kind != kPush) (void)connection.send({.header = header, .payload = {}});
  }
  void on_close(Connection&, const Error&) override {}
  void drop() { connection_ = nullptr; }

 private:
  std::vector<std::byte> pool_;
  uint64_t num_landed_ = 0;
  std::unique_ptr<Connection> connection_;
};

class TransportPath final : public TimedPath, private ConnectionHandler {
 public:
  ~TransportPath() override {
    if (far_loop_) far_loop_->stop();
    if (thread_.joinable()) thread_.join();
    receiver_.drop();  // while its loop is there
  }

  Status open(const std::string& address) {
    TRY_ASSIGN(far_loop_, EventLoop::create(clock_));
    TRY_ASSIGN(loop_, EventLoop::create(clock_));
    far_network_ = std::make_unique<Network>(*far_loop_, TransportLimits(), &hub_);
    network_ = std::make_unique<Network>(*loop_, TransportLimits(), &hub_);
    TRY_ASSIGN(listener_, far_network_->listen(address, receiver_));
    TRY_ASSIGN(connection_, network_->connect(listener_->address(), {}, *this));
    thread_ = std::thread([this] { far_loop_->run(); });
    return run_until([this] { return connection_->is_open(); });
  }

  Result<std::vector<double>> round_trips(uint32_t count) override {
    header_[0] = kPing;
    std::vector<double> seconds;
    for (uint32_t i = 0; i < count; ++i) {
      const double begin = now_s();
      is_answered_ = false;
      TRY(connection_->send({.header = bytes_of(header_), .payload = {}}));
      TRY(run_until([this] { return is_answered_; }));
      seconds.push_back(now_s() - begin);
    }
    return seconds;
  }

  Result<double> move(uint64_t frame_bytes, uint64_t num_frames) override {
    frame_bytes_ = frame_bytes;
    num_left_ = num_frames;
    num_frames_ = num_frames;
    is_answered_ = false;
    const double begin = now_s();
    push();
    TRY(run_until([this] { return is_answered_; }));
    return now_s() - begin;
  }

 private:
  template <class Condition>
  Status run_until(Condition condition) {
    const double give_up_s = now_s() + kGiveUpS;
    while (!condition()) {
      if (is_closed_ || now_s() > give_up_s) return Error{ErrorCode::kUnavailable, "the connection broke: " + reason_};
      loop_->run_once(1000);
    }
    return Done{};
  }

  void push() {
    while (num_left_ > 0) {
      header_[0] = num_left_ == 1 ? kLast : kPush;
      const uint64_t at = pool_offset(num_frames_ - num_left_, frame_bytes_);
      const Bytes payload = Bytes(pool_).subspan(at, frame_bytes_);
      if (!connection_->send({.header = bytes_of(header_), .payload = {payload}})) return;  // on_writable() goes on
      --num_left_;
    }
  }

  Placement on_header(Connection&, Bytes, uint64_t) override { return Placement::hold(); }
  void on_frame(Connection&, Bytes, Bytes) override { is_answered_ = true; }
  void on_writable(Connection&) override { push(); }
  void on_close(Connection&, const Error& reason) override {
    is_closed_ = true;
    reason_ = reason.message;
  }

  SystemClock clock_;
  LoopbackHub hub_;
  Receiver receiver_;
  std::unique_ptr<EventLoop> far_loop_, loop_;
  std::unique_ptr<Network> far_network_, network_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Connection> connection_;
  std::thread thread_;
  std::vector<std::byte> pool_ = std::vector<std::byte>(kPoolBytes, std::byte{'p'});
  std::string header_ = std::string(kHeaderBytes, 'h');
  uint64_t frame_bytes_ = 0, num_left_ = 0, num_frames_ = 0;
  bool is_answered_ = false, is_closed_ = false;
  std::string reason_;
};

}  // namespace

double now_s() { return SystemClock().now_s(); }

Result<std::unique_ptr<TimedPath>> open_transport(const std::string& address) {
  auto path = std::make_unique<TransportPath>();
  TRY(path->open(address));
  return std::unique_ptr<TimedPath>(std::move(path));
}

}  // namespace tandem::transport_lab
