#pragma once
// The text side of a model's files, whichever layout they have: the one place where weight files and tokenizers
// meet, since neither folder knows the other.

#include "base/result.h"
#include "compute/model/metadata.h"
#include "compute/model/model_config.h"
#include "compute/model/weight_file.h"
#include "serve/text/text_model.h"

namespace tandem::apps {

// What a GGUF file says under tokenizer.ggml.*. Errors name file and key.
Result<text::TokenizerParts> tokenizer_parts(const model::Metadata& metadata);

// Tokenizer and chat template of a GGUF's metadata or of a directory's tokenizer files. Reads no weights, so it
// may run on a thread while they map. Takes 0.05 to 0.5 s.
Result<text::TextModel> load_text_model(const model::WeightFiles& files);

// The ids that end a text: those of the model's configuration, and the end token of its tokenizer's.
std::vector<TokenId> end_ids(const model::ModelConfig& config, const text::TextModel& text);

}  // namespace tandem::apps
