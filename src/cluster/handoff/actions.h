#pragma once
// What a state machine of a hand-off wants done. Values: whoever drives the machine carries them out, in order, before
// the next event.

#include <utility>
#include <variant>
#include <vector>

#include "cluster/handoff/messages.h"

namespace tandem::handoff {

struct ToGateway {  // on the session that owns the request
  SessionMessage message;
};
struct ToPeer {
  NodeRef peer;
  PeerMessage message;
};
struct CopyIn {  // the frame is verified: its bytes go to this part of the request's blocks
  uint32_t block = 0, layer_group = 0;
  Payload payload;
};
struct BeginDecode {  // the bitmap is full and the commit is here
  RequestState state;  // with the first tokens appended
};
struct BeginPrefill {
  RequestState state;
};
struct AbortPrefill {};
struct StopDecode {};
struct PushPart {  // read this part of the request's blocks and send it, checksummed
  NodeRef peer;
  uint64_t landing = 0;
  uint32_t block = 0, layer_group = 0;
};
struct AppendMirror {  // the holder takes these positions' KV
  uint32_t choice = 0, from_position = 0;
  std::vector<TokenId> tokens;
  Payload payload;
};
struct SendMirror {  // read these positions' KV of the running request and send it
  NodeRef holder;
  Mirror frame;
  bool is_catch_up = false;  // of a new holder: gives way to other frames
};
using Action = std::variant<ToGateway, ToPeer, CopyIn, BeginDecode, BeginPrefill, AbortPrefill, StopDecode, PushPart,
                            AppendMirror, SendMirror>;
using Actions = std::vector<Action>;

}  // namespace tandem::handoff
