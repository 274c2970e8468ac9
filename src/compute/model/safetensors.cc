#include "compute/model/safetensors.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "compute/model/byte_cursor.h"
#include "compute/model/fault_text.h"

namespace tandem::model {
namespace {

// The format's own limit; real headers stay below a few megabytes.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxJsonDepth = 8;

std::optional<uint64_t> element_bytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, uint64_t> kSizes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2},
      {"F16", 2},  {"BF16", 2}, {"U32", 4}, {"I32", 4},     {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8},
  };
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return std::nullopt;
}

struct Parser {
  std::span<const uint8_t> section;  // the tensors' bytes
  const std::string& file;

  Result<SafetensorsTensor> read_tensor(const std::string& name, const JsonValue& entry) const {
    const JsonValue* dtype = entry.find("dtype");
    const std::string* dtype_name = dtype == nullptr ? nullptr : dtype->if_string();
    if (dtype_name == nullptr) return tensor_fault(file, name, "has no dtype");
    const auto size = element_bytes(*dtype_name);
    if (!size) return tensor_fault(file, name, "type " + quote_name(*dtype_name) + " is not known");
    TRY_ASSIGN(std::vector<uint64_t> shape, read_integers(name, entry, "shape"));
    TRY_ASSIGN(const std::vector<uint64_t> offsets, read_integers(name, entry, "data_offsets"));
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      return tensor_fault(file, name, "data_offsets " + shape_text(offsets) + " are no range");
    }
    if (offsets[1] > section.size()) {
      return tensor_fault(file, name, "ends at byte " + std::to_string(offsets[1]) + ", but the file has " +
                                          std::to_string(section.size()) + " bytes of tensors: truncated or corrupt");
    }
    TRY_ASSIGN(const uint64_t elements, count_elements(name, shape));
    const uint64_t found = offsets[1] - offsets[0];
    if (elements * *size != found) {
      return tensor_fault(file, name, std::to_string(found) + " bytes do not fit shape " + shape_text(shape) +
                                          " of type " + *dtype_name);
    }
    return SafetensorsTensor{name, *dtype_name, std::move(shape), section.subspan(offsets[0], found)};
  }

  Result<uint64_t> count_elements(const std::string& name, const std::vector<uint64_t>& shape) const {
    uint64_t elements = 1;
    for (const uint64_t dimension : shape) {
      if (dimension == 0) return tensor_fault(file, name, "shape " + shape_text(shape) + " has a zero dimension");
      // 2^60 elements of at most 8 bytes stay below 2^64.
      if (dimension > (uint64_t{1} << 60) / elements) {
        return tensor_fault(file, name, "shape " + shape_text(shape) + " is too large");
      }
      elements *= dimension;
    }
    return elements;
  }

  Result<std::vector<uint64_t>> read_integers(const std::string& name, const JsonValue& entry, const char* key) const {
    const JsonValue* value = entry.find(key);
    const JsonValue::Array* items = value == nullptr ? nullptr : value->if_array();
    if (items == nullptr) return tensor_fault(file, name, std::string("has no ") + key);
    std::vector<uint64_t> integers(items->size());
    for (size_t i = 0; i < items->size(); ++i) {
      if (!(*items)[i].as_uint64(integers[i])) {
        return tensor_fault(file, name, std::string(key) + " holds something else than unsigned integers");
      }
    }
    return integers;
  }

  // The format allows neither overlaps nor holes, so a shortened or joined file cannot pass.
  Status check_layout(const std::vector<SafetensorsTensor>& tensors) const {
    std::vector<const SafetensorsTensor*> sorted;
    for (const SafetensorsTensor& tensor : tensors) sorted.push_back(&tensor);
    const auto is_before = [](const auto* a, const auto* b) { return a->bytes.data() < b->bytes.data(); };
    std::stable_sort(sorted.begin(), sorted.end(), is_before);
    const uint8_t* expected = section.data();
    for (const SafetensorsTensor* tensor : sorted) {
      if (tensor->bytes.data() != expected) {
        const bool overlaps = tensor->bytes.data() < expected;
        return tensor_fault(file, tensor->name, overlaps ? "overlaps another tensor" : "follows a gap in the file");
      }
      expected += tensor->bytes.size();
    }
    const auto rest = static_cast<size_t>(section.data() + section.size() - expected);
    if (rest != 0) return file_fault(file, std::to_string(rest) + " bytes after the last tensor belong to none");
    return Done{};
  }
};

Status check_duplicates(const JsonValue::Object& members, const std::string& file) {
  std::vector<std::string_view> names;
  for (const auto& member : members) names.push_back(member.first);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return tensor_fault(file, *twice, "is there twice");
  return Done{};
}

}  // namespace

Result<std::vector<SafetensorsTensor>> parse_safetensors(std::span<const uint8_t> bytes, const std::string& file) {
  ByteCursor cursor(bytes);
  uint64_t header_bytes = 0;
  std::span<const uint8_t> header;
  if (!cursor.read(&header_bytes)) return file_fault(file, "too short for a safetensors file");
  if (header_bytes > kMaxHeaderBytes || !cursor.take(header_bytes, &header)) {
    return file_fault(file, "a header of " + std::to_string(header_bytes) + " bytes in a file of " +
                                std::to_string(bytes.size()) + ": truncated, or not a safetensors file");
  }
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  auto root = JsonValue::parse(text, kMaxJsonDepth);
  if (!root) return file_fault(file, "header: " + root.error().message);
  const JsonValue::Object* members = root->if_object();
  if (members == nullptr) return file_fault(file, "the header is no JSON object");
  TRY(check_duplicates(*members, file));

  const Parser parser{bytes.subspan(cursor.offset()), file};
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, entry] : *members) {
    if (name == "__metadata__") continue;
    if (name.empty()) return file_fault(file, "a tensor has no name");
    TRY_ASSIGN(SafetensorsTensor tensor, parser.read_tensor(name, entry));
    tensors.push_back(std::move(tensor));
  }
  TRY(parser.check_layout(tensors));
  return tensors;
}

Result<std::vector<TensorEntry>> parse_safetensors_weights(std::span<const uint8_t> bytes, const std::string& file) {
  TRY_ASSIGN(std::vector<SafetensorsTensor> tensors, parse_safetensors(bytes, file));
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  for (SafetensorsTensor& tensor : tensors) {
    tensor::DType dtype = tensor::DType::kF32;
    if (tensor.dtype == "F16") {
      dtype = tensor::DType::kF16;
    } else if (tensor.dtype == "BF16") {
      dtype = tensor::DType::kBF16;
    } else if (tensor.dtype != "F32") {
      return tensor_fault(file, tensor.name, "type " + tensor.dtype + " is not supported (F32, F16 and BF16 are)");
    }
    entries.push_back({std::move(tensor.name), dtype, std::move(tensor.shape), tensor.bytes, file});
  }
  return entries;
}

}  // namespace tandem::model
