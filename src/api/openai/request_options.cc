#include "api/openai/request_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "api/openai/structured_output.h"

namespace tandem::openai {
namespace {

constexpr size_t kMaxStops = 64;                // of all fields that name some
constexpr size_t kMaxStopBytes = 4 << 10;       // of one stop string
constexpr size_t kMaxCacheSaltBytes = 1 << 10;  // kept with cached blocks
constexpr size_t kMaxStopTokenIds = 1024;
constexpr size_t kMaxLogitBias = 4096;
constexpr size_t kMaxBadWords = 1024;
constexpr size_t kMaxBadWordBytes = 512;      // of one; with as many as there may be, far from a wire message's limit
constexpr size_t kMaxCopiedBytes = 64 << 20;  // see check_copies

// Fields that change the answer and that we do not do: ignoring them would give a wrong answer with status 200.
constexpr std::string_view kRefusedFields[] = {"grammar",           "json_schema",   "functions",
                                               "logits_processors", "chat_template", "prompt_embeds"};
// The same, where only `true` asks for something.
constexpr std::string_view kRefusedFlags[] = {"use_beam_search"};

void refuse_what_we_do_not_do(FieldReader& fields) {
  for (std::string_view name : kRefusedFields) {
    if (fields.get(name)) fields.fail(name, "is not supported");
  }
  for (std::string_view name : kRefusedFlags) {
    if (fields.flag(name, false)) fields.fail(name, "is not supported");
  }
}

std::vector<std::pair<TokenId, float>> read_logit_bias(FieldReader& fields, uint32_t vocab_size) {
  std::map<TokenId, float> biases;  // each id once, the last one counts
  const JsonValue* value = fields.get("logit_bias");
  if (!value) return {};
  const JsonValue::Object* members = value->if_object();
  if (!members)
    fields.fail_kind("logit_bias", "an object", *value);
  else if (members->size() > kMaxLogitBias)
    fields.fail("logit_bias", fmt::format("over {} entries", kMaxLogitBias));
  if (fields.has_failed()) return {};
  for (const auto& [key, bias] : *members) {
    int64_t id = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    double amount = 0;
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0 || id >= vocab_size) {
      fields.fail("logit_bias", fmt::format("expected token ids from 0 to {} as keys", vocab_size - 1));
    } else if (!bias.as_double(amount) || amount < -100 || amount > 100) {
      fields.fail_kind("logit_bias", "numbers from -100 to 100", bias);
    } else {
      biases[static_cast<TokenId>(id)] = static_cast<float>(amount);
    }
  }
  return {biases.begin(), biases.end()};
}

void read_sampling(FieldReader& fields, const RequestLimits& limits, const SamplingDefaults& defaults,
                   SamplingParams& sampling) {
  const SamplingDefaults chosen = read_defaults(fields, defaults);
  sampling.temperature = chosen.temperature;
  sampling.top_p = chosen.top_p;
  sampling.top_k = chosen.top_k;
  sampling.min_p = chosen.min_p;
  sampling.repetition_penalty = chosen.repetition_penalty;
  sampling.presence_penalty = fields.number("presence_penalty", 0, {-2, 2});
  sampling.frequency_penalty = fields.number("frequency_penalty", 0, {-2, 2});
  sampling.logit_bias = read_logit_bias(fields, limits.vocab_size);
  sampling.allowed = fields.token_ids("allowed_token_ids", limits.vocab_size, limits.vocab_size);
  const JsonValue* allowed = fields.get("allowed_token_ids");
  if (allowed && sampling.allowed.empty()) fields.fail("allowed_token_ids", "is empty");
  std::ranges::sort(sampling.allowed);
  sampling.allowed.erase(std::ranges::unique(sampling.allowed).begin(), sampling.allowed.end());
}

void read_choices(FieldReader& fields, const RequestLimits& limits, GenerationOptions& options) {
  options.num_shown = static_cast<uint32_t>(fields.integer("n", 1, 1, limits.max_choices));
  options.num_choices = static_cast<uint32_t>(fields.integer("best_of", options.num_shown, 1, limits.max_choices));
  if (options.num_choices < options.num_shown) {
    fields.fail("best_of", fmt::format("{} is less than n, {}", options.num_choices, options.num_shown));
  }
  if (options.num_choices > options.num_shown && options.is_stream) {
    fields.fail("best_of", "more than n cannot be streamed: which are best is known at the end");
  }
}

void read_prompt_logprobs(FieldReader& fields, const RequestLimits& limits, GenerationOptions& options) {
  options.prompt_logprobs = static_cast<int32_t>(fields.integer("prompt_logprobs", -1, 0, limits.max_logprobs));
  if (options.prompt_logprobs >= 0 && options.is_stream) fields.fail("prompt_logprobs", "cannot be streamed");
}

std::optional<uint64_t> read_seed(FieldReader& fields) {
  const JsonValue* value = fields.get("seed");
  if (!value) return std::nullopt;
  uint64_t as_unsigned = 0;
  int64_t as_signed = 0;
  if (value->as_uint64(as_unsigned)) return as_unsigned;
  if (value->as_int64(as_signed)) return static_cast<uint64_t>(as_signed);
  fields.fail_kind("seed", "an integer", *value);
  return std::nullopt;
}

void read_stops(FieldReader& fields, const RequestLimits& limits, GenerationOptions& options) {
  read_stop_strings(fields, "stop", options);
  options.bad_words = fields.texts("bad_words", kMaxBadWords);
  for (const std::string& word : options.bad_words) {
    if (word.find_first_not_of(' ') == std::string::npos) fields.fail("bad_words", "holds an empty word");
    if (word.size() <= kMaxBadWordBytes) continue;
    fields.fail("bad_words", fmt::format("a word of {} bytes, at most {} are allowed", word.size(), kMaxBadWordBytes));
  }
  options.stop_token_ids = fields.token_ids("stop_token_ids", kMaxStopTokenIds, limits.vocab_size);
  options.include_stop = fields.flag("include_stop_str_in_output", false);
  options.skip_special = fields.flag("skip_special_tokens", true);
  options.ignore_eos = fields.flag("ignore_eos", false);
}

void read_lengths(FieldReader& fields, GenerationOptions& options) {
  options.max_tokens = fields.optional_unsigned("max_tokens", 0);
  const auto max_completion_tokens = fields.optional_unsigned("max_completion_tokens", 0);
  if (max_completion_tokens) options.max_tokens = max_completion_tokens;
  options.min_tokens = fields.optional_unsigned("min_tokens", 0).value_or(0);
  if (options.max_tokens && options.min_tokens > *options.max_tokens) {
    fields.fail("min_tokens", fmt::format("{} is more than max_tokens, {}", options.min_tokens, *options.max_tokens));
  }
}

void read_streaming(FieldReader& fields, GenerationOptions& options) {
  options.is_stream = fields.flag("stream", false);
  const JsonValue* value = fields.get("stream_options");
  if (!value) return;
  if (!value->if_object()) {
    fields.fail_kind("stream_options", "an object", *value);
    return;
  }
  FieldReader inner(*value, "stream_options.");
  options.continuous_usage = inner.flag("continuous_usage_stats", false);
  options.include_usage = inner.flag("include_usage", false) || options.continuous_usage;
  fields.absorb(inner);
}

}  // namespace

