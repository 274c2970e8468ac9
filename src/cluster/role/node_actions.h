#pragma once
// What a node wants done and what it is told, as values. The driver (sockets and an engine, or the simulator) carries
// the actions out in order before the next event.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/handoff/messages.h"
#include "cluster/role/kv_tables.h"

namespace tandem::role {

struct SendSession {
  std::string gateway;
  uint64_t stream = 0;
  handoff::SessionMessage message;
};
struct CloseSession {
  std::string gateway;
  uint64_t stream = 0;
};
struct SendPeer {
  handoff::NodeRef peer;
  handoff::PeerMessage message;
};
// Read a block's layer group, checksum it, send it as `push` with the payload.
struct SendBlock {
  handoff::NodeRef peer;
  handoff::Push push;
  kv::BlockId block{};
};
struct SendKv {  // a mirror frame and the slots its payload is made of
  handoff::NodeRef peer;
  handoff::Mirror frame;
  std::vector<Slots> slots;
  bool is_catch_up = false;  // at most a fifth of the link while other frames wait for it
};
struct CopyBlock {  // a verified frame's bytes into a block's layer group
  kv::BlockId block{};
  uint32_t layer_group = 0;
  handoff::Payload payload;
};
struct CopyKv {
  std::vector<Slots> slots;
  handoff::Payload payload;
};

// To the engine.
struct StartPrefill {
  handoff::RequestId request;
  handoff::Attempt attempt = 0;
  handoff::RequestState state;
  KvTables tables;
  std::vector<uint32_t> computed;  // positions by choice whose KV is in the tables already
  int32_t priority = 0;            // lower goes first
};
struct StopPrefill {
  handoff::RequestId request;
};
struct StartDecode {
  handoff::RequestId request;
  handoff::RequestState state;
  KvTables tables;  // with room for the next token
};
struct ExtendTable {
  handoff::RequestId request;
  uint32_t choice = 0;
  kv::BlockId block{};
};
struct StopDecoding {
  handoff::RequestId request;
};
using NodeAction = std::variant<SendSession, CloseSession, SendPeer, SendBlock, SendKv, CopyBlock, CopyKv, StartPrefill,
                                StopPrefill, StartDecode, ExtendTable, StopDecoding>;
using NodeActions = std::vector<NodeAction>;

// From the engine. Times: of the clock that the node is told; 0: not said.
struct PartsComputed {
  handoff::RequestId request;
  handoff::Attempt attempt = 0;
  uint32_t layer_group = 0;
  std::vector<uint32_t> blocks;  // numbers in the shape
};
struct Sampled {
  handoff::RequestId request;
  handoff::Attempt attempt = 0;
  std::vector<handoff::TokenEntry> first;     // of each unfinished choice
  handoff::Nanos began_at = 0, ended_at = 0;  // the first step with the prompt; the one that sampled
};
struct StepTokens {  // of one request in one step
  handoff::RequestId request;
  std::vector<handoff::TokenEntry> tokens;
  handoff::Nanos began_at = 0;
};
struct JobFailed {  // this request cannot be computed here: its prefill and its decode are gone
  handoff::RequestId request;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};
using EngineNews = std::variant<PartsComputed, Sampled, StepTokens, JobFailed>;

struct EngineProgress {
  uint64_t step_seq = 0;
  // 0: none runs. 1 also while all there is waits for grammars to be compiled: the engine gets on.
  uint32_t step_running_ms = 0, step_predicted_ms = 0;
};

}  // namespace tandem::role
