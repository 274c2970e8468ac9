#include "compute/model/gguf.h"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include "compute/model/files_for_test.h"

using namespace tandem;
using namespace tandem::model;

namespace {

// Parses an exactly sized heap copy, so that a sanitizer sees every read past the end.
Result<GgufContents> parse_copy(const std::string& bytes) {
  static std::unique_ptr<uint8_t[]> copy;  // lives as long as the views into it
  copy = std::make_unique<uint8_t[]>(bytes.size());
  memcpy(copy.get(), bytes.data(), bytes.size());
  return parse_gguf({copy.get(), bytes.size()}, "test.gguf");
}

GgufBytes valid() {
  GgufBytes file;
  file.keys = {{"general.architecture", string_value("llama")},
               {"a.u32", u32_value(7)},
               {"a.f32", f32_value(0.5f)},
               {"a.bool", bool_value(true)},
               {"a.ints", array_value(5, 2, le_bytes<int32_t>(-1) + le_bytes<int32_t>(2))},
               {"a.floats", array_value(6, 1, le_bytes(1.5f))},
               {"a.strings", array_value(8, 2, gguf_string("") + gguf_string("xy"))}};
  file.tensors = {{"one", {4, 2}, 0, 0}, {"two", {64}, 2, 32}};
  file.data_bytes = 32 + 36;
  return file;
}

std::string message_of(const std::string& bytes) {
  const auto result = parse_copy(bytes);
  return result ? "" : result.error().message;
}

}  // namespace

TEST_CASE("gguf: a small file is read") {
  for (const uint32_t version : {2u, 3u}) {
    GgufBytes file = valid();
    file.version = version;
    const auto contents = parse_copy(file.encode());
    REQUIRE_MESSAGE(contents, (contents ? "" : contents.error().message));
    const auto& tensors = contents.value().tensors;
    REQUIRE(tensors.size() == 2);
    CHECK(tensors[0].name == "one");
    CHECK(tensors[0].shape == std::vector<uint64_t>{2, 4});  // the contiguous dimension last
    CHECK(tensors[0].bytes.size() == 32);
    CHECK(tensors[0].bytes[0] == 0);
    CHECK(tensors[1].dtype == tensor::DType::kQ4_0);
    CHECK(tensors[1].bytes.size() == 36);
    CHECK(tensors[1].bytes[0] == 32);
    CHECK(tensors[1].file == "test.gguf");
    const Metadata& metadata = contents.value().metadata;
    CHECK(metadata.keys().size() == 7);
    CHECK(metadata.get_string("general.architecture").value() == "llama");
    CHECK(metadata.get_u32("a.u32").value() == 7);
    CHECK(metadata.get_f32("a.f32").value() == 0.5f);
    CHECK(metadata.get_bool("a.bool").value());
    CHECK(metadata.get_ints("a.ints").value() == std::vector<int32_t>{-1, 2});
    CHECK(metadata.get_floats("a.floats").value() == std::vector<float>{1.5f});
    const auto strings = metadata.get_strings("a.strings");
    CHECK(strings.value() == std::vector<std::string_view>{"", "xy"});
  }
}

TEST_CASE("gguf: metadata of another type, absent or out of range is an error that names the key") {
  GgufBytes file = valid();
  file.keys.push_back({"a.huge", le_bytes<uint32_t>(10) + le_bytes<uint64_t>(uint64_t{1} << 40)});
  file.keys.push_back({"a.negative", le_bytes<uint32_t>(5) + le_bytes<int32_t>(-3)});
  file.keys.push_back({"a.f64", le_bytes<uint32_t>(12) + le_bytes(0.25)});
  const auto contents = parse_copy(file.encode());
  REQUIRE(contents);
  const Metadata& metadata = contents.value().metadata;
  CHECK(metadata.get_u32("a.none").error().code == ErrorCode::kNotFound);
  CHECK(metadata.get_u32_or("a.none", 3).value() == 3);
  CHECK_FALSE(metadata.get_u32_or("a.f32", 3));
  CHECK_FALSE(metadata.get_u32("a.f32"));
  CHECK_FALSE(metadata.get_u32("a.huge"));
  CHECK(metadata.get_u64("a.huge").value() == uint64_t{1} << 40);
  CHECK_FALSE(metadata.get_i32("a.huge"));
  CHECK_FALSE(metadata.get_u32("a.negative"));
  CHECK(metadata.get_i32("a.negative").value() == -3);
  CHECK(metadata.get_f32("a.f64").value() == 0.25f);
  CHECK_FALSE(metadata.get_string("a.u32"));
  CHECK_FALSE(metadata.get_strings("a.ints"));
  CHECK_FALSE(metadata.get_ints("a.floats"));
  CHECK_FALSE(metadata.get_floats("a.ints"));
  CHECK_FALSE(metadata.get_bool("a.u32"));
  CHECK(metadata.get_bool("a.u32").error().message == "test.gguf: metadata key \"a.u32\" is not a bool");
}

