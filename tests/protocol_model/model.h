#pragma once
// An executable model of docs/protocol.md: one request, one gateway, four nodes of which each can take any role, and
// one other request that competes for the decode slots. Small enough that every interleaving can be explored.
//
// Sampling is not assumed to be deterministic: a token's value is the attempt that sampled it. So what is checked is
// stronger than exactly-once: the client's stream must be one chain, each token sampled from exactly the emitted
// prefix.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace protocol_model {

constexpr int kNumNodes = 4;   // P1 P2 D1 D2
constexpr int kMaxTokens = 4;  // bound of Options::num_tokens

enum Phase : uint8_t { kIdle, kReserving, kPrefilling, kDecoding, kDone, kWaiting, kGatewayDead, kQueued };
enum Kind : uint8_t {
  kReserve = 1, kPrefill, kRelease, kReserveOk, kReserveNo, kRunning, kFirst, kToken, kXferFailed,
  kPush, kCommit, kCommitAck, kMirror, kSetMirror, kHold,
};
enum Slot : uint8_t { kFree, kOurs, kOther, kQuarantined };
enum Life : uint8_t { kDead, kRuns, kStopped };

// Each rule of the protocol that can be left out, to see an invariant break without it.
struct LeftOut {
  bool fenced_writes = false;      // peers write into each other's memory
  bool acks = false;               // the source forgets its job without CommitAck
  bool repeated_first = false;     // the target's stream starts after the committed index
  bool new_attempt = false;        // a lost source is replaced within the same attempt
  bool gate = false;               // decode starts without a full bitmap
  bool bad_pairs = false;          // a pair whose transfer failed may be chosen again at once
  bool token_fence = false;        // tokens of any session and attempt are taken
  bool lease = false;              // nodes keep what no gateway asks for
  bool mirror_fence = false;       // mirror frames are appended whatever the pin's attempt
  bool connection_ids = false;     // a broken connection is rebuilt in silence
  bool ordered_stream = false;     // messages to a node are unary calls: they reorder
  bool content_match = false;      // the cached prefix is used without comparing token ids
  bool credits_first_only = false; // credits also hold back attempts after the first
  bool quarantine = false;         // not a rule left out but added: with unfenced writes, blocks wait for their writers
};

struct Options {
  int num_tokens = 3;   // to produce
  int num_parts = 2;    // of the prompt. Position i + num_parts is the KV of token i
  int max_faults = 1;
  bool holder_adopts = false;  // after loss of the target the holder itself becomes the target
  bool set_mirror = false;     // the gateway may name another holder while the target decodes
  bool credits = false;        // nodes may close their window; the first attempt waits for an open one
  LeftOut without;
};
extern Options options;

struct Chain {
  uint8_t size = 0;
  uint8_t values[kMaxTokens] = {};
};

struct Message {
  Kind kind;
  uint8_t from, to, session, attempt, number;  // number: position, index, node: as the kind needs
  Chain chain;
};

struct Node {
  uint8_t life = kRuns, session = 0;  // the session it serves
  // As source.
  uint8_t job = 0;  // attempt, 0: none
  uint8_t job_target = 0, job_tokens = 0, job_pushed = 0, job_sent_first = 0, job_committed = 0, job_broken = 0;
  Chain job_chain;
  // As holder: positions cached, the attempt that pins them, their tokens.
  uint8_t have = 0, pin = 0;
  Chain held;
  // As target.
  uint8_t slot = kFree, attempt = 0, received = 0, has_started = 0, has_commit = 0, next = 0, holder = 0, writers = 0;
  Chain chain;
};

struct State {
  uint8_t phase = kIdle, attempt = 0, source = 0, target = 0, other_left = 1, faults = 0;
  Chain out;  // what the client has
  std::array<uint8_t, kNumNodes> is_open = {1, 1, 1, 1}, session = {1, 1, 1, 1};
  uint16_t bad_pairs = 0;  // bit source * 4 + target
  uint8_t cut_from_gateway = 0;
  uint16_t cut = 0;  // links between nodes
  uint8_t has_window = 1, has_window_closing = 1;  // nodes take first attempts; read when there are credits
  Node nodes[kNumNodes];
  std::vector<Message> to_node[kNumNodes], to_gateway[kNumNodes], data;
};

// rules.cc: what each party does. A broken invariant is left in `violation`.
extern std::string violation;
bool is_linked(const State& state, int a, int b);
int link_bit(int a, int b);
void send_to_gateway(State& state, int node, Kind kind, uint8_t attempt, uint8_t number, const Chain& chain = {});
void send_to_node(State& state, int node, Kind kind, uint8_t attempt, uint8_t number, const Chain& chain = {});
void clear_job(Node& node);
void free_slot(Node& node);
void release_everywhere(State& state);
void start_attempt(State& state, bool keep_target, bool is_new_attempt);
void gateway_receives(State& state, const Message& message);
void node_receives(State& state, int k, const Message& message);
void peer_receives(State& state, const Message& message);

// schedule.cc: what may happen next. Labels begin with '!' for a fault, '+' for a repair, '~' for other requests.
using Visit = std::function<void(const std::string& label, State&& next)>;
void successors(const State& state, const Visit& visit);
bool is_over(const State& state);
bool is_clean(const State& state);  // nothing held for the request on any node that lives
std::string key_of(const State& state);

// explore.cc: 0 when all invariants hold, 1 when one is broken (with a trace unless quiet).
struct Outcome {
  std::string violated;  // empty: none
  size_t size = 0;        // states explored, or steps walked
};
Outcome explore(size_t max_states, bool is_quiet);
Outcome walk(long num_schedules, uint64_t seed, bool is_quiet);

extern const char* const kKindNames[];
extern const char* const kNodeNames[];

}  // namespace protocol_model
