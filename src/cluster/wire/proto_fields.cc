#include "cluster/wire/proto_fields.h"

#include <algorithm>
#include <cmath>

#include "cluster/wire/wire_limits.h"

namespace tandem::wire {
namespace {

using handoff::ChoiceState;
using handoff::Finish;

Status check_size(const char* field, size_t size, size_t most) {
  if (size > most)
    return bad_field(field, "has " + std::to_string(size) + " entries or bytes, at most " + std::to_string(most));
  return Done{};
}

Status check_finite(const char* field, float value) {
  if (!std::isfinite(value)) return bad_field(field, "is not a finite number");
  return Done{};
}

Finish take_finish(pb::Finish from) {
  switch (from) {
    case pb::FINISH_NONE:
      return Finish::kNone;
    case pb::FINISH_LENGTH:
      return Finish::kLength;
    case pb::FINISH_STOP_RULE:
      return Finish::kStopRule;
    case pb::FINISH_COMPLETE:
      return Finish::kComplete;
    default:
      return Finish::kStop;
  }
}

pb::Finish put_finish(Finish from) {
  switch (from) {
    case Finish::kNone:
      return pb::FINISH_NONE;
    case Finish::kStop:
      return pb::FINISH_STOP;
    case Finish::kLength:
      return pb::FINISH_LENGTH;
    case Finish::kStopRule:
      return pb::FINISH_STOP_RULE;
    case Finish::kComplete:
      return pb::FINISH_COMPLETE;
  }
  return pb::FINISH_STOP;
}

}  // namespace

Error bad_field(const char* field, const std::string& what) {
  return {ErrorCode::kCorrupt, std::string(field) + " " + what};
}

Status check_range(const char* field, uint64_t value, uint64_t lowest, uint64_t highest) {
  if (value >= lowest && value <= highest) return Done{};
  return bad_field(
      field, "is " + std::to_string(value) + ", not in " + std::to_string(lowest) + " to " + std::to_string(highest));
}

Status take_tokens(const char* field, const google::protobuf::RepeatedField<int32_t>& from, std::vector<TokenId>& to) {
  TRY(check_size(field, static_cast<size_t>(from.size()), kMaxTokens));
  to.assign(from.begin(), from.end());
  for (const TokenId token : to) {
    if (token < 0) return bad_field(field, "holds the token " + std::to_string(token));
  }
  return Done{};
}

void put(const handoff::RequestId& from, pb::RequestId& to) {
  to.set_high(from.high);
  to.set_low(from.low);
}
Status take(const pb::RequestId& from, handoff::RequestId& to) {
  to = {from.high(), from.low()};
  return Done{};
}

void put(const handoff::NodeRef& from, pb::NodeRef& to) {
  to.set_id(from.id);
  to.set_incarnation(from.incarnation);
}
Status take(const pb::NodeRef& from, handoff::NodeRef& to) {
  TRY(check_size("id", from.id().size(), kMaxNameBytes));
  to = {from.id(), from.incarnation()};
  return Done{};
}

void put(const handoff::SessionId& from, pb::SessionId& to) {
  to.set_gateway_incarnation(from.gateway_incarnation);
  to.set_node_incarnation(from.node_incarnation);
  to.set_counter(from.counter);
}
Status take(const pb::SessionId& from, handoff::SessionId& to) {
  to = {from.gateway_incarnation(), from.node_incarnation(), from.counter()};
  return Done{};
}

void put(const handoff::Fingerprint& from, pb::Fingerprint& to) {
  to.set_weights(from.weights);
  to.set_kv_layout(from.kv_layout);
  to.set_kv_dtype(from.kv_dtype);
  to.set_numerics(from.numerics);
  to.set_block_size(from.block_size);
  to.set_num_layers(from.num_layers);
  to.set_num_kv_heads(from.num_kv_heads);
  to.set_tp(from.tp);
  to.set_pp(from.pp);
}
Status take(const pb::Fingerprint& from, handoff::Fingerprint& to) {
  TRY(check_size("weights", from.weights().size(), kMaxNameBytes));
  TRY(check_size("kv_layout", from.kv_layout().size(), kMaxNameBytes));
  TRY(check_size("kv_dtype", from.kv_dtype().size(), kMaxNameBytes));
  TRY(check_size("numerics", from.numerics().size(), kMaxNameBytes));
  TRY(check_range("block_size", from.block_size(), 1, kMaxBlockSize));
  TRY(check_range("tp", from.tp(), 1, UINT32_MAX));
  TRY(check_range("pp", from.pp(), 1, UINT32_MAX));
  to = {from.weights(),    from.kv_layout(),    from.kv_dtype(), from.numerics(), from.block_size(),
        from.num_layers(), from.num_kv_heads(), from.tp(),       from.pp()};
  return Done{};
}

void put(const handoff::PartSet& from, pb::PartSet& to) {
  to.set_num_parts(from.size());
  std::string bits((from.size() + 7) / 8, '\0');
  for (uint32_t part = 0; part < from.size(); ++part) {
    if (from.has(part)) bits[part / 8] = static_cast<char>(bits[part / 8] | 1 << part % 8);
  }
  to.set_bits(std::move(bits));
}
Status take(const pb::PartSet& from, handoff::PartSet& to) {
  TRY(check_range("num_parts", from.num_parts(), 0, kMaxParts));
  const std::string& bits = from.bits();
  const uint32_t num_bytes = (from.num_parts() + 7) / 8;
  if (bits.size() != num_bytes) {
    return bad_field("bits", "has " + std::to_string(bits.size()) + " bytes, not " + std::to_string(num_bytes));
  }
  to = handoff::PartSet(from.num_parts());
  for (uint32_t bit = 0; bit < num_bytes * 8; ++bit) {
    if ((static_cast<uint8_t>(bits[bit / 8]) >> bit % 8 & 1) == 0) continue;
    if (bit >= from.num_parts()) return bad_field("bits", "names part " + std::to_string(bit));
    to.add(bit);
  }
  return Done{};
}

void put(const handoff::HandoffShape& from, pb::Shape& to) {
  to.set_block_size(from.block_size);
  to.set_num_layer_groups(from.num_layer_groups);
  to.set_prompt_tokens(from.prompt_tokens);
  to.mutable_choice_tokens()->Add(from.choice_tokens.begin(), from.choice_tokens.end());
  for (const uint8_t is_finished : from.is_finished) to.add_is_finished(is_finished != 0);
}
Status take(const pb::Shape& from, handoff::HandoffShape& to) {
  TRY(check_range("block_size", from.block_size(), 0, kMaxBlockSize));
  TRY(check_range("num_layer_groups", from.num_layer_groups(), 0, kMaxLayerGroups));
  TRY(check_range("prompt_tokens", from.prompt_tokens(), 0, kMaxTokens));
  TRY(check_size("choice_tokens", static_cast<size_t>(from.choice_tokens_size()), kMaxChoices));
  if (from.is_finished_size() != from.choice_tokens_size()) {
    return bad_field("is_finished", "and choice_tokens differ in length");
  }
  to = {from.block_size(), from.num_layer_groups(), from.prompt_tokens(), {}, {}};
  to.choice_tokens.assign(from.choice_tokens().begin(), from.choice_tokens().end());
  to.is_finished.assign(from.is_finished().begin(), from.is_finished().end());
  for (const uint32_t tokens : to.choice_tokens) TRY(check_range("choice_tokens", tokens, 0, kMaxTokens));
  if (to.block_size > 0 && uint64_t{to.num_blocks()} * to.num_layer_groups > kMaxParts) {
    return bad_field("choice_tokens", "make more than " + std::to_string(kMaxParts) + " parts");
  }
  return Done{};
}

void put(const SamplingParams& from, pb::Sampling& to) {
  to.set_temperature(from.temperature);
  to.set_top_k(from.top_k);
  to.set_top_p(from.top_p);
  to.set_min_p(from.min_p);
  to.set_repetition_penalty(from.repetition_penalty);
  to.set_presence_penalty(from.presence_penalty);
  to.set_frequency_penalty(from.frequency_penalty);
  for (const auto& [token, bias] : from.logit_bias) {
    pb::LogitBias& entry = *to.add_logit_bias();
    entry.set_token(token);
    entry.set_bias(bias);
  }
  to.set_seed(from.seed);
  to.set_choice(from.choice);
  to.set_num_logprobs(from.num_logprobs);
  to.mutable_banned()->Add(from.banned.begin(), from.banned.end());
  to.mutable_allowed()->Add(from.allowed.begin(), from.allowed.end());
  for (const std::vector<TokenId>& word : from.bad_words) {
    to.add_bad_words()->mutable_tokens()->Add(word.begin(), word.end());
  }
}
Status take(const pb::Sampling& from, SamplingParams& to) {
  TRY(check_finite("temperature", from.temperature()));
  TRY(check_finite("top_p", from.top_p()));
  TRY(check_finite("min_p", from.min_p()));
  TRY(check_finite("repetition_penalty", from.repetition_penalty()));
  TRY(check_finite("presence_penalty", from.presence_penalty()));
  TRY(check_finite("frequency_penalty", from.frequency_penalty()));
  for (const pb::LogitBias& entry : from.logit_bias()) {
    if (entry.token() < 0) return bad_field("logit_bias", "holds the token " + std::to_string(entry.token()));
    TRY(check_finite("logit_bias", entry.bias()));
    to.logit_bias.emplace_back(entry.token(), entry.bias());
  }
  TRY(take_tokens("banned", from.banned(), to.banned));
  TRY(take_tokens("allowed", from.allowed(), to.allowed));
  if (!std::ranges::is_sorted(to.allowed)) return bad_field("allowed", "is not in rising order");
  for (const pb::BadWord& word : from.bad_words()) {
    if (word.tokens().empty()) return bad_field("bad_words", "holds an empty word");
    TRY(take_tokens("bad_words", word.tokens(), to.bad_words.emplace_back()));
  }
  if (from.num_logprobs() < -1) return bad_field("num_logprobs", "is below -1");
  to.temperature = from.temperature();
  to.top_k = from.top_k();
  to.top_p = from.top_p();
  to.min_p = from.min_p();
  to.repetition_penalty = from.repetition_penalty();
  to.presence_penalty = from.presence_penalty();
  to.frequency_penalty = from.frequency_penalty();
  to.seed = from.seed();
  to.choice = from.choice();
  to.num_logprobs = from.num_logprobs();
  return Done{};
}

void put(const handoff::RequestState& from, pb::RequestState& to) {
  to.set_version(from.version);
  to.set_model(from.model);
  to.set_adapter(from.adapter);
  to.mutable_prompt()->Add(from.prompt.begin(), from.prompt.end());
  put(from.sampling, *to.mutable_sampling());
  to.set_max_tokens(from.max_tokens);
  to.set_min_tokens(from.min_tokens);
  to.set_ignore_eos(from.ignore_eos);
  to.mutable_stop_token_ids()->Add(from.stop_token_ids.begin(), from.stop_token_ids.end());
  for (const std::string& stop : from.stop_strings) to.add_stop_strings(stop);
  to.set_shows_special(from.shows_special);
  to.set_grammar_source(from.grammar_source);
  to.set_grammar_kind(static_cast<pb::GrammarKind>(from.grammar_kind));
  to.set_cache_salt(from.cache_salt);
  if (from.prompt_logprobs >= 0) to.set_prompt_logprobs(from.prompt_logprobs);
  to.set_pooling(static_cast<pb::Pooling>(from.pooling));
  for (const ChoiceState& choice : from.choices) {
    pb::ChoiceState& entry = *to.add_choices();
    entry.mutable_tokens()->Add(choice.tokens.begin(), choice.tokens.end());
    entry.set_is_finished(choice.is_finished);
  }
}
Status take(const pb::RequestState& from, handoff::RequestState& to) {
  TRY(check_range("version", from.version(), 1, 1));
  TRY(take_tokens("prompt", from.prompt(), to.prompt));
  TAKE(from, to, sampling);
  // Not to be ignored: the answer would not be what was asked for.
  TRY(check_range("grammar_kind", static_cast<uint64_t>(from.grammar_kind()), pb::GRAMMAR_NONE, pb::GRAMMAR_CHOICE));
  TRY(take_tokens("stop_token_ids", from.stop_token_ids(), to.stop_token_ids));
  TRY(check_size("choices", static_cast<size_t>(from.choices_size()), kMaxChoices));
  for (const pb::ChoiceState& entry : from.choices()) {
    ChoiceState& choice = to.choices.emplace_back();
    TRY(take_tokens("choices", entry.tokens(), choice.tokens));
    choice.is_finished = entry.is_finished();
  }
  to.version = from.version();
  to.model = from.model();
  to.adapter = from.adapter();
  to.max_tokens = from.max_tokens();
  to.min_tokens = from.min_tokens();
  to.ignore_eos = from.ignore_eos();
  to.stop_strings.assign(from.stop_strings().begin(), from.stop_strings().end());
  to.shows_special = from.shows_special();
  to.grammar_source = from.grammar_source();
  to.grammar_kind = static_cast<handoff::GrammarKind>(from.grammar_kind());
  to.cache_salt = from.cache_salt();
  if (from.has_prompt_logprobs() && from.prompt_logprobs() < 0) return bad_field("prompt_logprobs", "is below 0");
  to.prompt_logprobs = from.has_prompt_logprobs() ? from.prompt_logprobs() : -1;
  if (from.pooling() < pb::POOLING_NONE || from.pooling() > pb::POOLING_MEAN) {
    return bad_field("pooling", "is " + std::to_string(from.pooling()));
  }
  to.pooling = static_cast<handoff::Pooling>(from.pooling());
  return Done{};
}

namespace {

// `Message` has top_tokens and top_logprobs, one of each.
template <class Message>
void put_top(const std::vector<std::pair<TokenId, float>>& from, Message& to) {
  for (const auto& [token, logprob] : from) {
    to.add_top_tokens(token);
    to.add_top_logprobs(logprob);
  }
}
template <class Message>
Status take_top(const Message& from, std::vector<std::pair<TokenId, float>>& to) {
  TRY(check_size("top_tokens", static_cast<size_t>(from.top_tokens_size()), kMaxTopLogprobs));
  if (from.top_logprobs_size() != from.top_tokens_size()) {
    return bad_field("top_logprobs", "and top_tokens differ in length");
  }
  for (int i = 0; i < from.top_tokens_size(); ++i) {
    if (from.top_tokens(i) < 0) return bad_field("top_tokens", "holds the token " + std::to_string(from.top_tokens(i)));
    to.emplace_back(from.top_tokens(i), from.top_logprobs(i));
  }
  return Done{};
}

}  // namespace

void put(const handoff::TokenEntry& from, pb::TokenEntry& to) {
  put(from.request, *to.mutable_request());
  to.set_attempt(from.attempt);
  to.set_choice(from.choice);
  to.set_index(from.index);
  to.set_token(from.token);
  to.set_logprob(from.logprob);
  to.set_finish(put_finish(from.finish));
  to.set_rank(from.rank);
  put_top(from.top, to);
  to.set_num_cached(from.num_cached);
  for (const handoff::PromptScore& score : from.prompt_scores) {
    pb::PromptScore& entry = *to.add_prompt_scores();
    entry.set_token(score.token);
    entry.set_logprob(score.logprob);
    entry.set_rank(score.rank);
    put_top(score.top, entry);
  }
  to.mutable_embedding()->Add(from.embedding.begin(), from.embedding.end());
}
Status take(const pb::TokenEntry& from, handoff::TokenEntry& to) {
  TAKE(from, to, request);
  TRY(check_range("attempt", from.attempt(), 1, UINT32_MAX));
  TRY(check_range("choice", from.choice(), 0, kMaxChoices - 1));
  if (from.token() < 0) return bad_field("token", "is " + std::to_string(from.token()));
  TRY(take_top(from, to.top));
  TRY(check_size("prompt_scores", static_cast<size_t>(from.prompt_scores_size()), kMaxTokens));
  for (const pb::PromptScore& entry : from.prompt_scores()) {
    if (entry.token() < 0) return bad_field("prompt_scores", "holds the token " + std::to_string(entry.token()));
    handoff::PromptScore& score = to.prompt_scores.emplace_back();
    score.token = entry.token();
    score.logprob = entry.logprob();
    score.rank = entry.rank();
    TRY(take_top(entry, score.top));
  }
  to.embedding.assign(from.embedding().begin(), from.embedding().end());
  to.attempt = from.attempt();
  to.choice = from.choice();
  to.index = from.index();
  to.token = from.token();
  to.logprob = from.logprob();
  to.finish = take_finish(from.finish());
  to.rank = from.rank();
  TRY(check_range("num_cached", from.num_cached(), 0, kMaxTokens));
  to.num_cached = from.num_cached();
  return Done{};
}

}  // namespace tandem::wire
