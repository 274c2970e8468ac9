#include "compute/model/model_config.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "compute/model/files_for_test.h"
#include "compute/model/weight_file.h"

using namespace tandem;
using namespace tandem::model;

namespace {

// A config.json of the given architecture, with more members appended (the last of duplicates counts).
std::string config_json(const std::string& type, const std::string& more = "") {
  return R"({"model_type":")" + type + R"(","hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,)" +
         R"("num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"max_position_embeddings":512,)" +
         R"("rms_norm_eps":1e-5,"eos_token_id":7)" + (more.empty() ? "" : "," + more) + "}";
}

Result<ModelConfig> parse(const std::string& type, const std::string& more = "", const std::string& generation = "") {
  return parse_hf_config(config_json(type, more), generation, "config.json");
}

ModelConfig parsed(const std::string& type, const std::string& more = "", const std::string& generation = "") {
  auto config = parse(type, more, generation);
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  return std::move(config).value();
}

GgufBytes valid_gguf() {
  GgufBytes file;
  file.keys = {{"general.architecture", string_value("llama")},
               {"llama.block_count", u32_value(2)},
               {"llama.embedding_length", u32_value(64)},
               {"llama.feed_forward_length", u32_value(96)},
               {"llama.context_length", u32_value(512)},
               {"llama.attention.head_count", u32_value(4)},
               {"llama.attention.head_count_kv", u32_value(2)},
               {"llama.attention.layer_norm_rms_epsilon", f32_value(1e-5f)},
               {"tokenizer.ggml.eos_token_id", u32_value(7)}};
  file.tensors = {{"token_embd.weight", {64, 100}, 1, 0}};
  file.data_bytes = 64 * 100 * 2;
  return file;
}

// Replaces the key's value or adds it.
void set(GgufBytes& file, const std::string& key, const std::string& value) {
  for (auto& entry : file.keys) {
    if (entry.first == key) {
      entry.second = value;
      return;
    }
  }
  file.keys.push_back({key, value});
}

Result<ModelConfig> read(const GgufBytes& file) {
  const TempDir dir;
  const auto files = WeightFiles::open(dir.write("model.gguf", file.encode()));
  REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
  return read_config(files.value());
}

}  // namespace

TEST_CASE("config: defaults and derived values of config.json") {
  const ModelConfig llama = parsed("llama");
  CHECK(llama.head_dim == 16);
  CHECK(llama.rope.base == 10000.0);
  CHECK(llama.rope.scaling == RopeScaling::kNone);
  CHECK_FALSE(llama.rope.is_interleaved);
  CHECK_FALSE(llama.tied_embeddings);
  CHECK(llama.norm_eps == 1e-5f);
  CHECK(llama.bos_id == -1);
  CHECK(parsed("llama", R"("num_key_value_heads":null)").num_kv_heads == 4);
  CHECK(parsed("llama", R"("head_dim":32)").head_dim == 32);
  CHECK(parsed("llama", R"("tie_word_embeddings":true)").tied_embeddings);
  CHECK(parsed("qwen2").qkv_bias);
  CHECK(parsed("qwen3").qk_norm);
  CHECK(parsed("qwen3").head_dim == 128);
  CHECK(parsed("llama", R"("rope_theta":5e5)").rope.base == 500000.0);
}

TEST_CASE("SMP-10 config: the ids that end a text are united") {
  const ModelConfig config = parsed("llama", R"("eos_token_id":[7,9],"bos_token_id":3)", R"({"eos_token_id":[9,11]})");
  CHECK(config.eos_ids == std::vector<int32_t>{7, 9, 11});
  CHECK(config.bos_id == 3);
  CHECK(parsed("llama", R"("eos_token_id":null)").eos_ids.empty());
  CHECK(parsed("llama", R"("eos_token_id":[7,-1,100,99])").eos_ids == std::vector<int32_t>{7, 99});  // vocabulary 100
}

