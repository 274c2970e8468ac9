// Whole HTTP conversations, byte for byte, against tests/golden/http/*.txt. UPDATE_GOLDEN=1 rewrites them.
// Ids, times and dates are masked; so are chunk sizes, which count an id's digits only.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "api/openai/api_server_for_test.h"
#include "testing/golden.h"

namespace tandem::openai {
namespace {

// Replaces what follows each `mark`, up to one of `ends`, by `by`.
std::string masked(std::string text, std::string_view mark, std::string_view ends, std::string_view by) {
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + mark.size())) {
    const size_t from = at + mark.size();
    text.replace(from, std::min(text.find_first_of(ends, from), text.size()) - from, by);
  }
  return text;
}

std::string masked(std::string text) {
  text = masked(std::move(text), "chatcmpl-", "\"", "ID");
  text = masked(std::move(text), "\"id\":\"cmpl-", "\"", "ID");
  text = masked(std::move(text), "\"created\":", ",}", "TIME");
  text = masked(std::move(text), "Date: ", "\r", "DATE");
  return masked(std::move(text), "X-Request-Id: ", "\r", "ID");
}

void check_golden(const ApiServer& server, const std::string& name, std::string_view path, const std::string& body) {
  const std::string request = std::string(body.empty() ? "GET " : "POST ") + std::string(path) +
                              " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                              (body.empty() ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n" +
                              body;
  testing::RawClient client(server.port());
  client.send(request);
  std::string transcript = masked(request + "\n\n--------\n" + client.read_all()) + "\n";
  std::erase(transcript, '\r');
  const std::string file = TANDEM_SOURCE_DIR "/tests/golden/http/" + name + ".txt";
  const std::string difference = testing::golden_difference(file, transcript);
  CHECK_MESSAGE(difference.empty(), difference);
}

TEST_CASE("conversations are as they were agreed on") {
  ApiServer server("Hi \xF0\x9F\x98\x80!");
  const std::string messages = R"("messages":[{"role":"user","content":"hello"}])";
  check_golden(server, "chat", "/v1/chat/completions", "{" + messages + "}");
  check_golden(server, "chat_stream", "/v1/chat/completions",
               "{" + messages + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  check_golden(server, "chat_logprobs_n", "/v1/chat/completions",
               "{" + messages + R"(,"logprobs":true,"top_logprobs":1,"n":2,"max_tokens":2})");
  check_golden(server, "chat_stop_stream", "/v1/chat/completions",
               "{" + messages + R"(,"stream":true,"stop":[" \ud83d\ude00"]})");
  check_golden(server, "completion", "/v1/completions", R"({"prompt":"hello","max_tokens":3,"return_token_ids":true})");
  check_golden(server, "completion_echo_score", "/v1/completions",
               R"({"prompt":"abc","echo":true,"logprobs":1,"max_tokens":0})");
  check_golden(server, "completion_stream_logprobs", "/v1/completions",
               R"({"prompt":"a","stream":true,"logprobs":1,"max_tokens":2})");
  check_golden(server, "models", "/v1/models", "");
  check_golden(server, "error_field", "/v1/completions", R"({"prompt":"x","temperature":3})");
  check_golden(server, "error_json", "/v1/completions", R"({"prompt":)");
  check_golden(server, "error_model", "/v1/completions", R"({"prompt":"x","model":"other"})");
  check_golden(server, "error_too_long", "/v1/completions",
               R"({"add_special_tokens":false,"prompt":")" + std::string(300, 'x') + "\"}");
  server.script = [](const sched::Request&, uint32_t) {
    return Script{byte_tokens("abc"), Error{ErrorCode::kInternal, "the device failed"}, 1};
  };
  check_golden(server, "error_in_stream", "/v1/chat/completions", "{" + messages + R"(,"stream":true})");
  server.generator->refuse_with(Error{ErrorCode::kUnavailable, "the queue is full"});
  check_golden(server, "error_overloaded", "/v1/completions", R"({"prompt":"x"})");
}

}  // namespace
}  // namespace tandem::openai
