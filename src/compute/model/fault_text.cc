#include "compute/model/fault_text.h"

namespace tandem::model {

std::string quote_name(std::string_view name) {
  constexpr size_t kMaxBytes = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : name.substr(0, kMaxBytes)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\') {
      text += c;
    } else {
      text += "\\x";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
  }
  text += name.size() > kMaxBytes ? "...\"" : "\"";
  return text;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string list_names(const std::vector<std::string>& names, size_t limit) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < limit; ++i) text += (i == 0 ? "" : ", ") + quote_name(names[i]);
  if (names.size() > limit) text += " and " + std::to_string(names.size() - limit) + " more";
  return text;
}

Error file_fault(const std::string& file, const std::string& reason) {
  return Error{ErrorCode::kCorrupt, file + ": " + reason};
}

Error tensor_fault(const std::string& file, std::string_view tensor, const std::string& reason) {
  return Error{ErrorCode::kCorrupt, file + ": tensor " + quote_name(tensor) + ": " + reason};
}

}  // namespace tandem::model
