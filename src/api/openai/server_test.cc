// What surrounds a request: keys, limits, states of the server, models, tokens, metrics.

#include <doctest/doctest.h>

#include "api/openai/api_server_for_test.h"

namespace tandem::openai {
namespace {

using testing::RawAnswer;

TEST_CASE("models are listed and shown by id, also ids with a slash; unknown ones are 404") {
  ApiServer server;
  const JsonValue list = json_of(server.get("/v1/models").body);
  CHECK(text_at(list, "object") == "list");
  CHECK(text_at(list, "data.0.id") == "tiny");
  CHECK(text_at(list, "data.0.object") == "model");
  CHECK(int_at(list, "data.0.max_model_len") == 200);
  CHECK(text_at(list, "data.1.id") == "org/alias");
  CHECK(text_at(json_of(server.get("/v1/models/org%2Falias").body), "id") == "org/alias");
  CHECK(text_at(json_of(server.get("/v1/models/org/alias").body), "id") == "org/alias");
  CHECK(server.get("/v1/models/none").status == 404);
  CHECK(server.get("/v1/models/").status == 404);
  CHECK(text_at(server.complete(R"("prompt":"x","model":"org/alias")"), "model") == "org/alias");
}

TEST_CASE("tokenize and detokenize have vLLM's bodies") {
  ApiServer server;
  const JsonValue text = server.ok("/tokenize", R"({"prompt":"hell<|im_end|>","return_token_strs":true})");
  CHECK(json_at(text, "tokens") == "[259,258,260]");
  CHECK(json_at(text, "token_strs") == R"(["<|im_start|>","hell","<|im_end|>"])");
  CHECK(int_at(text, "count") == 3);
  CHECK(int_at(text, "max_model_len") == 200);
  CHECK(json_at(server.ok("/tokenize", R"({"prompt":"a","add_special_tokens":false})"), "tokens") == "[97]");
  CHECK(json_at(server.ok("/tokenize", R"({"content":"a","add_special_tokens":false})"), "token_strs") == "null");
  const JsonValue chat = server.ok("/tokenize", R"({"messages":[{"role":"user","content":"<|im_end|>"}]})");
  CHECK(int_at(chat, "tokens.0") == text::kImStart);
  CHECK(text_at(server.ok("/detokenize", R"({"tokens":[259,258,260]})"), "prompt") == "<|im_start|>hell<|im_end|>");
  CHECK(server.post("/detokenize", R"({"tokens":[263]})").status == 400);
  CHECK(server.post("/detokenize", "{}").status == 400);
  CHECK(server.post("/tokenize", R"({"prompt":"a","model":"none"})").status == 404);
}

TEST_CASE("keys open the API by either header, not health, liveness and metrics; a wrong one is 401") {
  ApiConfig config = ApiServer::default_config();
  config.keys = {{"alice", "secret-a", 0}, {"bob", "secret-b", 0}};
  ApiServer server("ok", config);
  const std::string body = R"({"prompt":"x"})";
  for (const char* headers :
       {"", "Authorization: Bearer wrong-aa\r\n", "Authorization: Basic secret-a\r\n", "X-Api-Key: secret-\r\n",
        "Authorization: Bearer secret-ab\r\n", "Authorization: Bearer \r\n"}) {
    const RawAnswer answer = server.post("/v1/completions", body, headers);
    CHECK_MESSAGE(answer.status == 401, headers);
    CHECK(text_at(json_of(answer.body), "error.type") == "authentication_error");
    CHECK(answer.header("WWW-Authenticate") == "Bearer");
  }
  CHECK(server.get("/v1/models").status == 401);
  CHECK(server.post("/tokenize", body).status == 401);
  CHECK(server.post("/v1/completions", body, "Authorization: Bearer secret-a\r\n").status == 200);
  CHECK(server.post("/v1/completions", body, "x-api-key: secret-b\r\n").status == 200);
  CHECK(server.generator->seen()[0].tenant == "alice");
  CHECK(server.generator->seen()[1].tenant == "bob");
  for (const char* path : {"/health", "/live", "/metrics"}) CHECK(server.get(path).status == 200);
}

TEST_CASE("a key's limit of requests under way is 429 with Retry-After, and is given back") {
  ApiConfig config = ApiServer::default_config();
  config.keys = {{"alice", "k", 1}};
  ApiServer server("ok", config);
  const std::string key = "Authorization: Bearer k\r\n";
  const std::string body = R"({"prompt":"x"})";
  for (int round = 0; round < 3; ++round) {
    server.generator->hold(true);
    testing::RawClient first(server.port());
    first.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + key + "Content-Length: 14\r\n\r\n" + body);
    while (server.generator->num_live() == 0) std::this_thread::yield();
    const RawAnswer second = server.post("/v1/completions", body, key);
    CHECK(second.status == 429);
    CHECK(second.header("Retry-After") == "3");
    CHECK(text_at(json_of(second.body), "error.type") == "rate_limit_error");
    server.generator->hold(false);
    CHECK(testing::read_answer(first).status == 200);
  }
  CHECK(server.post("/v1/completions", body, key).status == 200);
}

TEST_CASE("what the generator refuses keeps its meaning: 400, 429, 503, 500, before any stream begins") {
  ApiServer server;
  struct Case {
    ErrorCode code;
    int status;
    const char* type;
  };
  const Case cases[] = {{ErrorCode::kInvalidArgument, 400, "invalid_request_error"},
                        {ErrorCode::kExhausted, 429, "rate_limit_error"},
                        {ErrorCode::kUnavailable, 503, "overloaded_error"},
                        {ErrorCode::kInternal, 500, "internal_error"}};
  for (const Case& c : cases) {
    server.generator->refuse_with(Error{c.code, "why"});
    for (const char* stream : {"false", "true"}) {
      const RawAnswer answer = server.post("/v1/completions", std::string(R"({"prompt":"x","stream":)") + stream + "}");
      CHECK(answer.status == c.status);
      CHECK(text_at(json_of(answer.body), "error.type") == c.type);
      CHECK(text_at(json_of(answer.body), "error.message") == "why");
      CHECK((answer.header("Retry-After") == "3") == (c.status == 429 || c.status == 503));
      CHECK(!answer.header("X-Request-Id").empty());
    }
  }
}

TEST_CASE("DEP-06: before the model is there and while draining the server is alive, not healthy, and says 503") {
  MetricRegistry registry;
  ServingGate gate(registry, "1.2.3");
  auto server = http::HttpServer::start(
      {}, [&gate](http::HttpRequest request, auto writer) { gate(std::move(request), std::move(writer)); });
  REQUIRE(server);
  const uint16_t port = (*server)->port();
  CHECK(testing::fetch(port, "GET", "/live").status == 200);
  CHECK(testing::fetch(port, "GET", "/health").status == 503);
  CHECK(testing::fetch(port, "GET", "/metrics").status == 200);
  CHECK(text_at(json_of(testing::fetch(port, "GET", "/version").body), "version") == "1.2.3");
  const RawAnswer loading = testing::fetch(port, "POST", "/v1/completions", R"({"prompt":"x"})");
  CHECK(loading.status == 503);
  CHECK(loading.header("Retry-After") == "1");
  CHECK(text_at(json_of(loading.body), "error.message") == "the model is loading");

  ApiServer full;
  CHECK(full.get("/health").status == 200);
  CHECK(full.get("/ping").status == 200);
  full.generator->hold(true);
  testing::RawClient running(full.port());
  running.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}");
  while (full.generator->num_live() == 0) std::this_thread::yield();
  CHECK(text_at(json_of(full.get("/load").body), "object") == "(no text)");
  CHECK(int_at(json_of(full.get("/load").body), "server_load") == 1);
  full.gate->drain();
  CHECK(full.get("/health").status == 503);
  CHECK(full.get("/live").status == 200);
  CHECK(full.post("/v1/completions", R"({"prompt":"x"})").status == 503);
  full.generator->hold(false);
  CHECK(testing::read_answer(running).status == 200);
}

