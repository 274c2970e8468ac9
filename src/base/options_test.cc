#include "base/options.h"

#include <doctest/doctest.h>

namespace tandem {
namespace {

std::vector<OptionSpec> specs() {
  return {
      {.name = "port", .type = OptionType::kInteger, .default_text = "8000", .min = 0, .max = 65535},
      {.name = "dtype", .type = OptionType::kChoice, .default_text = "auto", .choices = {"auto", "f32", "int8"}},
      {.name = "caching", .type = OptionType::kSwitch, .default_text = "true"},
      {.name = "memory", .type = OptionType::kBytes, .min = 1},
      {.name = "ratio", .type = OptionType::kNumber, .min = 0, .max = 1},
      {.name = "keys", .type = OptionType::kTextList},
      {.name = "sizes", .type = OptionType::kIntegerList, .default_text = "1,8", .min = 1},
      {.name = "file"},
  };
}

std::string fault(OptionValues& values, std::string_view name, std::vector<std::string> texts) {
  const Status status = values.set(name, texts, OptionSource::kFlag, "--" + std::string(name));
  return status ? "" : status.error().message;
}

TEST_CASE("defaults hold until something is set, and unset is told from empty") {
  OptionValues values(specs());
  CHECK(values.integer("port") == 8000);
  CHECK(values.text("dtype") == "auto");
  CHECK(values.is_on("caching"));
  CHECK_FALSE(values.has("memory"));
  CHECK(values.texts("keys").empty());
  CHECK(values.integers("sizes") == std::vector<int64_t>{1, 8});
  CHECK(fault(values, "file", {""}) == "");
  CHECK(values.has("file"));
}

TEST_CASE("a stronger source wins, in whatever order they come") {
  OptionValues values(specs());
  REQUIRE(bool(values.set("port", {"3"}, OptionSource::kFlag, "--port")));
  REQUIRE(bool(values.set("port", {"1"}, OptionSource::kFile, "f: port")));
  REQUIRE(bool(values.set("port", {"2"}, OptionSource::kEnvironment, "TANDEM_PORT")));
  CHECK(values.integer("port") == 3);
  CHECK(values.source("port") == OptionSource::kFlag);
  // A value that a stronger source hides is still checked.
  CHECK_FALSE(bool(values.set("port", {"x"}, OptionSource::kFile, "f: port")));
}

TEST_CASE("a refused value names its origin, itself and what is allowed, and changes nothing") {
  OptionValues values(specs());
  CHECK(fault(values, "port", {"70000"}) == "--port: '70000' is not allowed; give a whole number, 0 to 65535");
  CHECK(fault(values, "port", {"80 "}) == "--port: '80 ' is not allowed; give a whole number, 0 to 65535");
  CHECK(fault(values, "port", {"1e3"}) != "");
  CHECK(fault(values, "port", {"99999999999999999999"}) != "");
  CHECK(fault(values, "port", {""}) != "");
  CHECK(fault(values, "port", {"1", "2"}) == "--port: given more than once");
  CHECK(fault(values, "dtype", {"f16"}) == "--dtype: 'f16' is not allowed; give auto, f32 or int8");
  CHECK(fault(values, "caching", {"maybe"}) == "--caching: 'maybe' is not allowed; give true or false");
  CHECK(fault(values, "ratio", {"nan"}) == "--ratio: 'nan' is not allowed; give a number, 0 to 1");
  CHECK(fault(values, "ratio", {"1.01"}) != "");
  CHECK(fault(values, "memory", {"0"}) == "--memory: '0' is not allowed; give a size such as 8GiB, at least 1 bytes");
  CHECK(fault(values, "sizes", {"1,x"}) ==
        "--sizes: 'x' is not allowed; give whole numbers separated by commas, each at least 1");
  CHECK(fault(values, "sizes", {"1,,2"}) != "");
  CHECK(fault(values, "keys", {"a,"}) != "");
  CHECK(values.integer("port") == 8000);
  CHECK(values.integers("sizes").size() == 2);
}

TEST_CASE("lists take commas and repetition") {
  OptionValues values(specs());
  CHECK(fault(values, "keys", {"a,b", "c"}) == "");
  CHECK(values.texts("keys") == std::vector<std::string>{"a", "b", "c"});
  CHECK(fault(values, "sizes", {"512,4096"}) == "");
  CHECK(values.integers("sizes") == std::vector<int64_t>{512, 4096});
}

TEST_CASE("sizes") {
  CHECK(parse_bytes("1048576").value() == 1048576);
  CHECK(parse_bytes("50GB").value() == 50'000'000'000);
  CHECK(parse_bytes("8GiB").value() == int64_t{8} << 30);
  CHECK(parse_bytes("1.5KiB").value() == 1536);
  CHECK(parse_bytes("7B").value() == 7);
  for (const char* bad : {"", "GB", "5G", "5gb", "-1", "1e3", "5GBx", "5 GB", "99999999TB", "1.2.3"}) {
    CHECK_FALSE(bool(parse_bytes(bad)));
  }
}

TEST_CASE("names: environment form, and the nearest known one") {
  CHECK(environment_name("max-num-seqs") == "MAX_NUM_SEQS");
  const std::vector<std::string> names = {"max-num-seqs", "max-model-len", "port"};
  CHECK(nearest_name("max-num-seq", names) == "max-num-seqs");
  CHECK(nearest_name("prot", names) == "port");
  CHECK(nearest_name("temperature", names) == "");
}

}  // namespace
}  // namespace tandem
