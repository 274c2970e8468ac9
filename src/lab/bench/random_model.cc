#include "lab/bench/random_model.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "compute/model/gguf_bytes.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/float16.h"

namespace tandem::bench {
namespace {

using tensor::DType;

constexpr std::string_view kShapeNames[] = {"llama-1b", "smol", "qwen-0.5b"};
constexpr std::string_view kTypeNames[] = {"q8_0", "q4_0", "q4_1", "bf16"};

struct Shape {
  std::string architecture;
  uint32_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab, max_position;
  float rope_base;
  bool has_bias;
};

// From the models' config.json. All three tie their embeddings.
Shape shape_of(std::string_view name) {
  if (name == "llama-1b") return {"llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 500000, false};
  if (name == "smol") return {"llama", 576, 30, 9, 3, 64, 1536, 49152, 8192, 100000, false};
  return {"qwen2", 896, 24, 14, 2, 64, 4864, 151936, 32768, 1000000, true};
}

// GGUF's number of a type, and what of it the generator needs.
struct Type {
  DType dtype;
  uint32_t gguf_type;
};

Type type_of(std::string_view name) {
  if (name == "q8_0") return {DType::kQ8_0, 8};
  if (name == "q4_0") return {DType::kQ4_0, 2};
  if (name == "q4_1") return {DType::kQ4_1, 3};
  return {DType::kBF16, 30};
}
constexpr Type kF32{DType::kF32, 0};

// xorshift64*, eight bytes at a time.
class RandomBytes {
 public:
  explicit RandomBytes(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  float next_unit() { return static_cast<float>(next() >> 40) * 0x1p-24f; }  // in [0, 1)

 private:
  uint64_t state_;
};

// A value around `middle`, from 3/4 to 5/4 of it.
uint16_t scale_near(float middle, RandomBytes& random) {
  return tensor::f16_from_f32(middle * (0.75f + 0.5f * random.next_unit()));
}

// Random levels under scales that give a deviation of 0.03: uniform levels have one of 74 (8 bits) and 4.6 (4 bits).
void fill_blocks(DType dtype, std::span<uint8_t> bytes, RandomBytes& random) {
  const size_t block = tensor::block_bytes(dtype);
  const size_t header = dtype == DType::kQ4_1 ? 4 : 2;
  const float middle = dtype == DType::kQ8_0 ? 0.03f / 74 : 0.03f / 4.6f;
  for (size_t begin = 0; begin < bytes.size(); begin += block) {
    uint8_t* at = bytes.data() + begin;
    const uint16_t scale = scale_near(middle, random);
    memcpy(at, &scale, sizeof scale);
    if (dtype == DType::kQ4_1) {
      const uint16_t min = tensor::f16_from_f32(-7.5f * tensor::f32_from_f16(scale));
      memcpy(at + 2, &min, sizeof min);
    }
    for (size_t i = header; i < block; i += sizeof(uint64_t)) {
      const uint64_t levels = random.next();
      memcpy(at + i, &levels, sizeof levels);
    }
  }
}

// Sign and fraction are random, the exponent is one of the four up to 2^-5: a deviation of 0.028.
void fill_bf16(std::span<uint8_t> bytes, RandomBytes& random) {
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t bits = random.next();
    const uint64_t exponents = 0x3D003D003D003D00u - ((bits >> 8 & 0x0003000300030003u) << 7);
    const uint64_t values = (bits & 0x807F807F807F807Fu) | exponents;
    memcpy(bytes.data() + i, &values, sizeof values);
  }
}

// Norms lie around 1, biases around 0.
void fill_f32(float middle, std::span<uint8_t> bytes, RandomBytes& random) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    const float value = middle + 0.2f * (random.next_unit() - 0.5f);
    memcpy(bytes.data() + i, &value, sizeof value);
  }
}

struct Tensor {
  std::string name;
  Type type;
  std::vector<uint64_t> dims;  // GGUF's order: the contiguous one first
  uint64_t offset = 0, size_bytes = 0;
};

std::vector<Tensor> tensors_of(const Shape& shape, Type type) {
  const uint64_t hidden = shape.hidden, ffn = shape.ffn;
  const uint64_t q = uint64_t{shape.heads} * shape.head_dim, kv = uint64_t{shape.kv_heads} * shape.head_dim;
  std::vector<Tensor> tensors = {{"token_embd.weight", type, {hidden, shape.vocab}},
                                 {"output_norm.weight", kF32, {hidden}}};
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const auto add = [&](const char* name, Type of, std::vector<uint64_t> dims) {
      tensors.push_back({prefix + name, of, std::move(dims)});
    };
    add("attn_norm.weight", kF32, {hidden});
    add("attn_q.weight", type, {hidden, q});
    add("attn_k.weight", type, {hidden, kv});
    add("attn_v.weight", type, {hidden, kv});
    if (shape.has_bias) {
      add("attn_q.bias", kF32, {q});
      add("attn_k.bias", kF32, {kv});
      add("attn_v.bias", kF32, {kv});
    }
    add("attn_output.weight", type, {q, hidden});
    add("ffn_norm.weight", kF32, {hidden});
    add("ffn_gate.weight", type, {hidden, ffn});
    add("ffn_up.weight", type, {hidden, ffn});
    add("ffn_down.weight", type, {ffn, hidden});
  }
  return tensors;
}

