#include "net/rpc/rpc_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <thread>
#include <utility>

#include "net/rpc/library_setup.h"
#include "net/rpc/stream_core.h"

namespace tandem::rpc {
namespace {

// What the library holds for one stream.
struct ServerCall {
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
};

class ServerStream final : public StreamCore {
 public:
  explicit ServerStream(std::shared_ptr<StreamContext> context) : StreamCore(std::move(context), "") {}

  // Waits for a call; `tag` comes back when there is one.
  void await(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue, void* tag) {
    Lock lock(mutex_);
    call_->context.AsyncNotifyWhenDone(started(Op::kDone));
    service.RequestCall(&call_->context, &call_->stream, &queue, &queue, tag);
  }

  // The call is there. `has_room`: one more stream is allowed.
  void begin(bool has_room) {
    Lock lock(mutex_);
    peer_ = call_->context.peer();
    if (!has_room) {
      is_reported_ = false;  // the inbox would have no limit otherwise
      return refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, {ErrorCode::kExhausted, "no room for another stream"});
    }
    if (call_->context.method() != kMethod) {
      return refuse(grpc::StatusCode::UNIMPLEMENTED,
                    {ErrorCode::kInvalidArgument, "no method " + call_->context.method()});
    }
    // Also when there is no common one: the client then says it in its own words.
    call_->context.AddInitialMetadata(kVersionsHeader, versions_text(context_->options.versions));
    const auto& metadata = call_->context.client_metadata();
    const auto found = metadata.find(kVersionsHeader);
    const std::string_view versions =
        found == metadata.end() ? std::string_view() : std::string_view(found->second.data(), found->second.size());
    auto version = agree_on_version(context_->options.versions, versions);
    if (!version) return refuse(grpc::StatusCode::FAILED_PRECONDITION, std::move(version).error());
    agreed_version_ = *version;
    call_->stream.SendInitialMetadata(started(Op::kMetadata));
    begin_opening();
  }

 private:
  void on_start(bool) override {}
  void on_metadata(bool is_ok) override REQUIRES(mutex_) {
    if (is_ok && !reason_) open(agreed_version_);
  }

  void refuse(grpc::StatusCode code, Error reason) REQUIRES(mutex_) {
    state_ = State::kEnding;
    call_->stream.Finish(grpc::Status(code, reason.message), started(Op::kEnd));
    refusal_ = std::move(reason).during("refused");
    begin_closing();
  }

  void read_into(grpc::ByteBuffer& buffer, void* tag) override REQUIRES(mutex_) { call_->stream.Read(&buffer, tag); }
  void write(const grpc::ByteBuffer& buffer, void* tag) override REQUIRES(mutex_) { call_->stream.Write(buffer, tag); }
  void end_gracefully(void* tag) override REQUIRES(mutex_) { call_->stream.Finish(grpc::Status::OK, tag); }
  void cancel() override REQUIRES(mutex_) { call_->context.TryCancel(); }
  bool answers_end() const override { return true; }

  std::optional<Error> fault() override REQUIRES(mutex_) {
    if (refusal_) return refusal_;
    // A peer that leaves as soon as it has our end makes the call look cancelled.
    if (is_end_sent_ || !call_->context.IsCancelled()) return std::nullopt;
    return Error{ErrorCode::kUnavailable, "stream of " + peer_ + ": the connection is lost, or the peer aborted it"};
  }

  std::shared_ptr<void> take_call() override REQUIRES(mutex_) { return std::exchange(call_, nullptr); }

  std::shared_ptr<ServerCall> call_ GUARDED_BY(mutex_) = std::make_shared<ServerCall>();
  uint32_t agreed_version_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> refusal_ GUARDED_BY(mutex_);
};

class GrpcServer final : public RpcServer, private CompletionTag {
 public:
  GrpcServer(const RpcOptions& options, RpcInbox& inbox) : options_(options), inbox_(inbox) {}

  Status start(const std::string& address, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    set_server_arguments(options_, builder);
    int port = 0;
    builder.AddListeningPort(address, credentials, &port);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) return Error{ErrorCode::kUnavailable, "cannot listen on " + address};
    port_ = static_cast<uint16_t>(port);
    context_ = std::shared_ptr<StreamContext>(new StreamContext{options_, *queue_, inbox_, {}});
    await_call();
    thread_ = std::thread([this] { run_completions(*queue_); });
    return Done{};
  }

  ~GrpcServer() override {
    if (context_) {
      context_->open.abort_all();
      server_->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));
      wait_until_accepting_ended();
      context_->open.abort_all();  // one may have come meanwhile; none does from here on
      context_->open.wait_until_none();
      queue_->Shutdown();
      thread_.join();
    } else if (queue_) {  // it never listened; the library wants its queue emptied still
      if (server_) server_->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));
      queue_->Shutdown();
      run_completions(*queue_);
    }
  }

  uint16_t port() const override { return port_; }

 private:
  void await_call() {
    next_ = std::make_shared<ServerStream>(context_);
    next_->await(service_, *queue_, static_cast<CompletionTag*>(this));
  }

  // A call has come, or the server shuts down. On the I/O thread.
  void run(bool is_ok) override {
    const std::shared_ptr<ServerStream> stream = std::move(next_);
    if (!is_ok) {
      Lock lock(mutex_);
      has_accepting_ended_ = true;
      accepting_ended_.notify_all();
      return;
    }
    const bool has_room = context_->open.hold(options_.max_streams);
    context_->open.add(stream);
    stream->begin(has_room);
    await_call();
  }

  void wait_until_accepting_ended() {
    Lock lock(mutex_);
    while (!has_accepting_ended_) accepting_ended_.wait(mutex_);
  }

  const RpcOptions options_;
  RpcInbox& inbox_;
  uint16_t port_ = 0;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<StreamContext> context_;
  std::shared_ptr<ServerStream> next_;  // waits for its call; of the I/O thread
  Mutex mutex_;
  CondVar accepting_ended_;
  bool has_accepting_ended_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<RpcServer>> RpcServer::listen(const std::string& host, uint16_t port, const RpcOptions& options,
                                                     RpcInbox& inbox) {
  TRY(check_options(options));
  route_library_log();
  TRY_ASSIGN(const auto credentials, server_credentials(options));
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string address = (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  auto server = std::make_unique<GrpcServer>(options, inbox);
  TRY(server->start(address, credentials));
  return std::unique_ptr<RpcServer>(std::move(server));
}

}  // namespace tandem::rpc
