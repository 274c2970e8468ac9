// Peers that do not keep to the rules, and readers that do not read: what they can make this side hold.
#include <doctest/doctest.h>

// First: see stream_core.h.
#include "base/thread_safety.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include "net/rpc/rpc_for_test.h"
#include "net/rpc/stream_core.h"
#include "testing/raw_client.h"

using namespace tandem;
using namespace tandem::rpc;

namespace {

// HTTP/2 by hand (RFC 9113, section 4.1; RFC 7541, section 6.2.2), for what the library's client would not do.
std::string http2_frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + payload;
}
const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, {});
std::string opening_headers(uint32_t stream) {
  std::string block;
  for (const auto& [name, value] :
       {std::pair<std::string, std::string>{":method", "POST"}, {":scheme", "http"}, {":path", kMethod},
        {":authority", "test"}, {"te", "trailers"}, {"content-type", "application/grpc"}, {kVersionsHeader, "1-1"}}) {
    block += '\0';
    block += static_cast<char>(name.size());
    block += name;
    block += static_cast<char>(value.size());
    block += value;
  }
  return http2_frame(1, 4, stream, block);
}

RpcOptions quick_opening() {
  RpcOptions options = patient();
  options.connect_timeout_ms = 500;
  return options;
}

}  // namespace

TEST_CASE("a compressed message is refused before it is unpacked") {
  Reader reader;
  const auto server = open_server(patient(), reader);
  const auto channel =
      grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.AddMetadata(kVersionsHeader, "1-1");
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  grpc::CompletionQueue queue;
  const auto stream = grpc::GenericStub(channel).PrepareCall(&context, kMethod, &queue);
  const auto wait = [&] {
    void* tag = nullptr;
    bool is_ok = false;
    REQUIRE(queue.Next(&tag, &is_ok));
  };
  stream->StartCall(nullptr);
  wait();
  const grpc::Slice zeros(std::string(1 << 20, '\0'));
  stream->Write(grpc::ByteBuffer(&zeros, 1), nullptr);
  wait();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
  CHECK(status.error_code() == grpc::StatusCode::UNIMPLEMENTED);
  CHECK(status.error_message().find("gzip") != std::string::npos);
  reader.take(reader.inbox.drain());
  CHECK(reader.frames.empty());
}

TEST_CASE("ends that nobody reads keep their place among max_streams: who comes and goes does not fill the inbox") {
  RpcOptions options = patient();
  options.max_streams = 1;
  Pair pair(options);
  pair.stream->abort();
  REQUIRE(pair.at_client.wait_for(1, 0, 1));
  for (size_t i = 2; i <= 6; ++i) {
    const auto refused = pair.client->connect(pair.address());
    REQUIRE(pair.at_client.wait_for(1, 0, i));
    CHECK(pair.at_client.closed.back().reason.code == ErrorCode::kExhausted);
  }
  REQUIRE(pair.at_server.wait_for(1, 0, 1));
  const auto next = pair.client->connect(pair.address());
  REQUIRE(pair.at_client.wait_for(2, 0, 6));
  CHECK(pair.at_client.opened[1].stream == next);
}

TEST_CASE("a connection carries one stream: a second one ends it") {
  Reader reader;
  const auto server = open_server(patient(), reader);
  testing::RawClient peer(server->port());
  peer.send(kPreface);
  CHECK(peer.read_bytes(9).size() == 9);  // the server's settings have come, so they may be acknowledged
  peer.send(http2_frame(4, 1, 0, {}));
  std::string headers;
  for (uint32_t stream = 1; stream < 100; stream += 2) headers += opening_headers(stream);
  peer.send(headers);
  CHECK(peer.is_closed_by_peer());
  REQUIRE(reader.wait_for(0, 0, 1));
  CHECK(reader.opened.size() <= 1);
}

TEST_CASE("a connection without a stream ends, whether it says nothing or greets and says no more") {
  Pair pair(quick_opening());
  testing::RawClient silent(pair.server->port()), greeting(pair.server->port());
  greeting.send(kPreface);
  CHECK(silent.is_closed_by_peer());
  CHECK(greeting.is_closed_by_peer());
  // One with a stream is kept, though it is older and has said nothing more.
  REQUIRE(pair.stream->send("still here") == SendResult::kQueued);
  REQUIRE(pair.at_server.wait_for(1, 1, 0));
}

TEST_CASE("a server goes away at once, whoever is connected") {
  Reader reader;
  auto server = open_server(patient(), reader);
  testing::RawClient silent(server->port()), greeting(server->port()), streaming(server->port());
  greeting.send(kPreface);
  streaming.send(kPreface + opening_headers(1));
  REQUIRE(reader.wait_for(1, 0, 0));
  server.reset();
  reader.take(reader.inbox.drain());
  CHECK(reader.closed.size() == 1);
}

TEST_CASE("options that cannot work are refused, by name") {
  const auto fault = [](void (*change)(RpcOptions&)) {
    RpcOptions options;
    change(options);
    Reader reader;
    const auto client = RpcClient::open(options, reader.inbox);
    const auto server = RpcServer::listen("127.0.0.1", 0, options, reader.inbox);
    REQUIRE_FALSE(client);
    REQUIRE_FALSE(server);
    CHECK(client.error().code == ErrorCode::kInvalidArgument);
    CHECK(client.error().message == server.error().message);
    return client.error().message;
  };
  CHECK(fault([](RpcOptions& options) { options.versions = {3, 2}; }) == "versions: no range above 0");
  CHECK(fault([](RpcOptions& options) { options.versions = {0, 2}; }) == "versions: no range above 0");
  CHECK(fault([](RpcOptions& options) { options.max_frame_bytes = 3u << 30; }) == "max_frame_bytes: at most 2 GiB");
  CHECK(fault([](RpcOptions& options) { options.stall_timeout_ms = 0; }) == "stall_timeout_ms: less than 1");
}

TEST_CASE("a frame that could never be queued is too large, not to be tried again") {
  RpcOptions options = patient();
  options.max_queued_bytes = 100;
  Pair pair(patient(), options);
  CHECK(pair.stream->send(std::string(101, 'x')) == SendResult::kTooLarge);
  CHECK(pair.stream->send(std::string(100, 'x')) == SendResult::kQueued);
}
