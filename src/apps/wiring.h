#pragma once
// From option values to the parts of one process: model on a device, its text, and the engine over it. Shared by
// serve, run, bench and inspect, so that all four mean the same by an option.

#include <memory>
#include <optional>
#include <string>

#include "api/openai/request.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/options.h"
#include "compute/model/model_config.h"
#include "compute/model/weight_file.h"
#include "serve/engine/engine.h"
#include "serve/runner/model_runner.h"
#include "serve/text/grammar_compiler.h"
#include "serve/text/text_model.h"

namespace tandem::apps {

// Checks what a single option's range cannot: combinations. Options that `values` does not declare are fine.
Status check_options(const OptionValues& values);

// The model is not looked at.
Result<runner::RunnerOptions> runner_options(const OptionValues& values, const std::string& model_path);

struct LoadedModel {
  std::unique_ptr<runner::ModelRunner> runner;
  std::unique_ptr<text::TextModel> text;  // borrowed by the API: keeps its address
  openai::SamplingDefaults sampling;      // of API requests that leave it open
  std::string weights_hash;               // of the files' content, if it was asked for
};

// Finds MODEL, maps its files, and loads weights and tokenizer side by side. With --chat-template that template takes
// the place of the model's. `hashes_weights`: the first time reads every byte.
Result<LoadedModel> load_model(const std::string& model, const OptionValues& values, bool hashes_weights = false);

// What a process needs of MODEL that serves its text and leaves its weights to others.
struct LoadedText {
  std::unique_ptr<text::TextModel> text;
  openai::SamplingDefaults sampling;
  model::ModelConfig config;
};
Result<LoadedText> load_text(const std::string& model, const OptionValues& values);

// Of this model: its grammars end in its end tokens.
text::GrammarConfig grammar_config(const model::ModelConfig& config, const text::TextModel& text);

// Applies --cache-limit, but to nothing that this model needs.
void limit_cache_beside(const OptionValues& values, const std::string& model_path, const runner::ModelRunner& runner);

// Needs the scheduling and KV options; those that `values` does not declare keep their defaults.
engine::EngineConfig engine_config(const OptionValues& values, const LoadedModel& model,
                                   const std::string& model_name);

}  // namespace tandem::apps
