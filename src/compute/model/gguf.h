#pragma once
// The GGUF format, versions 2 and 3, from bytes in memory. Pure: no files, so that tests and fuzzing feed it anything.
// Source: the GGUF specification in the ggml repository (docs/gguf.md).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "compute/model/metadata.h"
#include "compute/model/tensor_entry.h"

namespace tandem::model {

struct GgufContents {
  Metadata metadata;
  std::vector<TensorEntry> tensors;  // in file order
};

// Both parts borrow from `bytes`. `file` names the source in messages and entries. Memory stays in proportion to the
// bytes, whatever counts the header claims.
Result<GgufContents> parse_gguf(std::span<const uint8_t> bytes, const std::string& file);

}  // namespace tandem::model
