#pragma once
// The parts that several messages share, to and from protobuf. `put` fills an empty message, `take` checks each field
// and names the first that is wrong. Internal to cluster/wire: the generated header is slow to compile.

#include <proto/session.pb.h>

#include "base/result.h"
#include "cluster/handoff/messages.h"

namespace tandem::wire {

Error bad_field(const char* field, const std::string& what);
Status check_range(const char* field, uint64_t value, uint64_t lowest, uint64_t highest);
// Token ids index tables, so no negative one gets in. Their upper end is the model's to check.
Status take_tokens(const char* field, const google::protobuf::RepeatedField<int32_t>& from, std::vector<TokenId>& to);

void put(const handoff::RequestId& from, pb::RequestId& to);
void put(const handoff::NodeRef& from, pb::NodeRef& to);
void put(const handoff::SessionId& from, pb::SessionId& to);
void put(const handoff::Fingerprint& from, pb::Fingerprint& to);
void put(const handoff::PartSet& from, pb::PartSet& to);
void put(const handoff::HandoffShape& from, pb::Shape& to);
void put(const SamplingParams& from, pb::Sampling& to);
void put(const handoff::RequestState& from, pb::RequestState& to);
void put(const handoff::TokenEntry& from, pb::TokenEntry& to);

Status take(const pb::RequestId& from, handoff::RequestId& to);
Status take(const pb::NodeRef& from, handoff::NodeRef& to);
Status take(const pb::SessionId& from, handoff::SessionId& to);
Status take(const pb::Fingerprint& from, handoff::Fingerprint& to);
Status take(const pb::PartSet& from, handoff::PartSet& to);
Status take(const pb::Shape& from, handoff::HandoffShape& to);
Status take(const pb::Sampling& from, SamplingParams& to);
Status take(const pb::RequestState& from, handoff::RequestState& to);
Status take(const pb::TokenEntry& from, handoff::TokenEntry& to);

// A submessage that must be there.
template <class From, class To>
Status take_present(const char* field, bool is_present, const From& from, To& to) {
  if (!is_present) return bad_field(field, "is missing");
  if (auto status = take(from, to); !status) return std::move(status).error().during(field);
  return Done{};
}

}  // namespace tandem::wire

// TAKE(from, to, name): to.name from the submessage `name`, which must be there; returns the Error from this function.
#define TAKE(from, to, name) TRY(::tandem::wire::take_present(#name, (from).has_##name(), (from).name(), (to).name))
