// Any bytes as a safetensors file; those that start with '{' as config.json.

#include <cstddef>
#include <cstdint>
#include <string>

#include "compute/model/model_config.h"
#include "compute/model/rope_table.h"
#include "compute/model/safetensors.h"

using namespace tandem;
using namespace tandem::model;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size > 0 && bytes[0] == '{') {
    const std::string text(reinterpret_cast<const char*>(bytes), size);
    const auto config = parse_hf_config(text, text, "config.json");
    if (config) (void)rope_cos_sin(config.value().rope, config.value().head_dim, 2);
    return 0;
  }
  const auto tensors = parse_safetensors({bytes, size}, "fuzz.safetensors");
  if (!tensors) return 0;
  volatile uint8_t touched = 0;
  for (const SafetensorsTensor& tensor : tensors.value()) {
    if (!tensor.bytes.empty()) touched = tensor.bytes.back();
  }
  (void)touched;
  (void)parse_safetensors_weights({bytes, size}, "fuzz.safetensors");
  return 0;
}
