// What may happen next in a state: deliveries, steps of nodes, timeouts (at any moment), faults and repairs.
#include <algorithm>
#include <cstring>

#include "model.h"

namespace protocol_model {
namespace {

using Change = std::function<void(State&)>;

// An action that can never have an effect any more is dropped at once, which keeps the number of states down. Sound
// because sessions, attempts and pins only grow.
void drop_dead_messages(State& state) {
  const LeftOut& without = options.without;
  for (int k = 0; k < kNumNodes; ++k) {
    const Node& node = state.nodes[k];
    auto& in = state.to_node[k];
    if (!node.life) in.clear();
    std::erase_if(in, [&](const Message& m) { return m.session < node.session; });
    auto& out = state.to_gateway[k];
    if (is_over(state)) out.clear();
    if (without.token_fence) continue;
    std::erase_if(out, [&](const Message& m) {
      return m.session != state.session[k] || !state.is_open[k] || m.attempt < state.attempt;
    });
  }
  std::erase_if(state.data, [&](const Message& m) {
    const Node& node = state.nodes[m.to];
    if (!node.life) return true;
    if (m.kind == kCommitAck) return node.job != m.attempt;
    if (without.fenced_writes || without.mirror_fence || without.new_attempt) return false;
    if (m.kind == kPush || m.kind == kCommit) {
      return node.slot != kOurs || node.attempt != m.attempt || node.has_started;
    }
    if (m.kind == kMirror) {
      const bool may_come = options.set_mirror ? node.pin <= m.attempt : node.pin == m.attempt;
      return !may_come || (node.pin == m.attempt && node.have > m.number);
    }
    return false;
  });
}

struct Forks {
  const State& state;
  const Visit& visit;
  void operator()(const std::string& label, const Change& change) const {
    State next = state;
    violation.clear();
    change(next);
    drop_dead_messages(next);
    visit(label, std::move(next));
  }
};

std::string described(const Message& m) {
  return std::string(kNodeNames[m.from]) + ">" + kNodeNames[m.to] + " " + kKindNames[m.kind] + " a" +
         std::to_string(m.attempt) + " " + std::to_string(m.number);
}

bool is_cut_from_gateway(const State& state, int k) { return state.cut_from_gateway >> k & 1; }
bool has_faults_left(const State& state) { return state.faults < options.max_faults; }
bool is_live_request(const State& state) { return state.phase != kIdle && !is_over(state); }

void session_deliveries(const Forks& fork, int k) {
  const State& state = fork.state;
  const Node& node = state.nodes[k];
  const bool is_closed = !state.is_open[k] || state.phase == kGatewayDead;
  if (!state.to_node[k].empty()) {
    if (node.life == kDead) fork(std::string("lost to ") + kNodeNames[k], [&](State& s) { s.to_node[k].clear(); });
    if (node.life == kRuns && !is_cut_from_gateway(state, k)) {
      const size_t num_first = options.without.ordered_stream ? state.to_node[k].size() : 1;
      for (size_t i = 0; i < num_first; ++i) {
        fork(described(state.to_node[k][i]), [&](State& s) {
          const Message m = s.to_node[k][i];
          s.to_node[k].erase(s.to_node[k].begin() + static_cast<long>(i));
          node_receives(s, k, m);
        });
      }
    }
    if (is_closed && node.life) {
      fork(std::string("dropped with the session to ") + kNodeNames[k], [&](State& s) { s.to_node[k].clear(); });
    }
  }
  if (!state.to_gateway[k].empty() && (!is_cut_from_gateway(state, k) || is_closed)) {
    fork(described(state.to_gateway[k][0]), [&](State& s) {
      const Message m = s.to_gateway[k][0];
      s.to_gateway[k].erase(s.to_gateway[k].begin());
      gateway_receives(s, m);
    });
  }
}

Chain with_token(const Chain& chain, uint8_t attempt, int k) {
  Chain longer = chain;
  const bool may_repeat = options.without.new_attempt;
  longer.values[longer.size++] = static_cast<uint8_t>(attempt * (may_repeat ? 4 : 1) + (may_repeat ? k : 0));
  return longer;
}

void compute_and_push(State& state, int k) {
  Node& node = state.nodes[k];
  const int token = node.job_pushed - options.num_parts;
  if (node.have <= node.job_pushed) {
    node.have = static_cast<uint8_t>(node.job_pushed + 1);
    if (token >= 0) {
      node.held.size = static_cast<uint8_t>(token + 1);
      node.held.values[token] = node.job_chain.values[token];
    }
  }
  if (token >= 0 && node.held.values[token] != node.job_chain.values[token]) {
    violation = "I6: pushed KV was computed from other tokens";
    return;
  }
  state.data.push_back({kPush, static_cast<uint8_t>(k), node.job_target, 0, node.job, node.job_pushed, {}});
  ++node.job_pushed;
}

void source_steps(const Forks& fork, int k) {
  const State& state = fork.state;
  const Node& node = state.nodes[k];
  if (!node.job) return;
  const std::string name = kNodeNames[k];
  const int need = options.num_parts + node.job_tokens;
  const bool has_link = is_linked(state, k, node.job_target) && state.nodes[node.job_target].life && !node.job_broken;
  const bool has_pushed = node.job_pushed == need;
  if (!has_pushed && has_link) {
    fork(name + " computes and pushes " + std::to_string(node.job_pushed), [&](State& s) { compute_and_push(s, k); });
  }
  if (has_pushed && !node.job_sent_first) {
    fork(name + " sends First a" + std::to_string(node.job), [&](State& s) {
      Node& q = s.nodes[k];
      q.job_sent_first = 1;
      send_to_gateway(s, k, kFirst, q.job, q.job_tokens, with_token(q.job_chain, q.job, k));
    });
  }
  if (has_pushed && !node.job_committed && has_link) {
    fork(name + " sends Commit a" + std::to_string(node.job), [&](State& s) {
      Node& q = s.nodes[k];
      q.job_committed = 1;
      const Chain chain = with_token(q.job_chain, q.job, k);
      s.data.push_back({kCommit, static_cast<uint8_t>(k), q.job_target, 0, q.job, q.job_tokens, chain});
    });
  }
  const bool may_forget = options.without.acks && node.job_committed;
  if (may_forget && node.job_sent_first) {
    fork(name + " forgets the job without an ack", [&](State& s) { clear_job(s.nodes[k]); });
  }
  if (!has_link && !may_forget) {
    fork(name + " sees the data link fail", [&](State& s) {
      send_to_gateway(s, k, kXferFailed, s.nodes[k].job, 0);
      clear_job(s.nodes[k]);
    });
  }
}

bool is_quiet(const State& state, int k, int writer) {  // this writer can reach node k's memory no more
  const Node& node = state.nodes[writer];
  if (node.life && node.job && node.job_target == k) return false;
  for (const Message& m : state.to_node[writer]) {
    if (node.life && m.kind == kPrefill && m.number == k) return false;
  }
  return std::none_of(state.data.begin(), state.data.end(),
                      [&](const Message& m) { return m.kind == kPush && m.from == writer && m.to == k; });
}

void target_steps(const Forks& fork, int k) {
  const State& state = fork.state;
  const Node& node = state.nodes[k];
  const std::string name = kNodeNames[k];
  if (node.slot == kOurs && node.has_started && node.next < options.num_tokens) {
    fork(name + " decodes token " + std::to_string(node.next), [&](State& s) {
      Node& q = s.nodes[k];
      const auto position = static_cast<uint8_t>(options.num_parts + q.next - 1);
      if (q.holder != k && is_linked(s, k, q.holder)) {
        s.data.push_back({kMirror, static_cast<uint8_t>(k), q.holder, 0, q.attempt, position, q.chain});
      }
      q.chain = with_token(q.chain, q.attempt, k);
      send_to_gateway(s, k, kToken, q.attempt, q.next, q.chain);
      if (++q.next == options.num_tokens) free_slot(q);
    });
  }
  const bool has_lost_gateway =
      !state.is_open[k] || node.session != state.session[k] || state.phase == kGatewayDead;
  if (has_lost_gateway && !options.without.lease && (node.job || node.pin || node.slot == kOurs)) {
    fork(name + "'s lease ends", [&](State& s) {
      Node& q = s.nodes[k];
      clear_job(q);
      q.pin = q.have = 0;
      q.held = {};
      if (q.slot == kOurs) free_slot(q);
    });
  }
  if (node.slot == kQuarantined) {
    bool are_quiet = true;
    for (int w = 0; w < kNumNodes; ++w) are_quiet &= !(node.writers >> w & 1) || is_quiet(state, k, w);
    if (are_quiet) {
      fork(name + "'s quarantine ends", [&](State& s) {
        s.nodes[k].slot = kFree;
        s.nodes[k].writers = s.nodes[k].attempt = 0;
      });
    }
  }
  if (node.slot == kFree && state.other_left && k >= 2) {
    fork("~another request takes the block of " + name, [&](State& s) {
      s.nodes[k].slot = kOther;
      --s.other_left;
    });
  }
}

// What the gateway knows of the nodes' windows changes with their beats, at any moment. Overload: all close, once.
void window_steps(const Forks& fork) {
  const State& state = fork.state;
  if (!options.credits) return;
  if (state.has_window_closing) {
    fork("~every node closes its window", [&](State& s) { s.has_window_closing = s.has_window = 0; });
  }
  if (state.has_window) return;
  // Once a stream runs it may not depend on a window: opening counts as a repair, which L1 has to do without.
  fork(std::string(state.phase == kQueued ? "~" : "+") + "the nodes open their windows",
       [&](State& s) { s.has_window = 1; });
}

void suspect(State& state, int k) {
  state.is_open[k] = 0;
  if (state.phase == kWaiting || state.phase == kDone || state.phase == kQueued) return;
  if (k == state.target) {
    start_attempt(state, false, true);
  } else if (k == state.source && state.phase != kDecoding) {
    start_attempt(state, true, !options.without.new_attempt);
  }
}

void suspicion(const Forks& fork, int k) {
  const State& state = fork.state;
  if (state.phase == kGatewayDead) return;
  const std::string name = kNodeNames[k];
  const bool is_sick = state.nodes[k].life != kRuns || is_cut_from_gateway(state, k);
  const bool is_used = k == state.target || k == state.source;
  if (state.is_open[k] && is_sick) fork("G suspects " + name, [&](State& s) { suspect(s, k); });
  if (state.is_open[k] && !is_sick && is_used && has_faults_left(state) && state.phase && state.phase != kDone) {
    fork("!false suspicion of " + name, [&](State& s) {
      ++s.faults;
      suspect(s, k);
    });
  }
  if (!state.is_open[k] && !is_sick && state.session[k] < 3 && state.phase != kDone) {
    fork("G reopens its session to " + name, [&](State& s) {
      s.is_open[k] = 1;
      ++s.session[k];
    });
  }
}

void planned_changes(const Forks& fork, int k) {
  const State& state = fork.state;
  if (!has_faults_left(state) || state.phase != kDecoding || !state.is_open[k]) return;
  const std::string name = kNodeNames[k];
  if (k == state.target) {
    fork("!planned move away from " + name, [&](State& s) {
      ++s.faults;
      send_to_node(s, k, kRelease, s.attempt, 0);
      s.is_open[k] = 0;
      start_attempt(s, false, true);
      s.is_open[k] = 1;
    });
  } else if (options.set_mirror && k != state.source && state.is_open[state.target]) {
    fork("!the mirror moves to " + name, [&](State& s) {
      ++s.faults;
      if (s.source != s.target) send_to_node(s, s.source, kRelease, s.attempt, 0);
      s.source = static_cast<uint8_t>(k);
      send_to_node(s, k, kHold, s.attempt, 0, s.out);
      send_to_node(s, s.target, kSetMirror, s.attempt, static_cast<uint8_t>(k));
    });
  }
}

void cut_link(State& state, int a, int b) {
  ++state.faults;
  state.cut |= static_cast<uint16_t>(1 << link_bit(a, b));
  if (!options.without.connection_ids) {
    if (state.nodes[a].job && state.nodes[a].job_target == b) state.nodes[a].job_broken = 1;
    if (state.nodes[b].job && state.nodes[b].job_target == a) state.nodes[b].job_broken = 1;
  }
  if (options.without.fenced_writes) return;
  std::erase_if(state.data,
                [&](const Message& m) { return (m.from == a && m.to == b) || (m.from == b && m.to == a); });
}

void faults_of(const Forks& fork, int k) {
  const State& state = fork.state;
  const std::string name = kNodeNames[k];
  if (!has_faults_left(state) || !is_live_request(state)) return;
  if (state.nodes[k].life) {
    fork("!kill " + name, [&](State& s) {
      ++s.faults;
      const uint8_t session = s.nodes[k].session;
      s.nodes[k] = Node();
      s.nodes[k].life = kDead;
      s.nodes[k].session = session;
    });
  }
  if (state.nodes[k].life == kRuns) {
    fork("!SIGSTOP " + name, [&](State& s) {
      ++s.faults;
      s.nodes[k].life = kStopped;
    });
  }
  if (!is_cut_from_gateway(state, k)) {
    fork("!cut G-" + name, [&](State& s) {
      ++s.faults;
      s.cut_from_gateway |= static_cast<uint8_t>(1 << k);
    });
  }
  for (int j = k + 1; j < kNumNodes; ++j) {
    const bool is_used =
        (state.source == k && state.target == j) || (state.source == j && state.target == k);
    if (is_used && is_linked(state, k, j)) {
      fork("!cut " + name + "-" + kNodeNames[j], [&](State& s) { cut_link(s, k, j); });
    }
  }
}

void repairs_of(const Forks& fork, int k) {
  const State& state = fork.state;
  const std::string name = kNodeNames[k];
  if (state.nodes[k].slot == kOther) {
    fork("~the other request on " + name + " ends", [&](State& s) { s.nodes[k].slot = kFree; });
  }
  if (state.nodes[k].life == kStopped) fork("+SIGCONT " + name, [&](State& s) { s.nodes[k].life = kRuns; });
  if (is_cut_from_gateway(state, k)) {
    fork("+heal G-" + name, [&](State& s) { s.cut_from_gateway &= static_cast<uint8_t>(~(1 << k)); });
  }
  for (int j = k + 1; j < kNumNodes; ++j) {
    if (is_linked(state, k, j)) continue;
    fork("+heal " + name + "-" + kNodeNames[j],
         [&](State& s) { s.cut &= static_cast<uint16_t>(~(1 << link_bit(k, j))); });
  }
}

void gateway_and_client(const Forks& fork) {
  const State& state = fork.state;
  if (state.phase == kIdle) {
    fork("the client asks", [&](State& s) {
      s.source = 0;
      s.target = 2;
      if (options.credits) s.phase = kQueued;
      else start_attempt(s, false, true);
    });
    return;
  }
  if (is_over(state)) return;
  if (has_faults_left(state)) {
    fork("!kill G", [&](State& s) {
      ++s.faults;
      s.phase = kGatewayDead;
      for (int k = 0; k < kNumNodes; ++k) {
        s.is_open[k] = 0;
        s.to_gateway[k].clear();
      }
    });
  }
  fork("!the client cancels", [&](State& s) { release_everywhere(s); });
  window_steps(fork);
  const bool has_session = std::any_of(state.is_open.begin(), state.is_open.end(), [](uint8_t open) { return open; });
  if ((state.phase == kWaiting || state.phase == kQueued) && has_session) {
    fork("G starts", [&](State& s) { start_attempt(s, false, true); });
  }
}

void data_deliveries(const Forks& fork) {
  const State& state = fork.state;
  const bool is_onesided = options.without.fenced_writes;
  for (size_t i = 0; i < state.data.size(); ++i) {
    const Message& m = state.data[i];
    const bool is_seen = std::any_of(state.data.begin(), state.data.begin() + static_cast<long>(i),
                                     [&](const Message& other) { return !std::memcmp(&m, &other, sizeof m); });
    if (is_seen) continue;
    const auto erase = [i](State& s) { s.data.erase(s.data.begin() + static_cast<long>(i)); };
    const uint8_t life = state.nodes[m.to].life;
    const bool has_link = is_linked(state, m.from, m.to);
    const bool is_written = is_onesided && m.kind == kPush;  // the receiver need not run
    const bool is_writer_stopped = is_written && state.nodes[m.from].life == kStopped;
    if (life == kDead) {
      fork(described(m) + " lost", erase);
    } else if ((life == kRuns || is_written) && has_link && !is_writer_stopped) {
      fork(described(m), [&](State& s) {
        const Message copy = s.data[i];
        erase(s);
        peer_receives(s, copy);
      });
    } else if (!has_link) {
      fork(described(m) + " lost on a cut link", erase);
    }
  }
}

void put(std::string& out, const Chain& chain) {
  out.push_back(static_cast<char>(chain.size));
  out.append(reinterpret_cast<const char*>(chain.values), chain.size);
}

void put(std::string& out, const Message& m) {
  for (const uint8_t byte : {static_cast<uint8_t>(m.kind), static_cast<uint8_t>(m.from * 16 + m.to), m.session,
                             m.attempt, m.number}) {
    out.push_back(static_cast<char>(byte));
  }
  put(out, m.chain);
}

void put(std::string& out, const std::vector<Message>& messages) {
  out.push_back(static_cast<char>(messages.size()));
  for (const Message& m : messages) put(out, m);
}

}  // namespace

bool is_over(const State& state) { return state.phase == kDone || state.phase == kGatewayDead; }

bool is_clean(const State& state) {
  return std::none_of(std::begin(state.nodes), std::end(state.nodes), [](const Node& node) {
    return node.life && (node.job || node.pin || node.slot == kOurs || node.slot == kQuarantined);
  });
}

void successors(const State& state, const Visit& visit) {
  const Forks fork{state, visit};
  for (int k = 0; k < kNumNodes; ++k) {
    session_deliveries(fork, k);
    if (state.nodes[k].life == kRuns) {
      source_steps(fork, k);
      target_steps(fork, k);
    }
    repairs_of(fork, k);
    suspicion(fork, k);
    planned_changes(fork, k);
    faults_of(fork, k);
  }
  gateway_and_client(fork);
  data_deliveries(fork);
}

std::string key_of(const State& state) {
  std::string out;
  out.reserve(256);
  const auto add = [&](std::initializer_list<int> bytes) {
    for (const int byte : bytes) out.push_back(static_cast<char>(byte));
  };
  add({state.phase, state.attempt, state.source, state.target, state.other_left, state.faults});
  put(out, state.out);
  for (int k = 0; k < kNumNodes; ++k) add({state.is_open[k], state.session[k]});
  add({state.bad_pairs & 255, state.bad_pairs >> 8, state.cut_from_gateway, state.cut & 255, state.cut >> 8});
  if (options.credits) add({state.has_window, state.has_window_closing});
  for (const Node& n : state.nodes) {
    add({n.life, n.session, n.job, n.job_target, n.job_tokens, n.job_pushed, n.job_sent_first, n.job_committed,
         n.job_broken, n.have, n.pin, n.slot, n.attempt, n.received, n.has_started, n.has_commit, n.next, n.holder,
         n.writers});
    put(out, n.job_chain);
    put(out, n.held);
    put(out, n.chain);
  }
  for (int k = 0; k < kNumNodes; ++k) {
    put(out, state.to_node[k]);
    put(out, state.to_gateway[k]);
  }
  std::vector<std::string> data;  // unordered: one key for all orders
  for (const Message& m : state.data) put(data.emplace_back(), m);
  std::sort(data.begin(), data.end());
  for (const std::string& text : data) out += text;
  return out;
}

}  // namespace protocol_model
