// What the public fault cases about metrics ask of a server, at its own /metrics.

#include <cmath>
#include <random>

#include "api/openai/api_server_for_test.h"
#include "serve/engine/engine.h"
#include "serve/sched/scripted_executor.h"
#include "testing/exposition.h"

namespace tandem::openai {
namespace {

using testing::faults_in_exposition;
using testing::samples_in_exposition;

std::string first_fault(std::string_view text) {
  const auto faults = faults_in_exposition(text);
  return faults.empty() ? "" : faults.front();
}

TEST_CASE("MET-01: the page is well-formed before the first request, under load, and with any model's name") {
  // The faults: NaN for the mean of nothing; label values as they are.
  ApiConfig config = ApiServer::default_config();
  config.served_names = {"a \"quoted\"\\ na\nme"};
  ApiServer server("Hello!", config);
  const std::string empty = server.get("/metrics").body;
  CHECK(first_fault(empty) == "");
  CHECK(empty.find("model_name=\"a \\\"quoted\\\"\\\\ na\\nme\"") != std::string::npos);
  std::thread load([&] {
    for (int i = 0; i < 40; ++i) server.post("/v1/completions", R"({"prompt":"x","stream":true,"n":2})");
  });
  for (int i = 0; i < 40; ++i) CHECK(first_fault(server.get("/metrics").body) == "");
  load.join();
  const auto samples = samples_in_exposition(server.get("/metrics").body);
  CHECK(samples.size() > 100);
  for (const auto& [name, value] : samples) CHECK_MESSAGE(std::isfinite(value), name);
}

TEST_CASE("MET-01: the check itself notices what readers of the format stumble over") {
  const std::string good = "# HELP a_total x\n# TYPE a_total counter\na_total{b=\"c\"} 1\n";
  CHECK(first_fault(good) == "");
  for (const char* bad :
       {"a_total 1\n", "# HELP a x\n# TYPE a counter\na 1\n",
        "# HELP a_total x\n# TYPE a_total counter\na_total -nan\n",
        "# HELP a_total x\n# TYPE a_total counter\na_total 1\na_total 1\n", "# HELP a x\n# TYPE a gauge\na{b=\"c} 1\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"\\x\"} 1\n", "# HELP a x\n# TYPE a gauge\nb 1\n",
        "# HELP a x\n# TYPE a gauge\na 1\n# HELP a x\n# TYPE a gauge\n", "# HELP a x\n# TYPE a gauge\na 1",
        "# HELP a x\n# TYPE a gauge\na{1b=\"c\"} 1\n", "# HELP a_total x\n# TYPE a_total counter\na_total -1\n",
        "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
        "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n"}) {
    CHECK_MESSAGE(first_fault(bad) != "", bad);
  }
}

TEST_CASE("MET-04: times from the shortest to the longest fall between bounds, each kind into its own") {
  // The faults: vLLM's bounds as they are, whose lowest is 0.3 s for whole requests and 10 ms between tokens; no bound
  // above a minute.
  MetricRegistry registry;
  FrontMetrics metrics(registry, "m", 1000);
  struct Kind {
    const char* name;
    double shortest_s, longest_s;
    std::function<void(double)> observe;
  };
  const auto ns = [](double seconds) { return static_cast<int64_t>(seconds * 1e9); };
  const Kind kinds[] = {
      {"vllm:time_to_first_token_seconds", 0.001, 600,
       [&](double s) { metrics.observe_first_token({1, 1 + ns(s), 0}); }},
      {"vllm:inter_token_latency_seconds", 0.0001, 10, [&](double s) { metrics.observe_gap(s); }},
      {"vllm:e2e_request_latency_seconds", 0.01, 3600,
       [&](double s) { metrics.observe_request_end({1, 0, 0}, 1, 1 + ns(s)); }},
  };
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    for (double seconds = kind.shortest_s * 1.01; seconds < kind.longest_s; seconds *= 1.3) {
      CAPTURE(seconds);
      const auto before = samples_in_exposition(registry.exposition());
      kind.observe(seconds);
      const auto after = samples_in_exposition(registry.exposition());
      std::vector<std::pair<double, double>> buckets;  // bound, how much it rose
      for (const auto& [name, value] : after) {
        if (!name.starts_with(std::string(kind.name) + "_bucket")) continue;
        const size_t at = name.find("le=\"") + 4;
        const std::string bound = name.substr(at, name.find('"', at) - at);
        buckets.emplace_back(bound == "+Inf" ? INFINITY : std::stod(bound), value - before.at(name));
      }
      std::ranges::sort(buckets);
      const auto hit = std::ranges::find_if(buckets, [](const auto& bucket) { return bucket.second > 0; });
      REQUIRE(hit != buckets.end());
      CHECK(hit != buckets.begin());
      CHECK(std::isfinite(hit->first));
      // A quantile read from it is off by less than the bucket, of which none is wider than five times its begin.
      CHECK(hit->first >= seconds);
      CHECK(std::prev(hit)->first < seconds);
      CHECK(hit->first <= 5 * std::prev(hit)->first);
    }
  }
}

TEST_CASE("MET-05: the names that dashboards, load tools and autoscalers ask for are on the page, and of that type") {
  // The fault: a counter without its _total.
  MetricRegistry registry;
  SystemClock clock;
  sched::ScriptedExecutor executor({16, 16, 256, 0});
  engine::EngineConfig config;
  config.vocab_size = 256;
  config.sched.num_blocks = 16;
  config.sched.max_model_len = 100;
  engine::Engine engine(config, executor, clock, registry);
  FrontMetrics front(registry, "m", 100);
  front.observe_choice_end("stop", 1, {1, 2, 3});
  const std::string text = registry.exposition();
  const auto has = [&](const char* name, const char* type) {
    CHECK_MESSAGE(text.find(std::string("# TYPE ") + name + " " + type + "\n") != std::string::npos, name);
  };
  for (const char* name : {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                           "vllm:gpu_cache_usage_perc", "vllm:cache_config_info"}) {
    has(name, "gauge");
  }
  for (const char* name :
       {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prompt_tokens_by_source_total",
        "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_recomputed_total", "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total",
        "vllm:request_success_total", "vllm:num_preemptions_total", "vllm:admission_rejections_total"}) {
    has(name, "counter");
  }
  for (const char* name :
       {"vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
        "vllm:request_time_per_output_token_seconds", "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds",
        "vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens",
        "vllm:request_params_n", "vllm:request_params_max_tokens", "vllm:iteration_tokens_total"}) {
    has(name, "histogram");
  }
  CHECK(first_fault(text) == "");
}

// An answer that nobody waits for.
class CountingWriter final : public http::ResponseWriter {
 public:
  explicit CountingWriter(std::map<int, int>& by_status) : by_status_(by_status) {}
  void send(int status, http::Headers, std::string) override { ++by_status_[status]; }
  void begin_stream(int, http::Headers, http::StreamIdle) override {}
  void write(std::string) override {}
  void end() override {}
  void on_disconnect(std::function<void()>) override {}
  void post(std::function<void()>) override {}