TEST_CASE("the API's description names every path that is served, and is there without model or key") {
  ApiConfig config = ApiServer::default_config();
  config.keys = {{"alice", "k", 0}};
  ApiServer server("ok", config);
  const RawAnswer answer = server.get("/openapi.json");
  CHECK(answer.status == 200);
  CHECK(answer.header("Content-Type") == "application/json");
  const JsonValue description = json_of(answer.body);
  CHECK(text_at(description, "openapi") == "3.1.0");
  const JsonValue::Object* paths = at(description, "paths").if_object();
  REQUIRE(paths);
  for (const auto& [path, methods] : *paths) {
    CAPTURE(path);
    for (const auto& [method, operation] : *methods.if_object()) {
      std::string upper = method;
      for (char& c : upper) c = static_cast<char>(std::toupper(c));
      const std::string real = path == "/v1/models/{model}" ? "/v1/models/tiny" : path;
      const RawAnswer got =
          testing::fetch(server.port(), upper, real, upper == "POST" ? "{}" : "", "Authorization: Bearer k\r\n");
      const bool is_there = real == "/server_info" || (got.status != 404 && got.status != 405);
      CHECK_MESSAGE(is_there, got.body);
      CHECK(operation.find("responses")->find("200") != nullptr);
      if (got.status >= 400) CHECK(operation.find("responses")->find(std::to_string(got.status)) != nullptr);
    }
  }
}

