#include "api/openai/embedding_reply.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <string_view>

#include "base/base64.h"
#include "base/log.h"

namespace tandem::openai {

static_assert(std::endian::native == std::endian::little);  // what clients of base64 expect

// Hands updates from the engine thread to the I/O thread.
class EmbeddingReply::Sink final : public sched::TokenSink {
 public:
  Sink(std::shared_ptr<EmbeddingReply> reply, size_t input) : reply_(std::move(reply)), input_(input) {}

  void publish(sched::Update update) override {
    auto kept = std::make_shared<sched::Update>(std::move(update));
    reply_->writer_->post([reply = reply_, input = input_, kept] { reply->on_update(input, std::move(*kept)); });
  }

 private:
  std::shared_ptr<EmbeddingReply> reply_;
  size_t input_;
};

void normalize(std::vector<float>& vector) {
  double sum = 0;
  for (const float value : vector) sum += double{value} * value;
  if (sum == 0) return;
  const double scale = 1 / std::sqrt(sum);
  for (float& value : vector) value = static_cast<float>(value * scale);
}

EmbeddingReply::EmbeddingReply(ReplyContext context, EmbeddingSetup setup, std::shared_ptr<http::ResponseWriter> writer)
    : context_(context), setup_(std::move(setup)), writer_(std::move(writer)), embeddings_(setup_.inputs.size()) {}

sched::Request EmbeddingReply::request_for(size_t input) const {
  const GenerationOptions& options = setup_.request.input.options;
  sched::Request request;
  request.client_id = setup_.request_id;
  request.tenant = setup_.tenant;
  request.trace = setup_.trace;
  if (input > 0) request.trace.span = new_span_id();
  request.prompt = setup_.inputs[input];
  request.pooling = setup_.request.pooling;
  request.priority = options.priority;
  if (options.deadline_ms > 0) {
    request.deadline_ns = setup_.arrival_ns + static_cast<int64_t>(options.deadline_ms * 1e6);
  }
  request.cache_salt = options.cache_salt;
  return request;
}

void EmbeddingReply::start() {
  const auto self = shared_from_this();
  for (size_t i = 0; i < setup_.inputs.size() && !is_over_; ++i) {
    auto submitted = context_.generator.submit(request_for(i), std::make_shared<Sink>(self, i));
    if (!submitted) {
      fail(api_error(submitted.error(), context_.generator.load().retry_after_s));
      return;
    }
    requests_.push_back(*submitted);
  }
  writer_->on_disconnect([weak = weak_from_this()] {
    const auto reply = weak.lock();
    if (!reply || reply->is_over_) return;
    reply->cancel_all();
    reply->finish(499);
  });
}

void EmbeddingReply::on_update(size_t input, sched::Update update) {
  if (is_over_) return;
  if (update.error) {
    fail(api_error(*update.error, context_.generator.load().retry_after_s));
    return;
  }
  if (!update.embedding.empty()) embeddings_[input] = json_of(std::move(update.embedding));
  if (!update.is_last) return;
  if (embeddings_[input].empty()) {  // not cancelled by us: we listen no more after that
    fail(api_error({ErrorCode::kUnavailable, "the server ended the request"}, 1));
    return;
  }
  if (++num_done_ < setup_.inputs.size()) return;
  writer_->send(200, {{"Content-Type", "application/json"}, {"X-Request-Id", setup_.request_id}}, answer());
  finish(200);
}

std::string EmbeddingReply::json_of(std::vector<float> embedding) const {
  if (setup_.request.normalizes) normalize(embedding);
  JsonWriter json;
  if (setup_.request.is_base64) {
    json.string(to_base64({reinterpret_cast<const char*>(embedding.data()), embedding.size() * sizeof(float)}));
  } else {
    json.begin_array();
    for (const float value : embedding) json.number(value);
    json.end_array();
  }
  return json.take();
}

std::string EmbeddingReply::answer() const {
  uint64_t num_tokens = 0;
  JsonWriter json;
  json.begin_object().key("id").string(setup_.id).key("object").string("list");
  json.key("created").integer(setup_.created).key("model").string(setup_.model).key("data").begin_array();
  for (size_t i = 0; i < embeddings_.size(); ++i) {
    num_tokens += setup_.inputs[i].size();
    json.begin_object().key("index").unsigned_integer(i).key("object").string("embedding").key("embedding");
    json.raw(embeddings_[i]).end_object();
  }
  json.end_array().key("usage").begin_object().key("prompt_tokens").unsigned_integer(num_tokens);
  json.key("total_tokens").unsigned_integer(num_tokens);
  return json.end_object().end_object().take();
}

void EmbeddingReply::fail(const ApiError& error) {
  cancel_all();
  http::Headers headers = error_headers(error);
  headers.emplace_back("X-Request-Id", setup_.request_id);
  writer_->send(error.status, std::move(headers), error_json(error));
  finish(error.status);
}

void EmbeddingReply::cancel_all() {
  for (const sched::RequestId request : requests_) context_.generator.cancel(request);
}

void EmbeddingReply::finish(int status) {
  is_over_ = true;
  setup_.ticket.reset();
  context_.metrics.count_answer(setup_.endpoint, status);
  log_line(status < 500 ? LogLevel::kInfo : LogLevel::kWarning, "api/openai", "request",
           {{"id", setup_.request_id},
            {"trace", trace_id_hex(setup_.trace)},
            {"endpoint", setup_.endpoint},
            {"status", std::to_string(status)},
            {"inputs", std::to_string(setup_.inputs.size())},
            {"ms", fmt::format("{:.1f}", static_cast<double>(context_.clock.now_ns() - setup_.arrival_ns) * 1e-6)}});
}

}  // namespace tandem::openai
