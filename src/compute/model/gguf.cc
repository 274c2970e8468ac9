#include "compute/model/gguf.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_set>

#include "compute/model/byte_cursor.h"
#include "compute/model/fault_text.h"

namespace tandem::model {
namespace {

using tensor::DType;

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;

// What a tensor's header says, before the data section's place is known.
struct TensorHeader {
  std::string name;
  DType dtype;
  std::vector<uint64_t> shape;
  uint64_t offset;
  uint64_t size_bytes;
};

std::optional<DType> dtype_of(uint32_t ggml_type) {
  switch (ggml_type) {
    case 0: return DType::kF32;
    case 1: return DType::kF16;
    case 2: return DType::kQ4_0;
    case 3: return DType::kQ4_1;
    case 6: return DType::kQ5_0;
    case 7: return DType::kQ5_1;
    case 8: return DType::kQ8_0;
    case 10: return DType::kQ2_K;
    case 11: return DType::kQ3_K;
    case 12: return DType::kQ4_K;
    case 13: return DType::kQ5_K;
    case 14: return DType::kQ6_K;
    case 20: return DType::kIQ4_NL;
    case 23: return DType::kIQ4_XS;
    case 30: return DType::kBF16;
    default: return std::nullopt;
  }
}

// Names of types that exist but that we do not read, so that the message says more than a number.
const char* unread_type_name(uint32_t ggml_type) {
  switch (ggml_type) {
    case 9: return "Q8_1";
    case 15: return "Q8_K";
    case 16: return "IQ2_XXS";
    case 17: return "IQ2_XS";
    case 18: return "IQ3_XXS";
    case 19: return "IQ1_S";
    case 21: return "IQ3_S";
    case 22: return "IQ2_S";
    case 24: return "I8";
    case 25: return "I16";
    case 26: return "I32";
    case 27: return "I64";
    case 28: return "F64";
    case 29: return "IQ1_M";
    case 34: return "TQ1_0";
    case 35: return "TQ2_0";
    case 39: return "MXFP4";
    case 40: return "NVFP4";
    default: return "unknown";
  }
}

class Parser {
 public:
  Parser(std::span<const uint8_t> bytes, const std::string& file) : bytes_(bytes), file_(file), cursor_(bytes) {}

  Result<GgufContents> parse() {
    GgufContents contents{Metadata(file_), {}};
    TRY(read_counts());
    for (uint64_t i = 0; i < num_keys_; ++i) TRY(read_key(i, &contents.metadata));
    TRY_ASSIGN(const uint64_t alignment, alignment_of(contents.metadata));
    std::vector<TensorHeader> headers;
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      TRY_ASSIGN(TensorHeader header, read_tensor(i));
      if (header.offset % alignment != 0) {
        return tensor_fault(file_, header.name, "its offset " + std::to_string(header.offset) +
                                                    " is no multiple of the alignment " + std::to_string(alignment));
      }
      headers.push_back(std::move(header));
    }
    TRY_ASSIGN(contents.tensors, place(std::move(headers), alignment));
    return contents;
  }

 private:
  Error truncated(const std::string& where) const {
    const std::string place = std::to_string(cursor_.offset()) + " of " + std::to_string(bytes_.size());
    return file_fault(file_, "the file ends inside " + where + " (at byte " + place + ")");
  }

  Status read_counts() {
    uint32_t magic = 0;
    uint32_t version = 0;
    if (!cursor_.read(&magic)) return truncated("the header");
    if (magic != kMagic) return file_fault(file_, "not a GGUF file");
    if (!cursor_.read(&version)) return truncated("the header");
    if ((version & 0xFFFF) == 0 && version != 0) return file_fault(file_, "a big-endian GGUF file is not supported");
    if (version != 2 && version != 3) {
      return file_fault(file_, "GGUF version " + std::to_string(version) + " is not supported (2 and 3 are)");
    }
    if (!cursor_.read(&num_tensors_) || !cursor_.read(&num_keys_)) return truncated("the header");
    return Done{};
  }

