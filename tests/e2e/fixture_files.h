#pragma once
// Readers of the fixture formats (tests/fixtures/README.md): safetensors with f32 and int32 arrays, and JSON lines.

#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::e2e {

// Path below the unpacked fixtures.
std::string fixture(const std::string& name);

struct Array {
  std::string dtype;  // F32, F64, I32, U8
  std::vector<uint64_t> shape;
  std::vector<float> f32;
  std::vector<double> f64;
  std::vector<int32_t> i32;
};
// Stops the test program when the file is not readable: the fixtures are part of the tree.
std::map<std::string, Array> read_safetensors(const std::string& path);
std::vector<JsonValue> read_json_lines(const std::string& path);
JsonValue read_json(const std::string& path);

std::vector<int32_t> token_ids(const JsonValue& value);

}  // namespace tandem::e2e
