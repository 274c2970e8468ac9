#pragma once
// EmbeddingReply: one request for embeddings on its way from the Generator back to the client. It submits a request per
// input, which generates nothing, and answers once all are computed.
//
// Lives on the connection's I/O thread; the engine's updates are posted there. Held by its sinks.

#include <memory>
#include <string>
#include <vector>

#include "api/openai/reply.h"

namespace tandem::openai {

struct EmbeddingSetup {
  std::string endpoint;    // for metrics and log
  std::string request_id;  // the client's or ours
  std::string tenant;
  TraceContext trace;
  std::string id;
  std::string model;
  int64_t created = 0;  // Unix seconds
  std::vector<std::vector<TokenId>> inputs;
  EmbeddingRequest request;  // its input's prompts are in `inputs`
  int64_t arrival_ns = 0;
  std::shared_ptr<void> ticket;  // held as long as the request is under way
};

class EmbeddingReply : public std::enable_shared_from_this<EmbeddingReply> {
 public:
  EmbeddingReply(ReplyContext context, EmbeddingSetup setup, std::shared_ptr<http::ResponseWriter> writer);

  // Submits, or answers with the error. Once, on the I/O thread.
  void start();

 private:
  class Sink;

  sched::Request request_for(size_t input) const;
  void on_update(size_t input, sched::Update update);
  void fail(const ApiError& error);
  void cancel_all();
  void finish(int status);
  std::string json_of(std::vector<float> embedding) const;
  std::string answer() const;

  ReplyContext context_;
  EmbeddingSetup setup_;
  std::shared_ptr<http::ResponseWriter> writer_;
  std::vector<std::string> embeddings_;  // as JSON, each written when it comes: all at once would take too long
  std::vector<sched::RequestId> requests_;
  size_t num_done_ = 0;
  bool is_over_ = false;
};

// Of length 1, as vectors that are compared have to be; one of zeros stays.
void normalize(std::vector<float>& vector);

}  // namespace tandem::openai
