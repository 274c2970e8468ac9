// The files of tests/fixtures, made by other programs, through the whole of this folder: every tiny model as a
// directory and as GGUF, the quantised ones, the quant rows.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "compute/model/gguf.h"
#include "compute/model/model_config.h"
#include "compute/model/rope_table.h"
#include "compute/model/safetensors.h"
#include "compute/model/weight_file.h"
#include "compute/model/weight_names.h"
#include "compute/tensor/dequantize.h"

using namespace tandem;
using namespace tandem::model;

namespace {

const std::string kTiny = TANDEM_FIXTURES "/tiny/";

struct Loaded {
  WeightFiles files;
  ModelConfig config;
  ModelTensors tensors;
};

Loaded load(const std::string& path) {
  CAPTURE(path);
  auto files = WeightFiles::open(path);
  REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
  auto config = read_config(*files);
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  auto tensors = collect(*files, *config);
  REQUIRE_MESSAGE(tensors, (tensors ? "" : tensors.error().message));
  return {std::move(files).value(), std::move(config).value(), std::move(tensors).value()};
}

std::vector<float> values(const TensorEntry& entry) {
  std::vector<float> out(entry.num_elements());
  const uint64_t row = entry.shape.back();
  const uint64_t stride = tensor::row_bytes(entry.dtype, row);
  for (uint64_t r = 0; r < entry.num_rows(); ++r) {
    tensor::dequantize_row(entry.dtype, entry.bytes.data() + r * stride, row, out.data() + r * row);
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

// The rows of GGUF's llama files, for adjacent-pair rope: in a head, row 2i + h is Hugging Face's i + h * half.
std::vector<float> permuted(const std::vector<float>& hf, uint64_t num_heads, uint64_t columns) {
  const uint64_t head_dim = hf.size() / columns / num_heads;
  std::vector<float> out(hf.size());
  for (uint64_t head = 0; head < num_heads; ++head) {
    for (uint64_t r = 0; r < head_dim; ++r) {
      const uint64_t from = head * head_dim + r / 2 + r % 2 * (head_dim / 2);
      memcpy(&out[(head * head_dim + r) * columns], &hf[from * columns], columns * 4);
    }
  }
  return out;
}

void check_equal_weights(const Loaded& directory, const Loaded& gguf) {
  const uint64_t hidden = directory.config.hidden;
  const bool is_permuted = gguf.config.rope.is_interleaved;
  const auto same = [](const TensorEntry* a, const TensorEntry* b) {
    if (a == nullptr || b == nullptr) return a == b;
    return a->shape == b->shape && same_bits(values(*a), values(*b));
  };
  const auto same_rotated = [&](const TensorEntry* a, const TensorEntry* b, uint64_t heads) {
    return is_permuted ? same_bits(permuted(values(*a), heads, hidden), values(*b)) : same(a, b);
  };
  CHECK(same(directory.tensors.embedding, gguf.tensors.embedding));
  CHECK(same(directory.tensors.final_norm, gguf.tensors.final_norm));
  CHECK(same(directory.tensors.lm_head, gguf.tensors.lm_head));
  REQUIRE(directory.tensors.layers.size() == gguf.tensors.layers.size());
  for (size_t i = 0; i < gguf.tensors.layers.size(); ++i) {
    const LayerTensors& a = directory.tensors.layers[i];
    const LayerTensors& b = gguf.tensors.layers[i];
    CHECK(same_rotated(a.q, b.q, directory.config.num_heads));
    CHECK(same_rotated(a.k, b.k, directory.config.num_kv_heads));
    for (const auto member : {&LayerTensors::attn_norm, &LayerTensors::v, &LayerTensors::q_bias, &LayerTensors::k_bias,
                              &LayerTensors::v_bias, &LayerTensors::q_norm, &LayerTensors::k_norm, &LayerTensors::o,
                              &LayerTensors::ffn_norm, &LayerTensors::gate, &LayerTensors::up, &LayerTensors::down}) {
      CHECK(same(a.*member, b.*member));
    }
  }
}

void check_equal_configs(const ModelConfig& a, const ModelConfig& b) {
  CHECK(a.num_layers == b.num_layers);
  CHECK(a.hidden == b.hidden);
  CHECK(a.num_heads == b.num_heads);
  CHECK(a.num_kv_heads == b.num_kv_heads);
  CHECK(a.head_dim == b.head_dim);
  CHECK(a.ffn == b.ffn);
  CHECK(a.vocab == b.vocab);
  CHECK(a.norm_eps == b.norm_eps);
  CHECK(a.sliding_window == b.sliding_window);
  CHECK(a.tied_embeddings == b.tied_embeddings);
  CHECK(a.qkv_bias == b.qkv_bias);
  CHECK(a.qk_norm == b.qk_norm);
  CHECK(a.max_position == b.max_position);
  CHECK(a.bos_id == b.bos_id);
  const std::vector<float> table_a = rope_cos_sin(a.rope, a.head_dim, 256);
  const std::vector<float> table_b = rope_cos_sin(b.rope, b.head_dim, 256);
  REQUIRE(table_a.size() == table_b.size());
  // GGUF's llama3 factors are rounded to f32, which at position 255 turns an angle by up to 255 * 2^-24.
  double largest = 0;
  for (size_t i = 0; i < table_a.size(); ++i) largest = std::max(largest, std::abs(double{table_a[i]} - table_b[i]));
  CHECK(largest < 2e-5);
}

}  // namespace

TEST_CASE("fixtures: a tiny model is the same as directory and as GGUF") {
  const std::pair<std::string, std::string> models[] = {
      {"llama-mha", "F32"},   {"llama-mha", "F16"},       {"llama-mha", "BF16"},        {"llama-gqa", "F16"},
      {"llama-mqa", "F16"},   {"llama-tied", "F16"},      {"llama-rope-llama3", "F16"}, {"llama-rope-linear", "F16"},
      {"qwen2", "F16"},       {"llama-rope-yarn", "F16"}, {"qwen3", "F16"},             {"mistral-swa", "F16"},
  };
  for (const auto& [name, type] : models) {
    CAPTURE(name);
    CAPTURE(type);
    const Loaded directory = load(kTiny + name);
    const Loaded gguf = load(kTiny + name + "." + type + ".gguf");
    check_equal_configs(directory.config, gguf.config);
    check_equal_weights(directory, gguf);
    CHECK(directory.config.eos_ids == std::vector<int32_t>{500, 497});  // config.json and generation_config.json
    CHECK(gguf.config.eos_ids == std::vector<int32_t>{500});
    // The directories hold a second safetensors file, which is no part of the model.
    REQUIRE(directory.files.warnings().size() == 1);
    CHECK(directory.files.warnings()[0].find("reference.safetensors") != std::string::npos);
    CHECK(directory.files.find("n5.logits") == nullptr);
    CHECK(gguf.files.warnings().empty());
    CHECK(directory.files.content_hash() != gguf.files.content_hash());
  }
}

TEST_CASE("fixtures: what the models are made for is read") {
  CHECK(load(kTiny + "llama-gqa").files.files().size() == 3);
  CHECK(load(kTiny + "llama-mqa").config.norm_eps == 0.05f);
  CHECK(load(kTiny + "llama-tied").tensors.lm_head == nullptr);
  CHECK(load(kTiny + "llama-mha").tensors.lm_head != nullptr);
  CHECK(load(kTiny + "mistral-swa").config.sliding_window == 64);
  CHECK(load(kTiny + "mistral-swa.F16.gguf").config.sliding_window == 64);
  CHECK(load(kTiny + "qwen2").config.qkv_bias);
  CHECK(load(kTiny + "qwen3").config.qk_norm);
  CHECK(load(kTiny + "qwen3").config.head_dim == 64);
  CHECK(load(kTiny + "llama-rope-linear").config.rope.scaling == RopeScaling::kLinear);
  CHECK(load(kTiny + "llama-rope-llama3").config.rope.scaling == RopeScaling::kLlama3);
  CHECK(load(kTiny + "llama-rope-llama3.F16.gguf").config.rope.freq_factors.size() == 16);
  const Loaded yarn = load(kTiny + "llama-rope-yarn.F16.gguf");
  CHECK(yarn.config.rope.scaling == RopeScaling::kYarn);
  CHECK(yarn.config.rope.attention_factor == doctest::Approx(1.1386294361119891));  // 0.1 * ln 4 + 1
}

TEST_CASE("fixtures: quantised models open and hold what their names say") {
  const std::pair<std::string, std::string> models[] = {
      {"Q4_0", "Q4_0"},   {"Q8_0", "Q8_0"}, {"Q3_K_M", "Q3_K"}, {"Q4_K_M", "Q4_K"},
      {"Q5_K_M", "Q5_K"}, {"Q6_K", "Q6_K"}, {"IQ4_XS", "IQ4_XS"},
  };
  const Loaded exact = load(kTiny + "llama-gqa.F16.gguf");
  for (const auto& [file, type] : models) {
    CAPTURE(file);
    const Loaded loaded = load(kTiny + "quantised/llama-gqa." + file + ".gguf");
    std::map<std::string, int> types;
    for (const TensorEntry& entry : loaded.files.tensors()) ++types[tensor::dtype_name(entry.dtype)];
    CHECK(types[type] > 0);
    check_equal_configs(exact.config, loaded.config);
    CHECK(same_bits(values(*exact.tensors.final_norm), values(*loaded.tensors.final_norm)));
  }
}

TEST_CASE("fixtures: quants.gguf and quants.safetensors hold the same rows, and MXFP4 is refused by name") {
  const auto file = MappedFile::open(TANDEM_FIXTURES "/quants/quants.gguf");
  REQUIRE(file);
  const auto refused = WeightFiles::open(TANDEM_FIXTURES "/quants/quants.gguf");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("tensor \"MXFP4\": type MXFP4 (39) is not supported") != std::string::npos);

  // With that one tensor's header turned into 8 x 16 F32 values, the rest is read.
  std::vector<uint8_t> bytes(file.value().bytes().begin(), file.value().bytes().end());
  const std::string name = "MXFP4";
  auto header = std::search(bytes.begin(), bytes.end(), name.begin(), name.end()) + 5 + 4;
  const uint64_t columns = 8;
  const uint32_t f32 = 0;
  memcpy(&*header, &columns, 8);
  memcpy(&*header + 16, &f32, 4);
  const auto contents = parse_gguf(bytes, "quants.gguf");
  REQUIRE_MESSAGE(contents, (contents ? "" : contents.error().message));

  const auto reference_file = MappedFile::open(TANDEM_FIXTURES "/quants/quants.safetensors");
  REQUIRE(reference_file);
  const auto reference = parse_safetensors(reference_file.value().bytes(), "quants.safetensors");
  REQUIRE(reference);
  std::map<std::string, const SafetensorsTensor*> expected;
  for (const SafetensorsTensor& tensor : reference.value()) expected[tensor.name] = &tensor;
  int compared = 0;
  for (const TensorEntry& entry : contents.value().tensors) {
    if (entry.name == name) continue;
    CAPTURE(entry.name);
    CHECK(entry.name == tensor::dtype_name(entry.dtype));
    CHECK(entry.shape == std::vector<uint64_t>{16, 512});
    const SafetensorsTensor* raw = expected.at(entry.name + ".raw");
    CHECK(std::equal(entry.bytes.begin(), entry.bytes.end(), raw->bytes.begin(), raw->bytes.end()));
    const std::vector<float> dequantised = values(entry);
    const auto want = expected.at(entry.name + ".f32")->bytes;
    REQUIRE(want.size() == dequantised.size() * 4);
    CHECK(memcmp(want.data(), dequantised.data(), want.size()) == 0);
    ++compared;
  }
  CHECK(compared == 14);
}

// A model whose biases were left out would load and answer wrongly.
TEST_CASE("fixtures: biases of an architecture that has none are refused by name") {
  const auto file = MappedFile::open(kTiny + "qwen2.F16.gguf");
  REQUIRE(file);
  for (const std::string other : {"llama", "qwen3"}) {
    std::vector<uint8_t> bytes(file.value().bytes().begin(), file.value().bytes().end());
    const std::string name = "qwen2";
    for (auto at = bytes.begin(); (at = std::search(at, bytes.end(), name.begin(), name.end())) != bytes.end();) {
      at = std::copy(other.begin(), other.end(), at);
    }
    const auto files = WeightFiles::from_gguf_bytes(bytes, "renamed.gguf");
    REQUIRE(files);
    const auto config = read_config(files.value());
    REQUIRE(config);
    const auto tensors = collect(files.value(), config.value());
    REQUIRE(!tensors);
    if (other == "llama") CHECK(tensors.error().message.find("attn_q.bias") != std::string::npos);
  }
}

TEST_CASE("fixtures: the demo model") {
  const char* path = std::getenv("TANDEM_DEMO_MODEL");
  if (path == nullptr || *path == '\0') {
    std::printf("SKIP demo_model: TANDEM_DEMO_MODEL is not set\n");
    return;
  }
  const Loaded loaded = load(path);
  CHECK(loaded.config.architecture == "llama");
  CHECK(loaded.config.num_layers == 30);
  CHECK(loaded.config.num_heads == 9);
  CHECK(loaded.config.num_kv_heads == 3);
  CHECK(loaded.config.head_dim == 64);
  CHECK(loaded.config.vocab == 49152);
  CHECK(loaded.config.rope.base == 100000.0);
  CHECK(loaded.config.rope.is_interleaved);
  CHECK(loaded.config.tied_embeddings);
  CHECK(loaded.config.eos_ids == std::vector<int32_t>{2});
  CHECK(loaded.config.bos_id == 1);
  CHECK(loaded.files.tensors().size() == 272);
  CHECK(loaded.tensors.embedding->dtype == tensor::DType::kQ8_0);
  CHECK(loaded.tensors.layers[29].down->dtype == tensor::DType::kQ4_1);
  const auto tokens = loaded.files.metadata().get_strings("tokenizer.ggml.tokens");
  REQUIRE(tokens);
  CHECK(tokens.value().size() == 49152);
  CHECK(tokens.value()[2] == "<|im_end|>");
  CHECK(loaded.files.content_hash().size() == 32);
}

TEST_CASE("fixtures: the fuzz seeds are whole models, so that fuzzing starts behind the first checks") {
  const std::string corpus = TANDEM_SOURCE_DIR "/tests/fuzz_corpus/gguf/";
  for (const char* name : {"llama.gguf", "llama_yarn.gguf", "qwen2.gguf", "qwen3.gguf"}) load(corpus + name);
  const auto types = WeightFiles::open(corpus + "types.gguf");
  REQUIRE_MESSAGE(types, (types ? "" : types.error().message));
  CHECK(types.value().tensors().size() == tensor::kNumDTypes);
}
