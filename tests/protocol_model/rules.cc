// What the gateway, a node and a peer do on each message.
#include <algorithm>
#include <cstring>

#include "model.h"

namespace protocol_model {

Options options;
std::string violation;
const char* const kKindNames[] = {"",      "Reserve", "Prefill",    "Release", "ReserveOk", "ReserveNo",
                                  "Running", "First", "Token",      "XferFailed", "Push",   "Commit",
                                  "CommitAck", "Mirror", "SetMirror", "Hold"};
const char* const kNodeNames[] = {"P1", "P2", "D1", "D2", "G"};

namespace {

constexpr uint8_t kGateway = 4;

bool has_equal_prefix(const Chain& a, const Chain& b, int size) {
  return std::memcmp(a.values, b.values, static_cast<size_t>(size)) == 0;
}

// The holder keeps its KV only as far as the token ids are those of `chain`.
void cut_to_content(Node& node, const Chain& chain) {
  int equal = 0;
  while (equal < node.held.size && equal < chain.size && node.held.values[equal] == chain.values[equal]) ++equal;
  node.have = static_cast<uint8_t>(std::min<int>(node.have, options.num_parts + equal));
  node.held.size = static_cast<uint8_t>(std::max<int>(0, node.have - options.num_parts));
  for (int i = node.held.size; i < kMaxTokens; ++i) node.held.values[i] = 0;
}

void release(Node& node, int attempt) {
  if (node.job && node.job <= attempt) clear_job(node);
  if (node.pin && node.pin <= attempt) node.pin = 0;
  if (node.slot == kOurs && node.attempt <= attempt) free_slot(node);
  if (!node.pin) {
    node.have = 0;
    node.held = {};
  }
}

// Token `number` with the whole chain up to it.
void emit(State& state, const Message& message) {
  if (message.number != state.out.size) return;  // exactly once, in order
  if (!has_equal_prefix(state.out, message.chain, state.out.size)) {
    violation = "I1: the stream is not one chain: a token was sampled from another prefix";
    return;
  }
  state.out.values[state.out.size++] = message.chain.values[message.number];
  if (state.out.size == options.num_tokens) release_everywhere(state);
}

void try_start_decode(State& state, int k) {
  Node& node = state.nodes[k];
  if (node.slot != kOurs || !node.has_commit || node.has_started) return;
  const int need = options.num_parts + node.chain.size - 1;
  if (node.received != (1 << need) - 1) {
    if (options.without.gate) violation = "I2: decode started on incomplete KV";
    return;
  }
  node.has_started = 1;
  node.next = node.chain.size;
  state.data.push_back({kCommitAck, static_cast<uint8_t>(k), node.holder, 0, node.attempt, 0, {}});
  if (!options.without.repeated_first) {
    send_to_gateway(state, k, kToken, node.attempt, static_cast<uint8_t>(node.next - 1), node.chain);
  }
  if (node.next == options.num_tokens) free_slot(node);
}

void on_reserve(State& state, int k, const Message& message) {
  Node& node = state.nodes[k];
  const int source = message.number >> 4;
  const int next_index = message.number & 15;
  const LeftOut& without = options.without;
  if (without.fenced_writes && (node.slot == kFree || node.slot == kOurs)) {
    node.writers |= static_cast<uint8_t>(1 << source);
  }
  if (node.slot == kFree) {
    node.slot = kOurs;
    node.attempt = message.attempt;
    send_to_gateway(state, k, kReserveOk, message.attempt, 0);
  } else if (node.slot == kOurs && node.attempt < message.attempt) {  // the reservation is bound to the new attempt
    node.attempt = message.attempt;
    if (node.has_started) {
      send_to_gateway(state, k, kRunning, message.attempt, 0);
      for (int i = next_index; i < node.next; ++i) {
        Chain chain = node.chain;
        chain.size = static_cast<uint8_t>(i + 1);
        send_to_gateway(state, k, kToken, message.attempt, static_cast<uint8_t>(i), chain);
      }
    } else {
      node.has_commit = 0;
      node.chain = {};
      send_to_gateway(state, k, kReserveOk, message.attempt, 0);
    }
  } else if (node.slot == kOurs && node.attempt == message.attempt && without.new_attempt) {
    send_to_gateway(state, k, node.has_started ? kRunning : kReserveOk, message.attempt, 0);
  } else if (node.slot == kOther || node.slot == kQuarantined) {
    send_to_gateway(state, k, kReserveNo, message.attempt, 0);
  }
}

void on_prefill(Node& node, const Message& message) {
  if (node.job && node.job >= message.attempt) return;
  clear_job(node);
  node.job = message.attempt;
  node.job_target = message.number;
  node.job_tokens = message.chain.size;
  node.job_chain = message.chain;
  node.pin = message.attempt;
  if (!options.without.content_match) cut_to_content(node, message.chain);
}

// The node becomes the holder of a decode that runs elsewhere.
void on_hold(Node& node, const Message& message) {
  if (node.job >= message.attempt || node.pin >= message.attempt) return;
  clear_job(node);
  node.pin = message.attempt;
  cut_to_content(node, message.chain);
}

// The target mirrors to another node from now on, all positions anew.
void on_set_mirror(State& state, int k, const Message& message) {
  Node& node = state.nodes[k];
  if (node.slot != kOurs || !node.has_started || node.attempt != message.attempt) return;
  node.holder = message.number;
  if (!is_linked(state, k, node.holder)) return;
  for (int position = 0; position < options.num_parts + node.next - 1; ++position) {
    state.data.push_back({kMirror, static_cast<uint8_t>(k), node.holder, 0, node.attempt,
                          static_cast<uint8_t>(position), node.chain});
  }
}

void on_mirror(Node& node, const Message& message) {
  const bool is_ours = options.without.mirror_fence ? node.pin != 0 : node.pin == message.attempt && !node.job;
  if (!is_ours || node.have != message.number) return;
  const int token = message.number - options.num_parts;
  ++node.have;
  if (token < 0) return;
  if (!options.without.mirror_fence && !has_equal_prefix(node.held, message.chain, token)) {
    violation = "I6: the holder's KV is of two chains";
  }
  node.held.size = static_cast<uint8_t>(token + 1);
  std::memcpy(node.held.values, message.chain.values, static_cast<size_t>(token) + 1);
}

// Which pair the next attempt uses: the old target when it is still good, else the holder when holders adopt; the old
// source first. In a second round bad pairs are forgotten: a pair that failed is better than none.
bool choose_pair(State& state, bool keep_target, int& source, int& target) {
  static constexpr int kTargets[] = {2, 3, 0, 1};
  const int old_source = state.phase && state.phase != kQueued ? state.source : -1;
  int preferred = -1;
  if (keep_target) {
    preferred = state.target;
  } else if (options.holder_adopts && old_source >= 0 && state.attempt > 0 && state.phase != kWaiting) {
    preferred = old_source;
  }
  for (int round = 0; round < 2; ++round) {
    if (round) state.bad_pairs = 0;
    for (int t = -1; t < kNumNodes; ++t) {
      target = t < 0 ? preferred : kTargets[t];
      if (target < 0 || !state.is_open[target]) continue;
      for (int s = -1; s < kNumNodes; ++s) {
        source = s < 0 ? old_source : s;
        if (source < 0 || !state.is_open[source]) continue;
        if (!options.without.bad_pairs && state.bad_pairs >> (source * 4 + target) & 1) continue;
        const bool needs_window = state.phase == kQueued || options.without.credits_first_only;
        if (options.credits && needs_window && !state.has_window) continue;
        return true;
      }
    }
  }
  return false;
}

}  // namespace

int link_bit(int a, int b) { return std::min(a, b) * 4 + std::max(a, b); }
bool is_linked(const State& state, int a, int b) { return a == b || !(state.cut >> link_bit(a, b) & 1); }

void send_to_gateway(State& state, int node, Kind kind, uint8_t attempt, uint8_t number, const Chain& chain) {
  state.to_gateway[node].push_back(
      {kind, static_cast<uint8_t>(node), kGateway, state.nodes[node].session, attempt, number, chain});
}

void send_to_node(State& state, int node, Kind kind, uint8_t attempt, uint8_t number, const Chain& chain) {
  if (!state.is_open[node]) return;
  state.to_node[node].push_back(
      {kind, kGateway, static_cast<uint8_t>(node), state.session[node], attempt, number, chain});
}

void clear_job(Node& node) {
  node.job = node.job_target = node.job_tokens = node.job_pushed = 0;
  node.job_sent_first = node.job_committed = node.job_broken = 0;
  node.job_chain = {};
}

void free_slot(Node& node) {
  const uint8_t writers = node.writers;
  const uint8_t attempt = node.attempt;
  node.slot = kFree;
  node.attempt = node.received = node.has_started = node.has_commit = node.next = node.holder = node.writers = 0;
  node.chain = {};
  if (options.without.quarantine && writers) {
    node.slot = kQuarantined;
    node.writers = writers;
    node.attempt = attempt;
  }
}

void release_everywhere(State& state) {
  state.phase = kDone;
  for (int k = 0; k < kNumNodes; ++k) send_to_node(state, k, kRelease, state.attempt, 0);
}

void start_attempt(State& state, bool keep_target, bool is_new_attempt) {
  const bool is_queued = state.phase == kQueued;
  const int old_source = state.phase && !is_queued ? state.source : -1;
  int source = -1, target = -1;
  const bool has_pair = choose_pair(state, keep_target, source, target);
  if (is_queued && !has_pair) return;
  if (is_new_attempt) ++state.attempt;
  if (state.attempt > 14) {
    violation = "attempts without bound";
    return;
  }
  if (!has_pair) {
    state.phase = kWaiting;
    return;
  }
  const auto before = static_cast<uint8_t>(state.attempt - 1);
  if (old_source >= 0 && old_source != source) {
    send_to_node(state, old_source, kRelease, is_new_attempt ? before : state.attempt, 0);
  }
  if (keep_target && state.target != target) send_to_node(state, state.target, kRelease, before, 0);
  state.source = static_cast<uint8_t>(source);
  state.target = static_cast<uint8_t>(target);
  state.phase = kReserving;
  send_to_node(state, target, kReserve, state.attempt, static_cast<uint8_t>(state.out.size | source << 4));
}

void gateway_receives(State& state, const Message& message) {
  const int k = message.from;
  const bool is_current_session = state.is_open[k] && message.session == state.session[k];
  if (state.phase == kGatewayDead || state.phase == kDone) return;
  const bool is_token = message.kind == kFirst || message.kind == kToken;
  if (options.without.token_fence && is_token) {
    const bool is_current = message.attempt == state.attempt && is_current_session;
    if (message.kind == kToken && k == state.target && is_current) state.phase = kDecoding;
    emit(state, message);
    return;
  }
  if (!is_current_session || message.attempt != state.attempt) return;
  const bool is_target = k == state.target;
  if (message.kind == kReserveOk && state.phase == kReserving && is_target) {
    state.phase = kPrefilling;
    send_to_node(state, state.source, kPrefill, state.attempt, state.target, state.out);
  } else if (message.kind == kReserveNo && state.phase == kReserving && is_target) {
    int other = k;
    do other = (other + 1) % kNumNodes;
    while (other != k && !state.is_open[other]);
    state.target = static_cast<uint8_t>(other);
    send_to_node(state, other, kReserve, state.attempt, static_cast<uint8_t>(state.out.size | state.source << 4));
  } else if (message.kind == kRunning && state.phase == kReserving && is_target) {
    state.phase = kDecoding;
  } else if (message.kind == kFirst && (state.phase == kPrefilling || state.phase == kDecoding)) {
    emit(state, message);
  } else if (message.kind == kToken && is_target) {
    if (state.phase == kPrefilling || state.phase == kReserving) state.phase = kDecoding;
    emit(state, message);
  } else if (message.kind == kXferFailed && state.phase == kPrefilling && k == state.source) {
    state.bad_pairs |= static_cast<uint16_t>(1 << (state.source * 4 + state.target));
    start_attempt(state, true, true);
  }
}

void node_receives(State& state, int k, const Message& message) {
  Node& node = state.nodes[k];
  if (message.session < node.session) return;
  if (message.session > node.session) {  // a newer Hello: what the older session held is dropped
    node.session = message.session;
    clear_job(node);
    node.pin = node.have = 0;
    node.held = {};
    if (node.slot == kOurs) free_slot(node);
  }
  if (message.kind == kReserve) on_reserve(state, k, message);
  if (message.kind == kPrefill) on_prefill(node, message);
  if (message.kind == kRelease) release(node, message.attempt);
  if (message.kind == kHold) on_hold(node, message);
  if (message.kind == kSetMirror) on_set_mirror(state, k, message);
}

void peer_receives(State& state, const Message& message) {
  const int k = message.to;
  Node& node = state.nodes[k];
  const bool is_current = node.slot == kOurs && node.attempt == message.attempt;
  if (message.kind == kPush) {
    if (options.without.fenced_writes && node.slot == kOther) {
      violation = "I3: a late write reached another request's block";
      return;
    }
    if (is_current) {
      node.received |= static_cast<uint8_t>(1 << message.number);
      try_start_decode(state, k);
    }
  } else if (message.kind == kCommit && is_current && !node.has_started) {
    node.has_commit = 1;
    node.chain = message.chain;
    node.holder = message.from;
    try_start_decode(state, k);
  } else if (message.kind == kCommitAck && node.job == message.attempt) {
    clear_job(node);
  } else if (message.kind == kMirror) {
    on_mirror(node, message);
  }
}

}  // namespace protocol_model