std::string header_of(std::string_view name, const Shape& shape, const std::vector<Tensor>& tensors) {
  model::GgufBytes header;
  const auto add = [&](const std::string& key, std::string value) { header.keys.emplace_back(key, std::move(value)); };
  add("general.architecture", model::string_value(shape.architecture));
  add("general.name", model::string_value("random " + std::string(name)));
  const std::string prefix = shape.architecture + ".";
  add(prefix + "block_count", model::u32_value(shape.layers));
  add(prefix + "context_length", model::u32_value(shape.max_position));
  add(prefix + "embedding_length", model::u32_value(shape.hidden));
  add(prefix + "feed_forward_length", model::u32_value(shape.ffn));
  add(prefix + "attention.head_count", model::u32_value(shape.heads));
  add(prefix + "attention.head_count_kv", model::u32_value(shape.kv_heads));
  add(prefix + "attention.layer_norm_rms_epsilon", model::f32_value(1e-5f));
  add(prefix + "rope.dimension_count", model::u32_value(shape.head_dim));
  add(prefix + "rope.freq_base", model::f32_value(shape.rope_base));
  add(prefix + "vocab_size", model::u32_value(shape.vocab));
  add("tokenizer.ggml.model", model::string_value("no_vocab"));
  for (const Tensor& tensor : tensors) {
    header.tensors.push_back({tensor.name, tensor.dims, tensor.type.gguf_type, tensor.offset});
  }
  return header.encode();
}

uint64_t align_up(uint64_t size) { return (size + 31) / 32 * 32; }

}  // namespace

std::span<const std::string_view> random_shapes() { return kShapeNames; }
std::span<const std::string_view> random_types() { return kTypeNames; }

Result<std::vector<uint8_t>> random_gguf(std::string_view shape_name, std::string_view type_name) {
  if (std::ranges::count(kShapeNames, shape_name) == 0 || std::ranges::count(kTypeNames, type_name) == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "no random model " + std::string(shape_name) + " of type " + std::string(type_name)};
  }
  const Shape shape = shape_of(shape_name);
  std::vector<Tensor> tensors = tensors_of(shape, type_of(type_name));
  uint64_t end = 0;
  for (Tensor& tensor : tensors) {
    uint64_t num_elements = 1;
    for (const uint64_t dim : tensor.dims) num_elements *= dim;
    tensor.offset = end;
    tensor.size_bytes = tensor::row_bytes(tensor.type.dtype, num_elements);
    end = align_up(end + tensor.size_bytes);
  }
  const std::string header = header_of(shape_name, shape, tensors);
  const uint64_t data_begin = align_up(header.size());
  std::vector<uint8_t> file(data_begin + end);
  std::ranges::copy(header, file.begin());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    const std::span<uint8_t> bytes = std::span(file).subspan(data_begin + tensor.offset, tensor.size_bytes);
    RandomBytes random(i + 1);
    if (tensor.type.dtype == DType::kBF16) fill_bf16(bytes, random);
    else if (tensor.type.dtype == DType::kF32) fill_f32(tensor.name.ends_with(".bias") ? 0.0f : 1.0f, bytes, random);
    else fill_blocks(tensor.type.dtype, bytes, random);
  }
  return file;
}

}  // namespace tandem::bench
