#pragma once
// EngineServer: the front over the real engine and scheduler, without a model: hashed tokens, whatever the batch.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "api/openai/api_server_for_test.h"
#include "serve/engine/engine.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::openai {

inline engine::EngineConfig small_config() {
  engine::EngineConfig config;
  config.model_name = "tiny";
  config.vocab_size = text::kToolCall + 1;
  config.sched.num_blocks = 128;
  config.sched.max_num_seqs = 8;
  config.sched.max_num_batched_tokens = 64;
  config.sched.max_model_len = 1000;
  config.sched.window_ms = 0;
  config.sched.eos_ids = {text::kEnd};
  return config;
}

struct EngineServer {
  text::TextModel model = ApiServer::small_model();
  MetricRegistry registry;
  SystemClock clock;
  sched::ScriptedExecutor executor;
  engine::Engine engine;
  OpenAiApi api;
  ServingGate gate{registry, "1.2.3"};
  std::unique_ptr<http::HttpServer> server;
  std::atomic<int> step_ms{0};

  explicit EngineServer(const engine::EngineConfig& config = small_config())
      : executor({config.sched.num_blocks, config.sched.block_size, 256, 'a'}),  // says bytes only
        engine(config, executor, clock, registry),
        api(engine, model, ApiServer::default_config(), registry, clock) {
    set_log(LogLevel::kError, LogFormat::kText);
    executor.set_observer(
        [this](uint64_t, const sched::Batch&) { std::this_thread::sleep_for(std::chrono::milliseconds(step_ms)); });
    engine.start();
    gate.open(api);
    auto started = http::HttpServer::start(
        {}, [this](http::HttpRequest request, auto writer) { gate(std::move(request), std::move(writer)); });
    REQUIRE(started);
    server = std::move(started).value();
  }
  ~EngineServer() {
    server->stop(0);
    engine.stop();
  }

  testing::RawAnswer complete(const std::string& fields) const {
    return testing::fetch(server->port(), "POST", "/v1/completions", "{\"add_special_tokens\":false," + fields + "}");
  }
  bool wait_idle() const { return engine.wait_idle(10); }
};

}  // namespace tandem::openai