// Fails when any one of the parser's checks is left out; each has its line.
TEST_CASE("LOD-02 gguf: each broken field gives an error that names file and reason") {
  struct Case {
    const char* what;
    std::function<void(GgufBytes&)> break_it;
    const char* reason;
  };
  const uint64_t huge = uint64_t{1} << 60;
  const Case cases[] = {
      {"magic", [](auto& f) { f.magic = "GGML"; }, "not a GGUF file"},
      {"version 1", [](auto& f) { f.version = 1; }, "GGUF version 1 is not supported"},
      {"version 99", [](auto& f) { f.version = 99; }, "GGUF version 99 is not supported"},
      {"big-endian", [](auto& f) { f.version = 0x03000000; }, "big-endian"},
      {"key count", [&](auto& f) { f.num_keys = huge; }, "the file ends inside"},
      {"tensor count", [&](auto& f) { f.num_tensors = ~uint64_t{0}; }, "tensor"},
      {"empty key", [](auto& f) { f.keys[1].first = ""; }, "metadata key 1 is empty"},
      {"key twice", [](auto& f) { f.keys[1].first = f.keys[2].first; }, "\"a.f32\" is there twice"},
      {"value type", [](auto& f) { f.keys[1].second = le_bytes<uint32_t>(13); }, "unknown value type 13"},
      {"nested array", [](auto& f) { f.keys[1].second = array_value(9, 1, ""); }, "array of arrays"},
      {"array type", [](auto& f) { f.keys[1].second = array_value(77, 1, ""); }, "unknown element type 77"},
      {"array length", [&](auto& f) { f.keys[1].second = array_value(4, huge, ""); }, "do not fit into the file"},
      {"array wraps", [&](auto& f) { f.keys[1].second = array_value(10, (huge << 1) + 1, ""); }, "do not fit"},
      {"strings", [&](auto& f) { f.keys[1].second = array_value(8, huge, ""); }, "the file ends inside"},
      {"string length", [&](auto& f) { f.keys[1].second = le_bytes<uint32_t>(8) + le_bytes(huge); }, "ends inside"},
      {"string wraps", [](auto& f) { f.keys[1].second = le_bytes(8) + le_bytes(~uint64_t{0}); }, "ends inside"},
      {"alignment 0", [](auto& f) { f.keys[1] = {"general.alignment", u32_value(0)}; }, "general.alignment 0"},
      {"alignment 24", [](auto& f) { f.keys[1] = {"general.alignment", u32_value(24)}; }, "general.alignment 24"},
      {"alignment type", [](auto& f) { f.keys[1] = {"general.alignment", f32_value(32)}; }, "general.alignment"},
      {"no name", [](auto& f) { f.tensors[1].name = ""; }, "tensor 1 has no name"},
      {"name twice", [](auto& f) { f.tensors[1].name = "one"; }, "tensor \"one\": is there twice"},
      {"no dimension", [](auto& f) { f.tensors[0].dims = {}; }, "tensor \"one\": 0 dimensions"},
      {"five dimensions", [](auto& f) { f.tensors[0].dims = {1, 1, 1, 1, 1}; }, "tensor \"one\": 5 dimensions"},
      {"nine dimensions", [](auto& f) { f.tensors[0].dims.assign(9, 1); }, "tensor \"one\": 9 dimensions"},
      {"2^32 dimensions", [](auto& f) { f.tensors[0].num_dims = ~0u; }, "4294967295 dimensions"},
      {"zero dimension", [](auto& f) { f.tensors[0].dims = {4, 0}; }, "shape [0, 4] has a zero dimension"},
      {"2^60 elements", [&](auto& f) { f.tensors[0].dims = {huge, 1}; }, "needs 4611686018427387904 bytes"},
      {"2^61 elements", [&](auto& f) { f.tensors[0].dims = {huge, 2}; }, "is too large"},
      {"wraps to 4", [&](auto& f) { f.tensors[0].dims = {uint64_t{1} << 33, uint64_t{1} << 33}; }, "is too large"},
      {"wraps to 2^22",
       [](auto& f) { f.tensors[0].dims = {(uint64_t{1} << 42) + 1, uint64_t{1} << 22}; }, "is too large"},
      {"unknown type", [](auto& f) { f.tensors[0].type = 99; }, "tensor \"one\": type unknown (99) is not supported"},
      {"removed type", [](auto& f) { f.tensors[0].type = 4; }, "type unknown (4)"},
      {"unread type", [](auto& f) { f.tensors[0].type = 16; }, "type IQ2_XXS (16) is not supported"},
      {"half a block", [](auto& f) { f.tensors[1].dims = {48}; }, "shape [48]: rows are no multiple of 32"},
      {"offset", [](auto& f) { f.tensors[1].offset = 33; }, "tensor \"two\": its offset 33 is no multiple"},
      {"offset outside", [](auto& f) { f.tensors[1].offset = 4096; }, "tensor \"two\": needs 36 bytes at offset 4096"},
      {"offset wraps", [](auto& f) { f.tensors[1].offset = ~uint64_t{31}; }, "needs 36 bytes at offset"},
      {"overlap", [](auto& f) { f.tensors[1].offset = 0; }, "overlaps"},
      {"one byte short", [](auto& f) { f.data_bytes -= 1; }, "tensor \"two\": needs 36 bytes at offset 32"},
      {"no tensor bytes", [](auto& f) { f.data_bytes = 0; }, "tensor \"one\": needs 32 bytes"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    GgufBytes file = valid();
    c.break_it(file);
    const std::string message = message_of(file.encode());
    CAPTURE(message);
    CHECK(message.starts_with("test.gguf: "));
    CHECK(message.find(c.reason) != std::string::npos);
  }
}

// Once the smallest file that made a reader divide by zero.
TEST_CASE("LOD-02 gguf: an 88-byte file with a zero dimension is an error") {
  GgufBytes file;
  file.tensors = {{"weight00", {4, 0, 2, 2}, 2, 0}};
  REQUIRE(file.encode().size() == 88);
  CHECK(message_of(file.encode()) == "test.gguf: tensor \"weight00\": shape [2, 2, 0, 4] has a zero dimension");
}

TEST_CASE("LOD-01 gguf: every shorter file is refused") {
  const std::string whole = valid().encode();
  REQUIRE(message_of(whole) == "");
  int accepted = 0;
  for (size_t size = 0; size < whole.size(); ++size) accepted += message_of(whole.substr(0, size)).empty();
  CHECK(accepted == 0);
}

TEST_CASE("LOD-02 gguf: no single damaged byte does harm") {
  const std::string whole = valid().encode();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const auto contents = parse_copy(damaged);
      if (!contents) continue;
      for (const TensorEntry& entry : contents.value().tensors) {
        CHECK(entry.bytes.size() == tensor::row_bytes(entry.dtype, entry.num_elements()));
        volatile uint8_t touched = entry.bytes.empty() ? 0 : entry.bytes.back();
        (void)touched;
      }
      (void)contents.value().metadata.get_strings("a.strings");
      (void)contents.value().metadata.get_ints("a.ints");
    }
  }
}

TEST_CASE("gguf: a gap, another alignment and trailing bytes are allowed") {
  GgufBytes file = valid();
  file.alignment = 64;
  file.keys.push_back({"general.alignment", u32_value(64)});
  file.tensors[1].offset = 128;
  file.data_bytes = 128 + 36 + 5;
  const auto contents = parse_copy(file.encode());
  REQUIRE_MESSAGE(contents, (contents ? "" : contents.error().message));
  CHECK(contents.value().tensors[1].bytes[0] == 128);
}

TEST_CASE("gguf: a hostile name is printed harmlessly") {
  GgufBytes file = valid();
  file.tensors[0].name = "\x1b[2J\n" + std::string(500, 'x');
  file.tensors[0].type = 99;
  const std::string message = message_of(file.encode());
  CHECK(message.find('\x1b') == std::string::npos);
  CHECK(message.find("\\x1b[2J\\x0a") != std::string::npos);
  CHECK(message.size() < 200);
}