SamplingDefaults read_defaults(FieldReader& fields, const SamplingDefaults& otherwise) {
  SamplingDefaults out;
  out.temperature = fields.number("temperature", otherwise.temperature, {0, 2});
  out.top_p = fields.number("top_p", otherwise.top_p, {0, 1});
  out.top_k = fields.integer("top_k", otherwise.top_k, -1, INT64_MAX);
  out.min_p = fields.number("min_p", otherwise.min_p, {0, 1});
  out.repetition_penalty = fields.number("repetition_penalty", otherwise.repetition_penalty, {0.01, 100});
  return out;
}

GenerationOptions read_options(FieldReader& fields, const RequestLimits& limits, const SamplingDefaults& defaults) {
  GenerationOptions options = read_prompt_options(fields);
  read_sampling(fields, limits, defaults, options.sampling);
  options.seed = read_seed(fields);
  read_lengths(fields, options);
  read_stops(fields, limits, options);
  read_streaming(fields, options);
  read_choices(fields, limits, options);
  read_prompt_logprobs(fields, limits, options);
  options.return_token_ids = fields.flag("return_token_ids", false);
  options.tokens_as_ids = fields.flag("return_tokens_as_token_ids", false);
  read_structured_output(fields, options);
  refuse_what_we_do_not_do(fields);
  return options;
}