TEST_CASE("config: windows") {
  CHECK(parsed("mistral").sliding_window == 0);
  CHECK(parsed("mistral", R"("sliding_window":64)").sliding_window == 64);
  CHECK(parsed("mistral", R"("sliding_window":null)").sliding_window == 0);
  CHECK(parsed("llama", R"("sliding_window":64)").sliding_window == 0);
  CHECK(parsed("qwen2", R"("sliding_window":64)").sliding_window == 0);
  CHECK(parsed("qwen2", R"("sliding_window":64,"use_sliding_window":false,"max_window_layers":0)").sliding_window == 0);
  CHECK(parsed("qwen2", R"("sliding_window":64,"use_sliding_window":true)").sliding_window == 0);  // layers 28 and up
  CHECK(parsed("qwen2", R"("sliding_window":64,"use_sliding_window":true,"max_window_layers":0)").sliding_window == 64);
  const char* all = R"("sliding_window":64,"layer_types":["sliding_attention","sliding_attention"])";
  CHECK(parsed("mistral", all).sliding_window == 64);
  const char* none = R"("sliding_window":64,"layer_types":["full_attention","full_attention"])";
  CHECK(parsed("mistral", none).sliding_window == 0);
}

TEST_CASE("LOD-08 config: both spellings of rope scaling") {
  const ModelConfig older = parsed("llama", R"("rope_theta":5e5,"rope_scaling":{"type":"linear","factor":4})");
  const ModelConfig newer =
      parsed("llama", R"("rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":500000})");
  for (const ModelConfig& config : {older, newer}) {
    CHECK(config.rope.scaling == RopeScaling::kLinear);
    CHECK(config.rope.factor == 4.0);
    CHECK(config.rope.base == 500000.0);
  }
  const ModelConfig plain = parsed("qwen3", R"("rope_parameters":{"rope_type":"default","rope_theta":1000000})");
  CHECK(plain.rope.scaling == RopeScaling::kNone);
  CHECK(plain.rope.base == 1000000.0);
  CHECK(parsed("llama", R"("rope_scaling":null)").rope.scaling == RopeScaling::kNone);
}

TEST_CASE("config: yarn's parameters") {
  const ModelConfig config =
      parsed("qwen2", R"("rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":256})");
  CHECK(config.rope.attention_factor == doctest::Approx(1.1386294361119891));  // 0.1 * ln 4 + 1
  CHECK(config.rope.beta_fast == 32.0);
  CHECK(config.max_position == 1024);
  CHECK(parsed("qwen2", R"("rope_scaling":{"type":"yarn","factor":4})").rope.original_max_position == 512);
  const char* derived = R"("rope_scaling":{"type":"yarn","original_max_position_embeddings":128})";
  CHECK(parsed("qwen2", derived).rope.factor == 4.0);
  const char* scaled = R"("rope_scaling":{"type":"yarn","factor":40,"mscale":1.0,"mscale_all_dim":0.707})";
  CHECK(parsed("qwen2", scaled).rope.attention_factor == doctest::Approx(1.0857263992561355));  // transformers 5.24.0
  const char* given = R"("rope_scaling":{"type":"yarn","factor":40,"attention_factor":1.25,"truncate":false})";
  CHECK(parsed("qwen2", given).rope.attention_factor == 1.25);
  CHECK_FALSE(parsed("qwen2", given).rope.truncate);
}

