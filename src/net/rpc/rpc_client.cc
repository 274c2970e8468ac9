#include "net/rpc/rpc_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <limits>
#include <thread>
#include <utility>

#include "net/rpc/library_setup.h"
#include "net/rpc/stream_core.h"

namespace tandem::rpc {
namespace {

// What the library holds for one stream.
struct ClientCall {
  std::shared_ptr<grpc::Channel> channel;
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  grpc::Status status;
};

ErrorCode code_of(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::UNAVAILABLE:
      return ErrorCode::kUnavailable;
    case grpc::StatusCode::CANCELLED:
      return ErrorCode::kCancelled;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ErrorCode::kDeadline;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ErrorCode::kExhausted;
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::UNIMPLEMENTED:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kInternal;
  }
}

class ClientStream final : public StreamCore {
 public:
  ClientStream(std::shared_ptr<StreamContext> context, std::string address)
      : StreamCore(std::move(context), std::move(address)) {}

  void begin(std::shared_ptr<grpc::Channel> channel) {
    Lock lock(mutex_);
    call_ = std::make_shared<ClientCall>();
    call_->channel = std::move(channel);
    call_->context.AddMetadata(kVersionsHeader, versions_text(context_->options.versions));
    call_->stream = grpc::GenericStub(call_->channel).PrepareCall(&call_->context, kMethod, &context_->queue);
    call_->stream->StartCall(started(Op::kStart));
    begin_opening();
  }

 private:
  void on_start(bool is_ok) override REQUIRES(mutex_) {
    if (is_ok) return call_->stream->ReadInitialMetadata(started(Op::kMetadata));
    call_->stream->Finish(&call_->status, started(Op::kDone));
  }

  void on_metadata(bool is_ok) override REQUIRES(mutex_) {
    // From here on the end of the call is awaited, whatever is read or written meanwhile.
    call_->stream->Finish(&call_->status, started(Op::kDone));
    if (!is_ok || reason_) return;
    const auto& metadata = call_->context.GetServerInitialMetadata();
    const auto found = metadata.find(kVersionsHeader);
    if (found == metadata.end()) return;  // a refusal, whose status comes; or a foreign server, until the deadline
    auto version = agree_on_version(context_->options.versions, {found->second.data(), found->second.size()});
    if (version)
      open(*version);
    else
      fail(opening_error(std::move(version).error(), ""));
  }

  void read_into(grpc::ByteBuffer& buffer, void* tag) override REQUIRES(mutex_) { call_->stream->Read(&buffer, tag); }
  void write(const grpc::ByteBuffer& buffer, void* tag) override REQUIRES(mutex_) { call_->stream->Write(buffer, tag); }
  void end_gracefully(void* tag) override REQUIRES(mutex_) { call_->stream->WritesDone(tag); }
  void cancel() override REQUIRES(mutex_) { call_->context.TryCancel(); }
  bool answers_end() const override { return false; }

  std::optional<Error> fault() override REQUIRES(mutex_) {
    if (call_->status.ok()) return std::nullopt;
    Error error{code_of(call_->status.error_code()), call_->status.error_message()};
    if (state_ != State::kOpening) return std::move(error).during("stream to " + peer_);
    const bool has_tls = context_->options.tls.has_value();
    return opening_error(std::move(error),
                         has_tls ? " with TLS (each side must trust the other's certificate)" : " without TLS");
  }

  // The library has no code of its own for a port that nobody listens at, only the system's words.
  Error opening_error(Error error, const char* how) const {
    if (error.message.find("Connection refused") != std::string::npos) error.code = ErrorCode::kNotFound;
    return std::move(error).during("connect to " + peer_ + how);
  }

  std::shared_ptr<void> take_call() override REQUIRES(mutex_) { return std::exchange(call_, nullptr); }

  std::shared_ptr<ClientCall> call_ GUARDED_BY(mutex_);
};

class GrpcClient final : public RpcClient {
 public:
  GrpcClient(const RpcOptions& options, std::shared_ptr<grpc::ChannelCredentials> credentials, RpcInbox& inbox)
      : credentials_(std::move(credentials)), context_(new StreamContext{options, queue_, inbox, {}}) {
    thread_ = std::thread([this] { run_completions(queue_); });
  }

  ~GrpcClient() override {
    context_->open.abort_all();
    context_->open.wait_until_none();
    queue_.Shutdown();
    thread_.join();
  }

  std::shared_ptr<RpcStream> connect(const std::string& address) override {
    auto stream = std::make_shared<ClientStream>(context_, address);
    context_->open.hold(std::numeric_limits<size_t>::max());  // as many as the caller likes
    context_->open.add(stream);
    stream->begin(grpc::CreateCustomChannel("dns:///" + address, credentials_, client_arguments(context_->options)));
    return stream;
  }

 private:
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  grpc::CompletionQueue queue_;
  const std::shared_ptr<StreamContext> context_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<RpcClient>> RpcClient::open(const RpcOptions& options, RpcInbox& inbox) {
  TRY(check_options(options));
  route_library_log();
  TRY_ASSIGN(auto credentials, client_credentials(options));
  return std::unique_ptr<RpcClient>(std::make_unique<GrpcClient>(options, std::move(credentials), inbox));
}

}  // namespace tandem::rpc