  Status read_key(uint64_t index, Metadata* metadata) {
    std::string_view key;
    if (!cursor_.read_string(&key)) {
      return truncated("metadata key " + std::to_string(index) + " of " + std::to_string(num_keys_));
    }
    if (key.empty()) return file_fault(file_, "metadata key " + std::to_string(index) + " is empty");
    TRY_ASSIGN(MetadataValue value, read_value(key));
    if (!metadata->add(std::string(key), value)) {
      return file_fault(file_, "metadata key " + quote_name(key) + " is there twice");
    }
    return Done{};
  }

  Result<MetadataValue> read_value(std::string_view key) {
    const std::string where = "metadata key " + quote_name(key);
    uint32_t type = 0;
    if (!cursor_.read(&type)) return truncated(where);
    MetadataValue value{static_cast<ValueType>(type)};
    if (value.type == ValueType::kString) {
      std::string_view text;
      if (!cursor_.read_string(&text)) return truncated(where);
      value.bytes = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
      return value;
    }
    if (value.type == ValueType::kArray) {
      TRY(read_array(where, &value));
      return value;
    }
    const size_t size = scalar_bytes(value.type);
    if (size == 0) return file_fault(file_, where + ": unknown value type " + std::to_string(type));
    if (!cursor_.take(size, &value.bytes)) return truncated(where);
    return value;
  }

  Status read_array(const std::string& where, MetadataValue* value) {
    uint32_t type = 0;
    if (!cursor_.read(&type) || !cursor_.read(&value->count)) return truncated(where);
    value->element_type = static_cast<ValueType>(type);
    const uint64_t start = cursor_.offset();
    if (value->element_type == ValueType::kArray) {
      return file_fault(file_, where + ": an array of arrays is not supported");
    }
    if (value->element_type == ValueType::kString) {
      std::string_view text;
      for (uint64_t i = 0; i < value->count; ++i) {
        if (!cursor_.read_string(&text)) return truncated(where + ", element " + std::to_string(i));
      }
      value->bytes = bytes_.subspan(start, cursor_.offset() - start);
      return Done{};
    }
    const size_t size = scalar_bytes(value->element_type);
    if (size == 0) return file_fault(file_, where + ": unknown element type " + std::to_string(type));
    if (value->count > cursor_.remaining() / size) {
      return file_fault(file_, where + ": " + std::to_string(value->count) + " elements do not fit into the file");
    }
    return cursor_.take(value->count * size, &value->bytes) ? Status(Done{}) : Status(truncated(where));
  }

  Result<uint64_t> alignment_of(const Metadata& metadata) const {
    if (!metadata.has("general.alignment")) return kDefaultAlignment;
    TRY_ASSIGN(const uint32_t alignment, metadata.get_u32("general.alignment"));
    if (alignment < 8 || !std::has_single_bit(alignment)) {
      return file_fault(file_, "general.alignment " + std::to_string(alignment) + " is not a power of two from 8 up");
    }
    return uint64_t{alignment};
  }

  Result<TensorHeader> read_tensor(uint64_t index) {
    const std::string where = "the header of tensor " + std::to_string(index) + " of " + std::to_string(num_tensors_);
    std::string_view name;
    uint32_t num_dims = 0;
    if (!cursor_.read_string(&name)) return truncated(where);
    if (name.empty()) return file_fault(file_, "tensor " + std::to_string(index) + " has no name");
    if (!names_.emplace(name).second) return tensor_fault(file_, name, "is there twice");
    if (!cursor_.read(&num_dims)) return truncated(where);
    if (num_dims < 1 || num_dims > kMaxDims) {
      return tensor_fault(file_, name, std::to_string(num_dims) + " dimensions (1 to 4 are possible)");
    }
    TensorHeader header{std::string(name), DType::kF32, std::vector<uint64_t>(num_dims), 0, 0};
    for (uint32_t d = 0; d < num_dims; ++d) {
      if (!cursor_.read(&header.shape[num_dims - 1 - d])) return truncated(where);
    }
    uint32_t type = 0;
    if (!cursor_.read(&type) || !cursor_.read(&header.offset)) return truncated(where);
    const auto dtype = dtype_of(type);
    if (!dtype) {
      const std::string which = std::string(unread_type_name(type)) + " (" + std::to_string(type) + ")";
      return tensor_fault(file_, name, "type " + which + " is not supported");
    }
    header.dtype = *dtype;
    TRY_ASSIGN(header.size_bytes, tensor_bytes(header));
    return header;
  }

