#include "e2e/fixture_files.h"

#include <cstring>

#include "base/check.h"
#include "base/mapped_file.h"

namespace tandem::e2e {
namespace {

std::string read_text(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) check_failed(path.c_str(), 0, file.error().message.c_str());
  const auto bytes = file->bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

JsonValue parse(std::string_view text, const std::string& path) {
  auto value = JsonValue::parse(text);
  if (!value) check_failed(path.c_str(), 0, value.error().message.c_str());
  return std::move(value).value();
}

template <class T>
std::vector<T> elements(const char* bytes, uint64_t size_bytes) {
  std::vector<T> values(size_bytes / sizeof(T));
  std::memcpy(values.data(), bytes, size_bytes);
  return values;
}

uint64_t number(const JsonValue& value) {
  uint64_t out = 0;
  TANDEM_CHECK(value.as_uint64(out));
  return out;
}

}  // namespace

std::string fixture(const std::string& name) { return std::string(TANDEM_FIXTURES) + "/" + name; }

std::map<std::string, Array> read_safetensors(const std::string& path) {
  const std::string text = read_text(path);
  uint64_t header_size = 0;
  std::memcpy(&header_size, text.data(), sizeof header_size);
  const JsonValue header = parse(std::string_view(text).substr(8, header_size), path);
  std::map<std::string, Array> arrays;
  for (const auto& [name, entry] : *header.if_object()) {
    if (name == "__metadata__") continue;
    Array array;
    array.dtype = *entry.find("dtype")->if_string();
    for (const JsonValue& extent : *entry.find("shape")->if_array()) array.shape.push_back(number(extent));
    const JsonValue::Array& range = *entry.find("data_offsets")->if_array();
    const char* data = text.data() + 8 + header_size + number(range[0]);
    const uint64_t size = number(range[1]) - number(range[0]);
    if (array.dtype == "F32") array.f32 = elements<float>(data, size);
    if (array.dtype == "F64") array.f64 = elements<double>(data, size);
    if (array.dtype == "I32") array.i32 = elements<int32_t>(data, size);
    arrays.emplace(name, std::move(array));
  }
  return arrays;
}

std::vector<JsonValue> read_json_lines(const std::string& path) {
  const std::string text = read_text(path);
  std::vector<JsonValue> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(parse(std::string_view(text).substr(begin, end - begin), path));
    begin = end + 1;
  }
  return lines;
}

JsonValue read_json(const std::string& path) { return parse(read_text(path), path); }

std::vector<int32_t> token_ids(const JsonValue& value) {
  std::vector<int32_t> ids;
  for (const JsonValue& id : *value.if_array()) {
    int64_t out = 0;
    TANDEM_CHECK(id.as_int64(out));
    ids.push_back(static_cast<int32_t>(out));
  }
  return ids;
}

}  // namespace tandem::e2e
