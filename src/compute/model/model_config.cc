#include "compute/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/mapped_file.h"
#include "compute/model/config_checks.h"
#include "compute/model/fault_text.h"
#include "compute/model/weight_file.h"

namespace tandem::model {
namespace {

struct Limit {
  const char* name;
  uint32_t value;
  uint32_t max;
};

Error bad_value(const std::string& source, const std::string& reason) { return file_fault(source, reason); }

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

Status check_rope(const std::string& source, const RopeConfig& rope, uint32_t head_dim) {
  if (!std::isfinite(rope.base) || rope.base <= 1.0) return bad_value(source, "the rope base must be above 1");
  if (rope.scaling != RopeScaling::kNone && !is_positive(rope.factor)) {
    return bad_value(source, "the rope scaling factor must be positive");
  }
  const bool needs_original = rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn;
  if (needs_original && rope.original_max_position == 0) {
    return bad_value(source, "rope scaling lacks the original context length");
  }
  if (rope.scaling == RopeScaling::kLlama3 &&
      (!is_positive(rope.low_freq_factor) || !std::isfinite(rope.high_freq_factor) ||
       rope.high_freq_factor <= rope.low_freq_factor)) {
    return bad_value(source, "rope scaling llama3: high_freq_factor must be above low_freq_factor, both positive");
  }
  if (rope.scaling == RopeScaling::kYarn &&
      (!is_positive(rope.beta_fast) || !is_positive(rope.beta_slow) || !is_positive(rope.attention_factor))) {
    return bad_value(source, "rope scaling yarn: beta_fast, beta_slow and the attention factor must be positive");
  }
  if (!rope.freq_factors.empty() && rope.freq_factors.size() != head_dim / 2) {
    return bad_value(source, "rope_freqs.weight has " + std::to_string(rope.freq_factors.size()) +
                                 " values, head_dim / 2 = " + std::to_string(head_dim / 2) + " are needed");
  }
  for (const float factor : rope.freq_factors) {
    if (!is_positive(double{factor})) return bad_value(source, "rope_freqs.weight holds a value that is not positive");
  }
  return Done{};
}

Result<std::string> read_text(const std::string& path) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace

Error unsupported(const std::string& source, const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, source + ": " + what + " is not supported"};
}

void add_eos_id(int64_t id, ModelConfig* config) {
  if (id < 0 || id > std::numeric_limits<int32_t>::max()) return;
  const auto narrow = static_cast<int32_t>(id);
  const auto& ids = config->eos_ids;
  if (std::find(ids.begin(), ids.end(), narrow) == ids.end()) config->eos_ids.push_back(narrow);
}

Status check_config(const std::string& source, ModelConfig* config) {
  const Limit limits[] = {
      {"number of layers", config->num_layers, 1u << 12}, {"hidden size", config->hidden, 1u << 20},
      {"number of heads", config->num_heads, 1u << 12},   {"number of kv heads", config->num_kv_heads, 1u << 12},
      {"head size", config->head_dim, 1u << 12},          {"feed-forward size", config->ffn, 1u << 22},
      {"vocabulary size", config->vocab, 1u << 26},       {"context length", config->max_position, 1u << 30},
  };
  for (const Limit& limit : limits) {
    if (limit.value == 0 || limit.value > limit.max) {
      return bad_value(source, std::string(limit.name) + " " + std::to_string(limit.value) + " is not in 1.." +
                                   std::to_string(limit.max));
    }
  }
  if (config->num_heads % config->num_kv_heads != 0) {
    return bad_value(source, std::to_string(config->num_heads) + " heads are no multiple of " +
                                 std::to_string(config->num_kv_heads) + " kv heads");
  }
  if (config->head_dim % 2 != 0) return bad_value(source, "head size " + std::to_string(config->head_dim) + " is odd");
  if (!is_positive(double{config->norm_eps})) return bad_value(source, "the norm's epsilon must be positive");
  TRY(check_rope(source, config->rope, config->head_dim));
  if (config->rope.scaling == RopeScaling::kYarn) {
    const double extended = std::min(config->rope.original_max_position * config->rope.factor, double{1u << 30});
    config->max_position = std::max(config->max_position, static_cast<uint32_t>(extended));
  }
  std::erase_if(config->eos_ids, [config](int32_t id) { return static_cast<uint32_t>(id) >= config->vocab; });
  if (config->bos_id >= 0 && static_cast<uint32_t>(config->bos_id) >= config->vocab) config->bos_id = -1;
  return Done{};
}

Result<ModelConfig> read_config(const WeightFiles& files) {
  if (files.is_gguf()) return read_gguf_config(files);
  const std::string path = files.directory() + "/config.json";
  TRY_ASSIGN(const std::string config, read_text(path));
  auto generation = read_text(files.directory() + "/generation_config.json");
  if (!generation && generation.error().code != ErrorCode::kNotFound) return generation.error();
  return parse_hf_config(config, generation ? generation.value() : "", path);
}

}  // namespace tandem::model
