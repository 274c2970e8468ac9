#pragma once
// EngineServer: the whole front on a port of 127.0.0.1, over the real engine and scheduler, without a model: hashed
// tokens, whatever the batch.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "api/openai/api_server_for_test.h"
#include "serve/engine/engine.h"
#include "serve/sched/scripted_executor.h"
#include "serve/text/grammar_compiler.h"

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
  text::GrammarCompiler grammars;
  engine::Engine engine;
  OpenAiApi api;
  ServingGate gate{registry, "1.2.3"};
  std::unique_ptr<http::HttpServer> server;
  std::atomic<int> step_ms{0};

  // Without a grammar: says bytes from `first` on only.
  explicit EngineServer(const engine::EngineConfig& config = small_config(), text::GrammarConfig grammar_config = {},
                        TokenId first = 'a')
      : executor({config.sched.num_blocks, config.sched.block_size, first == 0 ? config.vocab_size : 256, first}),
        grammars(model.tokenizer, with_model(std::move(grammar_config), config), registry),
        engine(config, executor, clock, registry),
        api(engine, model, ApiServer::default_config(), registry, clock, &grammars) {
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

  static text::GrammarConfig with_model(text::GrammarConfig grammars, const engine::EngineConfig& config) {
    grammars.logits_size = config.vocab_size;
    grammars.stops = config.sched.eos_ids;
    return grammars;
  }

  testing::RawAnswer complete(const std::string& fields) const {
    return testing::fetch(server->port(), "POST", "/v1/completions", "{\"add_special_tokens\":false," + fields + "}");
  }
  bool wait_idle() const { return engine.wait_idle(10); }
};

}  // namespace tandem::openai
