#include "cluster/mocker/mock_engine.h"

#include <algorithm>

namespace tandem::mocker {

using namespace handoff;

TokenId token_after(uint64_t prefix_hash, uint64_t seed, uint32_t choice, uint32_t salt) {
  const uint64_t hash = mix(mix(prefix_hash, seed), choice);
  return static_cast<TokenId>((hash & kPrefixBits) | (static_cast<uint64_t>(salt & 0x7F) << 24));
}

Finish finish_of(TokenId token, uint32_t index, const RequestState& state) {
  if (index + 1 >= state.max_tokens) return Finish::kLength;
  return !state.ignore_eos && index >= 2 && (token & kPrefixBits) % 41 == 0 ? Finish::kStop : Finish::kNone;
}

uint64_t prefix_hash(const std::vector<TokenId>& prompt, const std::vector<TokenId>& tokens, size_t num_positions) {
  uint64_t hash = 0;
  for (size_t p = 0; p < num_positions; ++p) {
    hash = mix(hash, static_cast<uint64_t>(p < prompt.size() ? prompt[p] : tokens[p - prompt.size()]));
  }
  return hash;
}

std::vector<uint64_t> MockKv::read_block(kv::BlockId block, uint32_t group) {
  std::vector<uint64_t> words(block_size_);
  for (uint32_t s = 0; s < block_size_; ++s) words[s] = word(block, group, s);
  return words;
}

void MockKv::write_block(kv::BlockId block, uint32_t group, const std::vector<uint64_t>& words) {
  for (uint32_t s = 0; s < block_size_ && s < words.size(); ++s) word(block, group, s) = words[s];
}

std::vector<uint64_t> MockKv::read(const std::vector<role::Slots>& slots) {
  std::vector<uint64_t> words;
  for (const role::Slots& run : slots) {
    for (uint32_t group = 0; group < num_groups_; ++group) {
      for (uint32_t s = run.begin; s < run.begin + run.count; ++s) words.push_back(word(run.block, group, s));
    }
  }
  return words;
}

// The two ends may lie differently in their blocks, but positions and so block offsets are equal.
void MockKv::write(const std::vector<role::Slots>& slots, const std::vector<uint64_t>& words) {
  size_t next = 0;
  for (const role::Slots& run : slots) {
    for (uint32_t group = 0; group < num_groups_; ++group) {
      for (uint32_t s = run.begin; s < run.begin + run.count && next < words.size(); ++s) {
        word(run.block, group, s) = words[next++];
      }
    }
  }
}

void MockEngine::write_position(const role::KvTables& tables, uint32_t choice, uint32_t position, uint64_t hash) {
  const kv::BlockId block = tables.at(choice, position, kv_.block_size());
  for (uint32_t group = 0; group < kv_.num_layer_groups(); ++group) {
    kv_.word(block, group, position % kv_.block_size()) = mix(hash, group);
  }
}

bool MockEngine::is_right(const role::KvTables& tables, const RequestState& state, uint32_t choice, uint32_t from,
                          uint32_t end) {
  const std::vector<TokenId>& tokens = state.choices[choice].tokens;
  uint64_t hash = prefix_hash(state.prompt, tokens, from);
  for (uint32_t p = from; p < end; ++p) {
    const size_t num_prompt = state.prompt.size();
    hash = mix(hash, static_cast<uint64_t>(p < num_prompt ? state.prompt[p] : tokens[p - num_prompt]));
    const kv::BlockId block = tables.at(choice, p, kv_.block_size());
    for (uint32_t group = 0; group < kv_.num_layer_groups(); ++group) {
      if (kv_.word(block, group, p % kv_.block_size()) != mix(hash, group)) return false;
    }
  }
  return true;
}

uint32_t MockEngine::salt_of(const RequestId& id, uint32_t index) const {
  if (config_.salt == 0) return 0;
  return static_cast<uint32_t>(mix(mix(config_.salt, id.low), index) % 127 + 1);
}

void MockEngine::start_prefill(role::StartPrefill job) {
  stop_prefill(job.request);
  PrefillJob added;
  added.shape = shape_of(job.state, kv_.block_size(), kv_.num_layer_groups());
  added.cursor = job.computed;
  added.reported.assign(added.shape.num_blocks(), 0);
  for (uint32_t c = 0; c < added.cursor.size(); ++c) {  // the last position gives the logits, cached or not
    added.cursor[c] = std::min(added.cursor[c], added.shape.num_positions(c) - 1);
  }
  added.start = std::move(job);
  prefills_.push_back(std::move(added));
}

void MockEngine::stop_prefill(const RequestId& request) {
  std::erase_if(prefills_, [&](const PrefillJob& job) { return job.start.request == request; });
}

void MockEngine::start_decode(role::StartDecode decode) {
  Decode added;
  for (uint32_t c = 0; c < decode.state.choices.size(); ++c) {
    const ChoiceState& choice = decode.state.choices[c];
    const size_t num_tokens = choice.tokens.size();
    const auto end = static_cast<uint32_t>(decode.state.prompt.size() + (num_tokens > 0 ? num_tokens - 1 : 0));
    added.hash.push_back(prefix_hash(decode.state.prompt, choice.tokens, end));
    if (!choice.is_finished && !is_right(decode.tables, decode.state, c, 0, end)) {
      report_("I2/I3: decode began on KV that is not of its tokens");
    }
  }
  added.state = std::move(decode.state);
  added.tables = std::move(decode.tables);
  decodes_[decode.request] = std::move(added);
}

void MockEngine::extend(const role::ExtendTable& extension) {
  const auto it = decodes_.find(extension.request);
  if (it != decodes_.end()) it->second.tables.own[extension.choice].push_back(extension.block);
}

// Goes through what is left of the job, the prompt once and then each choice's tail. Returns the tokens it took.
uint32_t MockEngine::compute(PrefillJob& job, uint32_t budget, cost::StepShape& shape, bool is_dry) {
  uint32_t taken = 0;
  const RequestState& state = job.start.state;
  const uint32_t shared_end = job.shape.num_shared() * kv_.block_size();
  uint32_t shared_at = 0;
  for (uint32_t c = 0; c < job.cursor.size() && taken < budget; ++c) {
    if (state.choices[c].is_finished) continue;
    uint32_t at = std::max(job.cursor[c], std::min(shared_at, job.shape.num_positions(c) - 1));
    const uint32_t count = std::min(budget - taken, job.shape.num_positions(c) - at);
    if (count > 0) shape.add_prefill(at, count);
    taken += count;
    if (!is_dry) {
      uint64_t hash = prefix_hash(state.prompt, state.choices[c].tokens, at);
      for (const uint32_t end = at + count; at < end; ++at) {
        const size_t num_prompt = state.prompt.size();
        const TokenId token = at < num_prompt ? state.prompt[at] : state.choices[c].tokens[at - num_prompt];
        hash = mix(hash, static_cast<uint64_t>(token));
        if (at >= job.start.computed[c]) write_position(job.start.tables, c, at, hash);
      }
      job.cursor[c] = at;
    }
    shared_at = std::min(shared_end, at + (is_dry ? count : 0));
  }
  return taken;
}

Nanos MockEngine::begin_step(Nanos now) {
  if (is_hung_) {
    if (!is_stepping_) step_began_ = now;
    is_stepping_ = true;
    return INT64_MAX;
  }
  if (is_stepping_ || (prefills_.empty() && decodes_.empty())) return INT64_MAX;
  cost::StepShape shape;
  step_decodes_.clear();
  for (const auto& [id, decode] : decodes_) {
    step_decodes_.push_back(id);
    for (uint32_t c = 0; c < decode.state.choices.size(); ++c) {
      if (decode.state.choices[c].is_finished) continue;
      shape.add_decode(decode.state.prompt.size() + decode.state.choices[c].tokens.size() - 1);
    }
  }
  step_prefill_ = 0;
  for (PrefillJob& job : prefills_) {
    if (step_prefill_ >= config_.chunk_tokens) break;
    step_prefill_ += compute(job, config_.chunk_tokens - step_prefill_, shape, true);
    if (job.began_at == 0) job.began_at = now;
  }
  is_stepping_ = true;
  step_began_ = now;
  step_predicted_ = std::max<Nanos>(10'000, static_cast<Nanos>(cost_.predict(shape) * config_.slowness * 1e9));
  return now + static_cast<Nanos>(static_cast<double>(step_predicted_) * config_.surprise);
}

role::EngineProgress MockEngine::progress(Nanos now) const {
  const Nanos running = is_stepping_ ? now - step_began_ : 0;
  return {step_seq_, static_cast<uint32_t>(running / kMs), static_cast<uint32_t>(step_predicted_ / kMs)};
}

std::vector<role::EngineNews> MockEngine::end_step() {
  std::vector<role::EngineNews> news;
  if (!is_stepping_ || is_hung_) return news;
  is_stepping_ = false;
  ++step_seq_;
  for (const RequestId& id : step_decodes_) {
    const auto it = decodes_.find(id);
    if (it != decodes_.end()) run_decode(id, it->second, news);
  }
  run_prefill(news);
  return news;
}

void MockEngine::run_decode(const RequestId& id, Decode& decode, std::vector<role::EngineNews>& news) {
  role::StepTokens step{id, {}, step_began_};
  const auto num_prompt = static_cast<uint32_t>(decode.state.prompt.size());
  for (uint32_t c = 0; c < decode.state.choices.size(); ++c) {
    ChoiceState& choice = decode.state.choices[c];
    if (choice.is_finished) continue;
    const auto index = static_cast<uint32_t>(choice.tokens.size());
    const uint32_t position = num_prompt + index - 1;
    decode.hash[c] = mix(decode.hash[c], static_cast<uint64_t>(index > 0 ? choice.tokens[index - 1] : 0));
    write_position(decode.tables, c, position, decode.hash[c]);
    const uint32_t from = config_.checks_all_positions ? 0 : position - std::min(position, kv_.block_size());
    const bool is_good = is_right(decode.tables, decode.state, c, from, position + 1);
    if (!is_good) report_("I3/I6: a decode step read KV that is not of its tokens");
    TokenId token = token_after(decode.hash[c], decode.state.sampling.seed, c, salt_of(id, index));
    if (!is_good) token ^= 0x155555;
    const Finish finish = finish_of(token, index, decode.state);
    choice.tokens.push_back(token);
    choice.is_finished = finish != Finish::kNone;
    step.tokens.push_back({id, 0, c, index, token, 0, finish});
  }
  if (!step.tokens.empty()) news.emplace_back(std::move(step));
}

void MockEngine::run_prefill(std::vector<role::EngineNews>& news) {
  uint32_t budget = step_prefill_;
  cost::StepShape unused;
  for (size_t i = 0; i < prefills_.size() && budget > 0;) {
    PrefillJob& job = prefills_[i];
    budget -= std::min(budget, compute(job, budget, unused, false));
    report_blocks(job, news);
    bool is_done = true;
    for (uint32_t c = 0; c < job.cursor.size(); ++c) {
      is_done &= job.start.state.choices[c].is_finished || job.cursor[c] >= job.shape.num_positions(c);
    }
    if (!is_done) {
      ++i;
      continue;
    }
    sample_prefill(job, news);
    prefills_.erase(prefills_.begin() + static_cast<long>(i));
  }
}

// Blocks whose positions are all computed, layer group by layer group, as they come out of the layers.
void MockEngine::report_blocks(PrefillJob& job, std::vector<role::EngineNews>& news) {
  std::vector<uint32_t> ready;
  for (uint32_t number = 0; number < job.shape.num_blocks(); ++number) {
    if (job.reported[number]) continue;
    const BlockPlace place = place_of(job.shape, number);
    const uint32_t index = place.index + (place.is_shared ? 0 : job.shape.num_shared());
    const uint32_t end = index * kv_.block_size() + place.num_filled;
    bool is_ready = !place.is_shared && job.cursor[place.choice] >= end;
    for (uint32_t c = 0; place.is_shared && c < job.cursor.size(); ++c) {
      is_ready |= !job.start.state.choices[c].is_finished && job.cursor[c] >= end;
    }
    if (!is_ready) continue;
    job.reported[number] = 1;
    ready.push_back(number);
  }
  if (ready.empty()) return;
  for (uint32_t group = 0; group < kv_.num_layer_groups(); ++group) {
    news.emplace_back(role::PartsComputed{job.start.request, job.start.attempt, group, ready});
  }
}

void MockEngine::sample_prefill(PrefillJob& job, std::vector<role::EngineNews>& news) {
  const RequestState& state = job.start.state;
  role::Sampled sampled{job.start.request, job.start.attempt, {}, job.began_at, step_began_ + step_predicted_};
  for (uint32_t c = 0; c < job.cursor.size(); ++c) {
    const ChoiceState& choice = state.choices[c];
    if (choice.is_finished) continue;
    const uint32_t end = job.shape.num_positions(c);
    const auto index = static_cast<uint32_t>(choice.tokens.size());
    const bool is_good = is_right(job.start.tables, state, c, 0, end);
    if (!is_good) report_("I6: a prefill used KV of other tokens");
    TokenId token = token_after(prefix_hash(state.prompt, choice.tokens, end), state.sampling.seed, c,
                                salt_of(job.start.request, index));
    if (!is_good) token ^= 0x155555;
    sampled.first.push_back({job.start.request, 0, c, index, token, 0, finish_of(token, index, state)});
  }
  news.emplace_back(std::move(sampled));
}

}  // namespace tandem::mocker
