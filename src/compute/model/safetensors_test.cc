#include "compute/model/safetensors.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "compute/model/files_for_test.h"

using namespace tandem;
using namespace tandem::model;

namespace {

Result<std::vector<SafetensorsTensor>> parse_copy(const std::string& bytes) {
  static std::unique_ptr<uint8_t[]> copy;  // exactly sized, so that a sanitizer sees every read past the end
  copy = std::make_unique<uint8_t[]>(bytes.size());
  memcpy(copy.get(), bytes.data(), bytes.size());
  return parse_safetensors({copy.get(), bytes.size()}, "test.safetensors");
}

std::string message_of(const std::string& bytes) {
  const auto result = parse_copy(bytes);
  return result ? "" : result.error().message;
}

}  // namespace

TEST_CASE("safetensors: a small file is read") {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},)"
      R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[16,17]}}  )";
  const auto tensors = parse_copy(safetensors_bytes(header, "0123456789abcdefg"));
  REQUIRE_MESSAGE(tensors, (tensors ? "" : tensors.error().message));
  REQUIRE(tensors.value().size() == 3);
  CHECK(tensors.value()[0].name == "b");
  CHECK(tensors.value()[0].dtype == "I32");
  CHECK(tensors.value()[0].bytes[0] == '8');
  CHECK(tensors.value()[1].shape == std::vector<uint64_t>{2, 2});
  CHECK(tensors.value()[1].bytes.size() == 8);
  CHECK(tensors.value()[2].shape.empty());
  CHECK(tensors.value()[2].bytes[0] == 'g');
}

TEST_CASE("safetensors: weights are F32, F16 or BF16") {
  const std::string bytes = safetensors_bytes(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", "0123");
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto refused = parse_safetensors_weights({data, bytes.size()}, "w.safetensors");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message ==
        "w.safetensors: tensor \"a\": type F8_E4M3 is not supported (F32, F16 and BF16 are)");
  const std::string good = safetensors_of({{"x", {2, 3}}});
  const auto entries = parse_safetensors_weights({reinterpret_cast<const uint8_t*>(good.data()), good.size()}, "w");
  REQUIRE(entries);
  CHECK(entries.value()[0].dtype == tensor::DType::kF32);
  CHECK(entries.value()[0].num_rows() == 2);
}

TEST_CASE("safetensors: each broken field gives an error that names file and reason") {
  struct Case {
    const char* header;
    const char* reason;
  };
  const std::string data(16, 'x');
  const Case cases[] = {
      {"", "header"},
      {"{", "header"},
      {"[1]", "no JSON object"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
       R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
       "tensor \"a\": is there twice"},
      {R"({"":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "has no name"},
      {R"({"a":7})", "tensor \"a\": has no dtype"},
      {R"({"a":{"dtype":7,"shape":[4],"data_offsets":[0,16]}})", "tensor \"a\": has no dtype"},
      {R"({"a":{"dtype":"F33","shape":[4],"data_offsets":[0,16]}})", "tensor \"a\": type \"F33\" is not known"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,16]}})", "tensor \"a\": has no shape"},
      {R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", "unsigned integers"},
      {R"({"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}})", "unsigned integers"},
      {R"({"a":{"dtype":"F32","shape":["4"],"data_offsets":[0,16]}})", "unsigned integers"},
      {R"({"a":{"dtype":"F32","shape":[4]}})", "tensor \"a\": has no data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}})", "no range"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16,16]}})", "no range"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", "no range"},
      {R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}})", "ends at byte 20, but the file has 16"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[18446744073709551600,18446744073709551615]}})", "ends at"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})", "16 bytes do not fit shape [3] of type F32"},
      {R"({"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,16]}})", "do not fit shape"},
      {R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", "zero dimension"},
      {R"({"a":{"dtype":"F32","shape":[1152921504606846976,16],"data_offsets":[0,16]}})", "is too large"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "is too large"},
      {R"({"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0]}})", "do not fit shape"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       "tensor \"b\": overlaps"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
       "tensor \"b\": follows a gap"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "4 bytes after the last tensor"},
      {R"({"a":[[[[[[[[[[[[]]]]]]]]]]]]})", "nested deeper"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.header));
    const std::string message = message_of(safetensors_bytes(c.header, data));
    CAPTURE(message);
    CHECK(message.starts_with("test.safetensors: "));
    CHECK(message.find(c.reason) != std::string::npos);
  }
}

TEST_CASE("safetensors: a header length that lies is refused before anything is allocated") {
  const std::string good = safetensors_of({{"x", {2}}});
  for (const uint64_t lie : {uint64_t{0}, uint64_t{1}, good.size() - 7, uint64_t{1} << 40, ~uint64_t{0}}) {
    CAPTURE(lie);
    CHECK(message_of(le_bytes(lie) + good.substr(8)).starts_with("test.safetensors: "));
  }
}

TEST_CASE("safetensors: every shorter file is refused, and one byte more too") {
  const std::string whole = safetensors_of({{"x", {2, 2}}, {"y", {3}}});
  REQUIRE(message_of(whole) == "");
  int accepted = 0;
  for (size_t size = 0; size < whole.size(); ++size) accepted += message_of(whole.substr(0, size)).empty();
  CHECK(accepted == 0);
  CHECK(message_of(whole + "x") != "");
}