 private:
  std::map<int, int>& by_status_;
};

TEST_CASE("MET-08: what clients make up becomes no series: models, paths, users, ids, headers, keys") {
  // The fault: the asked-for model's name, the path or the client's id as a label.
  ApiConfig config = ApiServer::default_config();
  config.keys = {{"alice", "secret-a"}};
  ApiServer server("ok", config);
  std::map<int, int> by_status;
  const auto call = [&](std::string method, std::string path, std::string body, std::string key) {
    http::HttpRequest request;
    request.method = std::move(method);
    request.path = std::move(path);
    request.body = std::move(body);
    request.headers = {{"Authorization", "Bearer " + key},
                       {"X-Request-Id", request.body.substr(0, 40)},
                       {"X-Objective", request.path}};
    (*server.gate)(std::move(request), std::make_shared<CountingWriter>(by_status));
  };
  const auto round = [&](int i) {
    const std::string n = std::to_string(i);
    call("POST", "/v1/completions", R"({"prompt":"x","model":"no-)" + n + R"(","user":"u)" + n + "\"}", "secret-a");
    call("GET", "/v1/models/other-" + n, "", "secret-a");
    call("GET", "/v" + n, "", "secret-a");
    call("M" + n, "/v1/completions", "", "secret-a");
    call("POST", "/v1/chat/completions", "{\"f" + n + "\":1}", "secret-a");
    call("POST", "/tokenize", "{}", "wrong-" + n);
  };
  round(0);
  const std::string before = server.registry.exposition();
  for (int i = 1; i <= 2000; ++i) round(i);
  const std::string after = server.registry.exposition();
  CHECK(samples_in_exposition(after).size() == samples_in_exposition(before).size());
  CHECK(after.size() < before.size() + 200);  // numbers got longer
  CHECK(by_status[404] == 3 * 2001);
  CHECK(by_status[405] == 2001);
  CHECK(by_status[401] == 2001);
}

}  // namespace
}  // namespace tandem::openai