TEST_CASE("LOD-08, LOD-09 config: what we cannot compute is refused by name") {
  struct Case {
    const char* type;
    const char* more;
    const char* reason;
  };
  const Case cases[] = {
      {"mixtral", "", "\"model_type\" \"mixtral\" is not supported"},
      {"", "", "\"model_type\" \"\""},
      {"llama", R"("architectures":["LlamaForSequenceClassification"])", "\"LlamaForSequenceClassification\""},
      {"llama", R"("quantization_config":{"quant_method":"gptq"})", "quantization_config"},
      {"llama", R"("attention_bias":true)", "attention_bias"},
      {"llama", R"("mlp_bias":true)", "mlp_bias"},
      {"llama", R"("hidden_act":"gelu")", "\"gelu\""},
      {"llama", R"("partial_rotary_factor":0.5)", "partial_rotary_factor"},
      {"llama", R"("rope_scaling":{"type":"dynamic","factor":2})", "rope type \"dynamic\" is not supported"},
      {"llama", R"("rope_scaling":{"rope_type":"longrope","factor":2})", "rope type \"longrope\""},
      {"llama", R"("rope_scaling":{"rope_type":"linear"})", "lacks \"factor\""},
      {"llama", R"("rope_scaling":{"rope_type":"llama3","factor":8})", "lacks \"low_freq_factor\""},
      {"llama", R"("rope_scaling":{"rope_type":"linear","factor":0})", "factor must be positive"},
      {"llama", R"("rope_scaling":{"rope_type":"linear","factor":-2})", "factor must be positive"},
      // Undefined once: the context length was computed from the factor before the factor was checked.
      {"llama", R"("rope_scaling":{"rope_type":"yarn","factor":-4})", "factor must be positive"},
      {"llama", R"("rope_scaling":7)", "\"rope_scaling\" is not an object"},
      {"llama", R"("rope_parameters":{"full_attention":{"rope_type":"default"}})", "differs between layer types"},
      {"qwen2", R"("sliding_window":64,"use_sliding_window":true,"max_window_layers":1)", "in some layers only"},
      {"mistral", R"("sliding_window":64,"layer_types":["sliding_attention","full_attention"])", "in some layers only"},
      {"mistral", R"("sliding_window":64,"layer_types":["chunked_attention"])", "layer type"},
      {"llama", R"("num_attention_heads":0)", "num_attention_heads"},
      {"llama", R"("num_key_value_heads":0)", "number of kv heads 0"},
      {"llama", R"("num_key_value_heads":3)", "4 heads are no multiple of 3 kv heads"},
      {"llama", R"("num_hidden_layers":4294967295)", "number of layers 4294967295"},
      {"llama", R"("num_hidden_layers":-1)", "\"num_hidden_layers\" is not an unsigned"},
      {"llama", R"("hidden_size":1e3)", "\"hidden_size\" is not an unsigned"},
      {"llama", R"("hidden_size":null)", "hidden size 0"},
      {"llama", R"("head_dim":15)", "head size 15 is odd"},
      {"llama", R"("vocab_size":18446744073709551616)", "not JSON"},
      {"llama", R"("rms_norm_eps":0)", "epsilon must be positive"},
      {"llama", R"("rope_theta":0)", "rope base"},
      {"llama", R"("tie_word_embeddings":"yes")", "\"tie_word_embeddings\" is not a boolean"},
      {"llama", R"("eos_token_id":"</s>")", "\"eos_token_id\" is not a token id"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.more));
    const auto config = parse(c.type, c.more);
    REQUIRE_FALSE(config);
    CAPTURE(config.error().message);
    CHECK(config.error().message.starts_with("config.json: "));
    CHECK(config.error().message.find(c.reason) != std::string::npos);
  }
  CHECK_FALSE(parse_hf_config("", "", "config.json"));
  CHECK_FALSE(parse_hf_config("[]", "", "config.json"));
  CHECK_FALSE(parse("llama", "", "{"));
}