  Result<uint64_t> tensor_bytes(const TensorHeader& header) const {
    const std::string shape = shape_text(header.shape);
    uint64_t elements = 1;
    for (const uint64_t dimension : header.shape) {
      if (dimension == 0) return tensor_fault(file_, header.name, "shape " + shape + " has a zero dimension");
      // 2^60 elements of at most 4 bytes stay below 2^63; no such file exists, and no later product can wrap.
      if (dimension > (uint64_t{1} << 60) / elements) {
        return tensor_fault(file_, header.name, "shape " + shape + " is too large");
      }
      elements *= dimension;
    }
    const uint32_t block = tensor::block_elements(header.dtype);
    if (header.shape.back() % block != 0) {
      const std::string needed = std::to_string(block) + ", as type " + tensor::dtype_name(header.dtype) + " needs";
      return tensor_fault(file_, header.name, "shape " + shape + ": rows are no multiple of " + needed);
    }
    return tensor::row_bytes(header.dtype, elements);
  }

  Result<std::vector<TensorEntry>> place(std::vector<TensorHeader> headers, uint64_t alignment) const {
    const uint64_t padding = (alignment - cursor_.offset() % alignment) % alignment;
    const uint64_t start = std::min<uint64_t>(bytes_.size(), cursor_.offset() + padding);
    const std::span<const uint8_t> section = bytes_.subspan(start);
    for (const TensorHeader& header : headers) {
      if (header.offset > section.size() || header.size_bytes > section.size() - header.offset) {
        return tensor_fault(file_, header.name,
                            "needs " + std::to_string(header.size_bytes) + " bytes at offset " +
                                std::to_string(header.offset) + ", but the file has " + std::to_string(section.size()) +
                                " bytes of tensors: truncated or corrupt");
      }
    }
    TRY(check_overlap(headers));
    std::vector<TensorEntry> tensors;
    tensors.reserve(headers.size());
    for (TensorHeader& header : headers) {
      tensors.push_back({std::move(header.name), header.dtype, std::move(header.shape),
                         section.subspan(header.offset, header.size_bytes), file_});
    }
    return tensors;
  }

  Status check_overlap(const std::vector<TensorHeader>& headers) const {
    std::vector<const TensorHeader*> sorted;
    for (const TensorHeader& header : headers) sorted.push_back(&header);
    const auto is_before = [](const TensorHeader* a, const TensorHeader* b) { return a->offset < b->offset; };
    std::stable_sort(sorted.begin(), sorted.end(), is_before);
    for (size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i]->offset - sorted[i - 1]->offset < sorted[i - 1]->size_bytes) {
        return tensor_fault(file_, sorted[i]->name, "overlaps tensor " + quote_name(sorted[i - 1]->name));
      }
    }
    return Done{};
  }

  std::span<const uint8_t> bytes_;
  const std::string& file_;
  ByteCursor cursor_;
  uint64_t num_tensors_ = 0;
  uint64_t num_keys_ = 0;
  std::unordered_set<std::string> names_;
};

}  // namespace

Result<GgufContents> parse_gguf(std::span<const uint8_t> bytes, const std::string& file) {
  return Parser(bytes, file).parse();
}

}  // namespace tandem::model
