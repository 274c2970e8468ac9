// StreamCore with the library's part played by the test: orders of completions that a connection shows by chance only.
#include "net/rpc/stream_core.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace tandem;
using namespace tandem::rpc;

namespace {

// A server's end. Each operation waits until the test completes it.
class ScriptedStream final : public StreamCore {
 public:
  explicit ScriptedStream(std::shared_ptr<StreamContext> context) : StreamCore(std::move(context), "peer") {}

  void begin() {
    Lock lock(mutex_);
    done_tag_ = started(Op::kDone);
    open(1);
  }
  static void complete(void* tag, bool is_ok) { static_cast<CompletionTag*>(tag)->run(is_ok); }

  void* done_tag_ = nullptr;
  std::vector<void*> reads, writes, ends;
  std::vector<std::string> written;

 private:
  void on_start(bool) override {}
  void on_metadata(bool) override {}
  void read_into(grpc::ByteBuffer&, void* tag) override { reads.push_back(tag); }
  void write(const grpc::ByteBuffer& buffer, void* tag) override {
    grpc::Slice slice;
    REQUIRE(buffer.DumpToSingleSlice(&slice).ok());
    written.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
    writes.push_back(tag);
  }
  void end_gracefully(void* tag) override { ends.push_back(tag); }
  void cancel() override {}
  bool answers_end() const override { return true; }
  std::optional<Error> fault() override { return std::nullopt; }
  std::shared_ptr<void> take_call() override { return nullptr; }
};

}  // namespace

TEST_CASE("once the peer has closed, nothing more is taken, and the end follows the frame that is under way") {
  grpc::CompletionQueue queue;  // of the alarm
  RpcInbox inbox;
  RpcOptions options;
  options.stall_timeout_ms = 600'000;
  const auto context = std::shared_ptr<StreamContext>(new StreamContext{options, queue, inbox, {}});
  REQUIRE(context->open.hold(1));
  const auto stream = std::make_shared<ScriptedStream>(context);
  context->open.add(stream);
  stream->begin();
  CHECK(stream->send("first") == SendResult::kQueued);
  CHECK(stream->send("second") == SendResult::kQueued);
  REQUIRE(stream->reads.size() == 1);
  ScriptedStream::complete(stream->reads[0], false);  // the peer's end, while "first" is being written
  CHECK(stream->queued_bytes() == 5);
  CHECK(stream->send("late") == SendResult::kClosed);
  CHECK(stream->ends.empty());
  ScriptedStream::complete(stream->writes[0], true);
  CHECK(stream->written == std::vector<std::string>{"first"});
  REQUIRE(stream->ends.size() == 1);
  ScriptedStream::complete(stream->ends[0], true);
  ScriptedStream::complete(stream->done_tag_, true);
  queue.Shutdown();
  run_completions(queue);

  CHECK_FALSE(context->open.hold(1));  // until kClosed is taken
  const std::vector<RpcEvent> events = inbox.drain();
  REQUIRE(events.size() == 2);
  CHECK(events[1].kind == RpcEvent::Kind::kClosed);
  CHECK(events[1].reason.message == "the peer closed the stream");
  CHECK(context->open.hold(1));
}