TEST_CASE("config: a GGUF's keys, its defaults and variants") {
  const ModelConfig config = read(valid_gguf()).value();
  CHECK(config.architecture == "llama");
  CHECK(config.head_dim == 16);
  CHECK(config.vocab == 100);  // the embedding's rows: there is no key
  CHECK(config.rope.is_interleaved);
  CHECK(config.tied_embeddings);
  CHECK(config.bos_id == -1);

  struct Case {
    const char* what;
    std::function<void(GgufBytes&)> change;
    std::function<bool(const ModelConfig&)> holds;
  };
  const Case cases[] = {
      {"key_length wins", [](auto& f) { set(f, "llama.attention.key_length", u32_value(32)); },
       [](const auto& c) { return c.head_dim == 32; }},
      {"rope dimensions say the head size", [](auto& f) { set(f, "llama.rope.dimension_count", u32_value(24)); },
       [](const auto& c) { return c.head_dim == 24; }},
      {"window", [](auto& f) { set(f, "llama.attention.sliding_window", u32_value(64)); },
       [](const auto& c) { return c.sliding_window == 64; }},
      {"the same number for each layer",
       [](auto& f) { set(f, "llama.attention.head_count_kv", array_value(5, 2, std::string("\1\0\0\0\1\0\0\0", 8))); },
       [](const auto& c) { return c.num_kv_heads == 1; }},
      {"factor without a type is linear", [](auto& f) { set(f, "llama.rope.scaling.factor", f32_value(2)); },
       [](const auto& c) { return c.rope.scaling == RopeScaling::kLinear && c.rope.factor == 2.0; }},
      {"the oldest spelling of linear", [](auto& f) { set(f, "llama.rope.scale_linear", f32_value(2)); },
       [](const auto& c) { return c.rope.scaling == RopeScaling::kLinear; }},
      {"type none switches a factor off",
       [](auto& f) {
         set(f, "llama.rope.scaling.factor", f32_value(2));
         set(f, "llama.rope.scaling.type", string_value("none"));
       },
       [](const auto& c) { return c.rope.scaling == RopeScaling::kNone; }},
      {"more ids end a text",
       [](auto& f) {
         set(f, "tokenizer.ggml.eot_token_id", u32_value(8));
         set(f, "tokenizer.ggml.eom_token_id", u32_value(7));
       },
       [](const auto& c) { return c.eos_ids == std::vector<int32_t>{7, 8}; }},
      {"neutral scales are no feature", [](auto& f) { set(f, "llama.logit_scale", f32_value(1)); },
       [](const auto&) { return true; }},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    GgufBytes file = valid_gguf();
    c.change(file);
    const auto changed = read(file);
    REQUIRE_MESSAGE(changed, (changed ? "" : changed.error().message));
    CHECK(c.holds(changed.value()));
  }
}

TEST_CASE("LOD-08, LOD-09 config: a GGUF that we cannot compute is refused by name") {
  struct Case {
    const char* key;
    std::string value;
    const char* reason;
  };
  const Case cases[] = {
      {"general.architecture", string_value("falcon"), "architecture \"falcon\" is not supported"},
      {"general.architecture", u32_value(1), "\"general.architecture\" is not a string"},
      {"llama.expert_count", u32_value(8), "expert_count"},
      {"llama.logit_scale", f32_value(0.5f), "logit_scale"},
      {"llama.attention.causal", bool_value(false), "not causal"},
      {"llama.attention.value_length", u32_value(8), "value size"},
      {"llama.rope.dimension_count", u32_value(0x7FFFFFFF), "head size 2147483647"},
      {"llama.rope.scaling.type", string_value("longrope"), "rope scaling type \"longrope\""},
      {"llama.rope.scaling.type", string_value("yarn"), "original context length"},
      {"llama.rope.freq_base", f32_value(0), "rope base"},
      {"llama.attention.head_count", u32_value(0), "number of heads 0"},
      {"llama.attention.head_count_kv", u32_value(3), "no multiple of 3 kv heads"},
      {"llama.attention.head_count_kv", array_value(5, 2, std::string("\1\0\0\0\2\0\0\0", 8)), "differs between"},
      {"llama.attention.head_count_kv", string_value("2"), "is not an unsigned integer"},
      {"llama.block_count", u32_value(0), "number of layers 0"},
      {"llama.block_count", u32_value(1 << 20), "number of layers 1048576"},
      {"llama.context_length", u32_value(0), "context length 0"},
      {"llama.attention.layer_norm_rms_epsilon", f32_value(0), "epsilon must be positive"},
      {"llama.vocab_size", u32_value(0), "vocabulary size 0"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.key));
    GgufBytes file = valid_gguf();
    set(file, c.key, c.value);
    const auto config = read(file);
    REQUIRE_FALSE(config);
    CAPTURE(config.error().message);
    CHECK(config.error().message.find(c.reason) != std::string::npos);
  }
  GgufBytes partial = valid_gguf();
  set(partial, "llama.attention.key_length", u32_value(32));
  set(partial, "llama.rope.dimension_count", u32_value(16));
  CHECK(read(partial).error().message.find("rope on 16 of 32 dimensions") != std::string::npos);
  GgufBytes factors = valid_gguf();
  factors.tensors.push_back({"rope_freqs.weight", {7}, 0, 64 * 100 * 2});
  factors.data_bytes += 28;
  CHECK(read(factors).error().message.find("rope_freqs.weight has 7 values") != std::string::npos);
}