TEST_CASE("the metrics that dashboards and load tools read count what happened") {
  ApiServer server("abc");
  server.complete(R"("prompt":"hello","n":2,"max_tokens":3)");
  server.post("/v1/completions", R"({"prompt":"x","stream":true})");
  const std::string labels = R"({model_name="tiny",engine="0"})";
  CHECK(server.metric("vllm:time_to_first_token_seconds_count" + labels) == "2");
  CHECK(server.metric("tandem_time_to_first_token_seconds_count" + labels) == "2");
  CHECK(server.metric("vllm:e2e_request_latency_seconds_count" + labels) == "2");
  CHECK(server.metric("vllm:inter_token_latency_seconds_count" + labels) == "7");  // 2 + 2, and 3
  CHECK(server.metric("vllm:request_time_per_output_token_seconds_count" + labels) == "3");
  CHECK(server.metric("vllm:time_per_output_token_seconds_count" + labels) == "3");
  CHECK(server.metric("vllm:request_params_n_sum" + labels) == "3");
  CHECK(server.metric(R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason="length"})") == "2");
  CHECK(server.metric(R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"})") == "1");
  CHECK(server.metric(R"(tandem_http_requests_total{endpoint="/v1/completions",status="200"})") == "2");
  CHECK(server.get("/metrics").header("Content-Type").starts_with("text/plain; version=0.0.4"));
}

TEST_CASE("request ids of clients are sent back harmless and short; without one there is ours") {
  ApiServer server("ok");
  CHECK(server.post("/v1/completions", R"({"prompt":"x"})", "X-Request-Id: a b\tc\r\n").header("X-Request-Id") ==
        "a_b_c");
  const std::string longest(128, 'i');
  CHECK(server.post("/v1/completions", R"({"prompt":"x"})", "X-Request-Id: " + longest + "iii\r\n")
            .header("X-Request-Id") == longest);
  CHECK(server.post("/v1/completions", R"({"prompt":"x"})").header("X-Request-Id").size() == 24);
}

TEST_CASE("the limits of a request reach the generator") {
  ApiServer server("ok");
  server.complete(R"("prompt":"ab","max_tokens":3,"min_tokens":2,"ignore_eos":true,"stop_token_ids":[7],"priority":-1,
                     "cache_salt":"s","deadline_ms":60000,"temperature":0.5,"logit_bias":{"3":1.5},"logprobs":2,
                     "echo":true)");
  const sched::Request request = server.generator->seen()[0];
  CHECK(request.max_tokens == 3);
  CHECK(request.min_tokens == 2);
  CHECK(request.ignore_eos);
  CHECK(request.stop_token_ids == std::vector<TokenId>{7});
  CHECK(request.priority == -1);
  CHECK(request.cache_salt == "s");
  CHECK(request.deadline_ns > server.clock.now_ns());
  CHECK(request.sampling.temperature == 0.5f);
  CHECK(request.sampling.num_logprobs == 2);
  CHECK(request.prompt_logprobs == 2);
  CHECK(!request.make_stop_rule);
}

}  // namespace
}  // namespace tandem::openai
