#include "compute/model/weight_names.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "compute/model/files_for_test.h"

using namespace tandem;
using namespace tandem::model;

namespace {

using Tensors = std::vector<std::pair<std::string, std::vector<uint64_t>>>;

// One layer, hidden 8, 2 heads and 1 kv head of 4, ffn 12, vocabulary 5.
const char* kConfig =
    R"({"model_type":"llama","hidden_size":8,"intermediate_size":12,"num_hidden_layers":1,"num_attention_heads":2,)"
    R"("num_key_value_heads":1,"vocab_size":5,"max_position_embeddings":16,"rms_norm_eps":1e-5,)";

Tensors valid_tensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", {5, 8}},
          {layer + "input_layernorm.weight", {8}},
          {layer + "self_attn.q_proj.weight", {8, 8}},
          {layer + "self_attn.k_proj.weight", {4, 8}},
          {layer + "self_attn.v_proj.weight", {4, 8}},
          {layer + "self_attn.o_proj.weight", {8, 8}},
          {layer + "post_attention_layernorm.weight", {8}},
          {layer + "mlp.gate_proj.weight", {12, 8}},
          {layer + "mlp.up_proj.weight", {12, 8}},
          {layer + "mlp.down_proj.weight", {8, 12}},
          {"model.norm.weight", {8}},
          {"lm_head.weight", {5, 8}}};
}

void drop(Tensors& tensors, const std::string& name) {
  std::erase_if(tensors, [&name](const auto& tensor) { return tensor.first == name; });
}

// Kept together because ModelTensors borrows from WeightFiles.
struct Collected {
  WeightFiles files;
  ModelConfig config;
  Result<ModelTensors> tensors;
};

Collected collect_directory(const std::string& bytes, bool is_tied) {
  const TempDir dir;  // the mapping outlives it
  dir.write("model.safetensors", bytes);
  dir.write("config.json", kConfig + std::string(is_tied ? R"("tie_word_embeddings":true})" : R"("rope_theta":1e4})"));
  auto files = WeightFiles::open(dir.path());
  REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
  auto config = read_config(files.value());
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  auto tensors = collect(files.value(), config.value());
  return {std::move(files).value(), std::move(config).value(), std::move(tensors)};
}

std::string message_of(const Tensors& tensors, bool is_tied = false) {
  const Collected collected = collect_directory(safetensors_of(tensors), is_tied);
  return collected.tensors ? "" : collected.tensors.error().message;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("names: a whole model is collected") {
  const Collected model = collect_directory(safetensors_of(valid_tensors()), false);
  REQUIRE(model.tensors);
  const ModelTensors& tensors = model.tensors.value();
  CHECK(tensors.embedding->name == "model.embed_tokens.weight");
  CHECK(tensors.layers[0].down->name == "model.layers.0.mlp.down_proj.weight");
  CHECK(tensors.layers[0].q_bias == nullptr);
  CHECK(tensors.layers[0].q_norm == nullptr);
  CHECK(tensors.final_norm->name == "model.norm.weight");
  CHECK(tensors.lm_head->name == "lm_head.weight");
  CHECK(tensors.unused.empty());
}

// Fails when a present head is not taken, or an absent one is never missed.
TEST_CASE("LOD-07 names: tied and untied, with and without lm_head") {
  Tensors without = valid_tensors();
  drop(without, "lm_head.weight");
  SUBCASE("tied, absent: shared") {
    const Collected model = collect_directory(safetensors_of(without), true);
    REQUIRE(model.tensors);
    CHECK(model.tensors.value().lm_head == nullptr);
  }
  SUBCASE("tied, present and different: the head is used") {
    const Collected model = collect_directory(safetensors_of(valid_tensors()), true);
    REQUIRE(model.tensors);
    REQUIRE(model.tensors.value().lm_head != nullptr);
    CHECK(model.tensors.value().unused.empty());
  }
  SUBCASE("tied, present and equal: shared") {
    std::string bytes = safetensors_of(valid_tensors());  // the head is last: fill it as the embedding, with 0.0
    std::fill(bytes.end() - 5 * 8 * 4, bytes.end(), '\0');
    const Collected model = collect_directory(bytes, true);
    REQUIRE(model.tensors);
    CHECK(model.tensors.value().lm_head == nullptr);
  }
  SUBCASE("untied, absent: an error") {
    CHECK(contains(message_of(without), "missing tensors: \"lm_head.weight\" (\"tie_word_embeddings\" is not true"));
  }
  SUBCASE("untied, present: separate") {
    const Collected model = collect_directory(safetensors_of(valid_tensors()), false);
    REQUIRE(model.tensors);
    CHECK(model.tensors.value().lm_head != nullptr);
  }
}

TEST_CASE("LOD-09 names: a wrong shape names file, tensor, found and expected") {
  for (size_t i = 0; i < valid_tensors().size(); ++i) {
    Tensors tensors = valid_tensors();
    tensors[i].second[0] += 1;
    const std::string& name = tensors[i].first;
    CAPTURE(name);
    const std::string message = message_of(tensors);
    CAPTURE(message);
    CHECK(contains(message, "model.safetensors: tensor \"" + name + "\": shape ["));
    CHECK(contains(message, "but the configuration needs ["));
  }
  Tensors tensors = valid_tensors();
  tensors[3].second = {8, 4};
  CHECK(contains(message_of(tensors), "shape [8, 4], but the configuration needs [4, 8]"));
}

TEST_CASE("LOD-10 names: missing and superfluous tensors are listed") {
  Tensors tensors = valid_tensors();
  drop(tensors, "model.layers.0.mlp.up_proj.weight");
  drop(tensors, "model.norm.weight");
  CHECK(contains(message_of(tensors),
                 "missing tensors: \"model.layers.0.mlp.up_proj.weight\", \"model.norm.weight\""));

  tensors = valid_tensors();
  tensors.push_back({"model.layers.0.self_attn.o_proj.bias", {8}});
  tensors.push_back({"model.layers.1.input_layernorm.weight", {8}});
  CHECK(contains(message_of(tensors), "does not use: \"model.layers.0.self_attn.o_proj.bias\", \"model.layers.1."));

  tensors = valid_tensors();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {2}});
  tensors.push_back({"vision_tower.patch.weight", {3}});
  const Collected model = collect_directory(safetensors_of(tensors), false);
  REQUIRE_MESSAGE(model.tensors, (model.tensors ? "" : model.tensors.error().message));
  CHECK(model.tensors.value().unused ==
        std::vector<std::string>{"model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.patch.weight"});
}

TEST_CASE("names: a configuration with thousands of absent layers gives a short message") {
  Collected model = collect_directory(safetensors_of(valid_tensors()), false);
  model.config.num_layers = 4096;
  const auto tensors = collect(model.files, model.config);
  REQUIRE_FALSE(tensors);
  CHECK(contains(tensors.error().message, " more"));
  CHECK(tensors.error().message.size() < 1000);
}