void read_stop_strings(FieldReader& fields, std::string_view name, GenerationOptions& options) {
  for (std::string& stop : fields.texts(name, kMaxStops - std::min(kMaxStops, options.stops.size()))) {
    if (stop.empty()) fields.fail(name, "an empty stop string would stop at once");
    if (stop.size() > kMaxStopBytes) {
      fields.fail(name, fmt::format("a string of {} bytes, at most {} are allowed", stop.size(), kMaxStopBytes));
    }
    options.stops.push_back(std::move(stop));
  }
}

void check_one_answer(FieldReader& fields, const GenerationOptions& options) {
  if (options.num_choices == 1) return;
  fields.fail(options.num_shown == 1 ? "best_of" : "n", "only one answer is given here");
}

// Each answer finds its stop strings by itself, twice, with five bytes for each of theirs; each prompt has its own list
// of words as tokens, with and without a space before them.
void check_copies(FieldReader& fields, const GenerationOptions& options, size_t num_prompts) {
  if (fields.has_failed()) return;
  size_t stop_bytes = 0, word_bytes = 0;
  for (const std::string& stop : options.stops) stop_bytes += stop.size();
  for (const std::string& word : options.bad_words) word_bytes += word.size() + 1;
  const SamplingParams& sampling = options.sampling;
  const size_t per_prompt = 2 * sizeof(TokenId) * word_bytes + sizeof(TokenId) * sampling.allowed.size() +
                            sizeof(sampling.logit_bias[0]) * sampling.logit_bias.size();
  const size_t num_answers = num_prompts * options.num_choices;
  if (10 * stop_bytes * num_answers > kMaxCopiedBytes) {
    fields.fail("stop", fmt::format("{} bytes for each of {} answers are too much", stop_bytes, num_answers));
  }
  if (per_prompt * num_prompts > kMaxCopiedBytes) {
    const std::string_view name = options.bad_words.empty() ? "allowed_token_ids" : "bad_words";
    fields.fail(name, fmt::format("a list of this length for each of {} prompts is too much", num_prompts));
  }
}

GenerationOptions read_prompt_options(FieldReader& fields) {
  GenerationOptions options;
  options.model = fields.text("model");
  options.parse_special = fields.optional_flag("parse_special");
  options.add_special_tokens = fields.optional_flag("add_special_tokens");
  options.truncate_prompt_tokens = fields.optional_unsigned("truncate_prompt_tokens", 1);
  options.priority = static_cast<int32_t>(fields.integer("priority", 0, INT32_MIN, INT32_MAX));
  options.deadline_ms = fields.number("deadline_ms", 0, {0, 1e9, true});
  options.cache_salt = fields.text("cache_salt");
  if (options.cache_salt.size() > kMaxCacheSaltBytes) {
    fields.fail("cache_salt", fmt::format("over {} bytes", kMaxCacheSaltBytes));
  }
  options.request_id = fields.text("request_id");
  return options;
}

Parsed<JsonValue> parse_body(std::string_view body) {
  auto json = JsonValue::parse(body);
  if (!json) return invalid_request({}, "the request's body is " + json.error().message);
  if (!json->if_object())
    return invalid_request({}, "the request's body: expected an object, got " + std::string(json->kind_name()));
  return std::move(json).value();
}

}  // namespace tandem::openai
