// The 760 cases of the sampling fixture: probabilities computed elsewhere in float64.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "compute/sampling/sampler.h"

namespace tandem::sampling {
namespace {

constexpr size_t kVocabulary = 200;

// The float32 values of a version 1 .npy file.
std::vector<float> read_npy(const std::string& path) {
  auto file = MappedFile::open(path);
  REQUIRE(bool(file));
  const auto bytes = file->bytes();
  REQUIRE(bytes.size() > 10);
  const size_t begin = size_t{10} + bytes[8] + size_t{256} * bytes[9];
  std::vector<float> values((bytes.size() - begin) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(float));
  return values;
}

std::vector<TokenId> read_tokens(const JsonValue* array) {
  std::vector<TokenId> tokens;
  if (array == nullptr) return tokens;
  for (const JsonValue& item : *array->if_array()) {
    int64_t id = -1;
    REQUIRE(item.as_int64(id));
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

void read_number(const JsonValue& params, std::string_view name, float& out) {
  const JsonValue* value = params.find(name);
  double number = 0;
  if (value != nullptr && value->as_double(number)) out = static_cast<float>(number);
}

SamplingParams read_params(const JsonValue& json) {
  SamplingParams params;
  read_number(json, "temperature", params.temperature);
  read_number(json, "top_p", params.top_p);
  read_number(json, "min_p", params.min_p);
  read_number(json, "repetition_penalty", params.repetition_penalty);
  read_number(json, "presence_penalty", params.presence_penalty);
  read_number(json, "frequency_penalty", params.frequency_penalty);
  if (const JsonValue* top_k = json.find("top_k")) REQUIRE(top_k->as_int64(params.top_k));
  if (const JsonValue* bias = json.find("logit_bias")) {
    for (const auto& [token, value] : *bias->if_object()) {
      double number = 0;
      REQUIRE(value.as_double(number));
      params.logit_bias.emplace_back(std::stoi(token), static_cast<float>(number));
    }
  }
  return params;
}

double largest_difference(std::vector<float> a, std::vector<float> b, bool as_sets) {
  if (as_sets) {
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
  }
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

TEST_CASE("SMP-06, SMP-07: probabilities equal the reference's on all 760 cases") {
  const std::vector<float> logits = read_npy(TANDEM_FIXTURES "/sampling_logits.npy");
  const std::vector<float> expected = read_npy(TANDEM_FIXTURES "/sampling_probs.npy");
  auto file = MappedFile::open(TANDEM_FIXTURES "/sampling.jsonl");
  REQUIRE(bool(file));
  std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  Scratch scratch;
  size_t num_cases = 0, num_compared = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    auto line = JsonValue::parse(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    REQUIRE(bool(line));
    int64_t row = 0;
    REQUIRE(line->find("logits")->as_int64(row));
    const JsonValue& json = *line->find("params");
    const SamplingParams params = read_params(json);
    const std::vector<TokenId> prompt = read_tokens(json.find("prompt")), output = read_tokens(json.find("output"));
    CAPTURE(num_cases);
    CHECK(bool(validate(params, kVocabulary)));
    const std::span<const float> own = std::span(logits).subspan(static_cast<size_t>(row) * kVocabulary, kVocabulary);
    const auto got = probabilities(own, params, {prompt, output}, scratch);
    REQUIRE(bool(got));
    const auto begin = expected.begin() + static_cast<ptrdiff_t>(num_cases * kVocabulary);
    const bool is_tie = *line->find("tie_split")->if_bool();
    if (!*line->find("boundary_close")->if_bool()) {
      CHECK(largest_difference(got.value(), {begin, begin + kVocabulary}, is_tie) <= 1e-5);
      ++num_compared;
    }
    ++num_cases;
  }
  CHECK(num_cases == 760);
  CHECK(num_compared == 750);
}

}  // namespace
}  // namespace tandem::sampling
