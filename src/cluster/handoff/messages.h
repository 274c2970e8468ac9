#pragma once
// The messages of docs/protocol.md, section 3, as plain structs. Session messages travel on the ordered stream of a
// gateway-node pair, peer messages between nodes. KV bytes are referenced by a Payload, never held here.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/sampling_params.h"
#include "cluster/handoff/ids.h"
#include "cluster/handoff/shape.h"

namespace tandem::handoff {

enum class Role : uint8_t { kPrefill, kDecode, kMixed };
// kStop: by the token itself, an end token or a stop id; kStopRule: by a stop string that it completes; kComplete: the
// grammar lets nothing follow the token, which belongs to the answer.
enum class Finish : uint8_t { kNone, kStop, kLength, kStopRule, kComplete };
enum class GrammarKind : uint8_t { kNone, kJsonSchema, kRegex, kLark, kChoice };
// Parts of a request's way that a node measures, on its own clock. kUnknown: of a newer peer.
enum class Part : uint8_t {
  kUnknown,
  kPrefillQueue,  // source: told to prefill -> its first step with the prompt begins
  kPrefill,       // source: that step's begin -> the first token is sampled
  kPush,          // source: sampled -> the target acknowledges all KV
  kTransfer,      // target: the prefill is over -> the gate opens, what the source waited to say so included
  kDecodeQueue,   // target: gate open -> its first step with the request begins
  kFirstEmit,     // target: that step's begin -> its tokens go to the gateway
  kDecode,        // target: gate open -> the last token
};
// What an embedding is made of: as sched::Pooling.
enum class Pooling : uint8_t { kNone, kLast, kMean };
enum class ReserveRefusal : uint8_t { kNoRoom, kDraining, kNeverFits, kUnknownFormat };

// Bytes that a transport holds: where a received frame lies, or which block a frame is made of. Valid until the
// actions of the step that got it are done.
struct Payload {
  uint64_t handle = 0;
  uint32_t size_bytes = 0;
};

// All that must be equal for two nodes to hand KV over. Compared field by field, so that the difference can be named.
struct Fingerprint {
  std::string weights, kv_layout, kv_dtype, numerics;
  uint32_t block_size = 16, num_layers = 0, num_kv_heads = 0;
  uint32_t tp = 1, pp = 1;  // may differ: KV is re-sharded on the way
  bool operator==(const Fingerprint&) const = default;
};
// The name of a field that forbids the hand-off; empty: none does.
std::string differing_field(const Fingerprint& a, const Fingerprint& b);

struct ChoiceState {
  std::vector<TokenId> tokens;  // emitted
  bool is_finished = false;
};

// RequestState v1: what a node needs to go on with a request. Everything else is derived from tokens.
struct RequestState {
  uint32_t version = 1;
  std::string model, adapter;
  std::vector<TokenId> prompt;
  SamplingParams sampling;  // the seed is always set: the gateway draws it when the client gives none
  uint32_t max_tokens = 0, min_tokens = 0;
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::string> stop_strings;
  bool shows_special = false;  // special tokens give text, which can complete a stop string
  std::string grammar_source, cache_salt;
  GrammarKind grammar_kind = GrammarKind::kNone;  // of the source; what the tokens have made of it is derived
  // What the client wants of the prompt itself. It comes with choice 0's first token.
  int32_t prompt_logprobs = -1;  // k >= 0: each prompt token's log-probability but the first's, and the k best there
  Pooling pooling = Pooling::kNone;
  std::vector<ChoiceState> choices;
};
// Whether every position of the prompt has to be computed, also where its KV is known.
inline bool reads_whole_prompt(const RequestState& state) {
  const bool is_wanted = state.prompt_logprobs >= 0 || state.pooling == Pooling::kMean;
  return is_wanted && !state.choices.empty() && state.choices[0].tokens.empty();
}
HandoffShape shape_of(const RequestState& state, uint32_t block_size, uint32_t num_layer_groups);

struct PromptScore {
  TokenId token = 0;
  float logprob = 0;
  uint32_t rank = 0;
  std::vector<std::pair<TokenId, float>> top;
};

struct TokenEntry {
  RequestId request;
  Attempt attempt = 0;
  uint32_t choice = 0, index = 0;  // index: of the choice's tokens, from 0
  TokenId token = 0;
  float logprob = 0;  // natural logarithm; with rank and top only when the request asks for log-probabilities
  Finish finish = Finish::kNone;
  uint32_t rank = 0;  // 1: the most likely; 0: not said
  std::vector<std::pair<TokenId, float>> top = {};  // the k best, best first
  uint32_t num_cached = 0;  // tokens of the prompt that the first prefill found computed; with a choice's first token
  std::vector<PromptScore> prompt_scores = {};  // of the second prompt token and those after it, when asked for
  std::vector<float> embedding = {};            // as pooled
};

struct MirrorProgress {
  RequestId request;
  Attempt attempt = 0;
  NodeRef holder;
  uint32_t lag_tokens = 0;  // decoded and not yet at the holder, the largest over the choices
};

struct Beat {
  uint64_t io_seq = 0, step_seq = 0;
  uint32_t step_running_ms = 0, step_predicted_ms = 0;
  uint32_t num_running = 0, num_waiting = 0, private_free = 0, shared_free = 0;  // load; blocks
  std::vector<MirrorProgress> mirrored;
  uint32_t credits = 0;  // unfinished Prefills this session may have here; holds back first attempts only
  uint64_t config_revision = 0;
  bool is_draining = false;
  bool is_busy = false;  // has something of this session's, and beats as fast as that asks for
};

// What a process knows: 1: all that is not named here; 2: requests with a grammar, allowed tokens, bad words, or wishes
// about the prompt itself. A node of proto 1 would answer as if they were not there.
constexpr uint32_t kProtoExtendedRequests = 2;
inline bool is_extended(const RequestState& state) {
  return state.grammar_kind != GrammarKind::kNone || state.prompt_logprobs >= 0 || state.pooling != Pooling::kNone ||
         !state.sampling.allowed.empty() || !state.sampling.bad_words.empty();
}

struct Hello {
  uint32_t proto = kProtoExtendedRequests;
  NodeRef from;
  SessionId session;
  Fingerprint fingerprint;
  Role role = Role::kMixed;
  uint64_t role_epoch = 0;
  uint32_t capacity_blocks = 0, credits = 0;
  uint32_t private_blocks = 0;  // of capacity_blocks: kept for decode
};
struct Reserve {
  RequestId request;
  Attempt attempt = 0;
  NodeRef source;
  HandoffShape shape;  // next_index and kv_tokens by choice
  uint32_t final_tokens = 0;  // predicted length of the longest choice, emitted tokens included
  uint32_t deadline_left_ms = 0;
  // For the target's prefix cache. Left out where source = target: its prefill looks for itself.
  std::vector<TokenId> prompt = {};
  std::string cache_salt = {};
  std::string traceparent = {};  // as Prefill's
};
struct ReserveOk {
  RequestId request;
  Attempt attempt = 0;
  uint64_t landing = 0;  // names the reservation in the target's memory
  PartSet have;          // need not be pushed: from an earlier attempt or the prefix cache
  uint64_t kv_token = 0; // random; who opens a KV connection for the request, either way, shows it
};
struct ReserveNo {
  RequestId request;
  Attempt attempt = 0;
  ReserveRefusal reason = ReserveRefusal::kNoRoom;
};
struct Running {
  RequestId request;
  Attempt attempt = 0;
  uint64_t kv_token = 0;  // as its ReserveOk had it
};
struct Prefill {
  RequestId request;
  Attempt attempt = 0;
  NodeRef target;
  uint64_t landing = 0, kv_token = 0;
  PartSet have;
  RequestState state;
  uint32_t deadline_left_ms = 0, priority = 0;  // priority: an int32_t's bits, lower goes first
  std::string traceparent;  // W3C; of the gateway's span
};
struct First {
  TokenEntry entry;
};
struct XferFailed {
  RequestId request;
  Attempt attempt = 0;
  NodeRef peer;
};
struct Failed {
  RequestId request;
  Attempt attempt = 0;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};
struct TokenBatch {
  uint64_t step = 0;
  std::vector<TokenEntry> entries;
  std::optional<Beat> beat;
};
struct SetMirror {  // to the target
  RequestId request;
  Attempt attempt = 0;
  NodeRef holder;
};
struct Hold {  // to a node that becomes the holder of a decode it did not prefill in this attempt
  RequestId request;
  Attempt attempt = 0;
  RequestState state;
  uint64_t kv_token = 0;  // that the target shows
};
struct Release {
  RequestId request;
  Attempt upto_attempt = 0;
};
const char* name_of(Part part);  // for people, as "prefill queue"
// One clock each: no time of day and no difference between machines.
struct PartTime {
  Part part = Part::kUnknown;
  uint64_t ended_ago_ns = 0, duration_ns = 0;  // ago: before the message was sent
};
struct Timings {  // of what has just ended; a gateway that does not know it goes on without
  RequestId request;
  Attempt attempt = 0;
  std::vector<PartTime> parts;
};
// To a node: cached blocks that nobody uses are to be found no more. One that does not know it goes on without.
struct ForgetPrefixes {};
using SessionMessage = std::variant<Hello, Reserve, ReserveOk, ReserveNo, Running, Prefill, First, XferFailed, Failed,
                                    TokenBatch, Beat, SetMirror, Hold, Release, Timings, ForgetPrefixes>;
// Whether a node that gets it has something of the request from then on, if it takes it.
bool makes_work(const SessionMessage& message);

struct Push {
  RequestId request;
  Attempt attempt = 0;
  uint64_t landing = 0;
  uint32_t block = 0, layer_group = 0;  // block: number in the shape
  uint64_t checksum = 0;                // XXH3 of the bytes
  Payload payload;
};
struct Commit {
  RequestId request;
  Attempt attempt = 0;
  uint32_t num_parts = 0;            // the manifest: both sides must mean the same shape
  std::vector<TokenEntry> first;     // of each unfinished choice
  RequestState state;                // the chain that `first` was sampled from
  uint64_t sampled_ago_ns = 0;       // how long the source had its first tokens when this frame's turn came
};
struct CommitAck {
  RequestId request;
  Attempt attempt = 0;
};
struct Stale {
  RequestId request;
  Attempt attempt = 0;
  Attempt newest = 0;  // the attempt that the answering node knows; 0: it knows nothing of the request
};
struct Mirror {
  RequestId request;
  Attempt attempt = 0;
  uint32_t choice = 0, from_position = 0;
  std::vector<TokenId> tokens;  // whose KV it is; empty: only asks how far the holder is
  Payload payload;
};
struct MirrorAck {
  RequestId request;
  Attempt attempt = 0;
  uint32_t choice = 0, upto = 0;  // positions held
};
struct MirrorStop {
  RequestId request;
  Attempt attempt = 0;
};
using PeerMessage = std::variant<Push, Commit, CommitAck, Stale, Mirror, MirrorAck, MirrorStop>;

}  // namespace tandem::handoff
