// Any bytes as a GGUF file: parse, read all metadata, configure and collect a model, dequantise a row of each tensor.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compute/model/model_config.h"
#include "compute/model/rope_table.h"
#include "compute/model/weight_file.h"
#include "compute/model/weight_names.h"
#include "compute/tensor/dequantize.h"

using namespace tandem;
using namespace tandem::model;

namespace {

void read_all(const Metadata& metadata) {
  for (const std::string& key : metadata.keys()) {
    (void)metadata.get_u32(key);
    (void)metadata.get_i32(key);
    (void)metadata.get_f32(key);
    (void)metadata.get_bool(key);
    (void)metadata.get_string(key);
    (void)metadata.get_strings(key);
    (void)metadata.get_floats(key);
    (void)metadata.get_ints(key);
  }
}

void dequantise_last_row(const TensorEntry& entry) {
  std::vector<float> out(entry.shape.back());  // no longer than 256 weights a byte of input
  const uint64_t stride = tensor::row_bytes(entry.dtype, entry.shape.back());
  tensor::dequantize_row(entry.dtype, entry.bytes.data() + entry.bytes.size() - stride, entry.shape.back(), out.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto files = WeightFiles::from_gguf_bytes({bytes, size}, "fuzz.gguf");
  if (!files) return 0;
  read_all(files.value().metadata());
  for (const TensorEntry& entry : files.value().tensors()) dequantise_last_row(entry);
  const auto config = read_config(files.value());
  if (!config) return 0;
  (void)rope_cos_sin(config.value().rope, config.value().head_dim, 2);
  (void)collect(files.value(), config.value());
  return 0;
}
