#pragma once
// Node: one process of any role as pure policy. Joins the hand-off's state machines with the KV budgets and an engine
// that the driver runs. Event and time in, actions out; no sockets, no threads, no clock.

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/handoff/holder.h"
#include "cluster/handoff/node_sessions.h"
#include "cluster/handoff/source.h"
#include "cluster/handoff/target.h"
#include "cluster/role/kv_tables.h"
#include "cluster/role/node_actions.h"

namespace tandem::role {

struct NodeConfig {
  handoff::NodeRef self;
  handoff::Fingerprint fingerprint;
  handoff::Role role = handoff::Role::kMixed;
  uint64_t role_epoch = 0;
  kv::PoolShape pool;
  uint32_t num_layer_groups = 1;
  uint32_t max_pinned_blocks = 0;  // that holders keep for decodes elsewhere; over it they go unprotected
  bool caches_prefixes = true;     // requests find what others with the same beginning left
  uint32_t credits = 4;            // unfinished Prefills per session
  double push_bytes_per_s = 1e9, bytes_per_block = 1;  // for the deadline of an acknowledgement
  handoff::Timing timing;
  // The engine computes while events come in, on a thread of its own: see KvStore::wait_for_steps. The driver calls
  // on_carried_out() after it has carried the actions of an event out.
  bool has_engine_beside = false;
  std::function<uint64_t()> draw_token;  // a token that nobody can guess; none: numbers, in simulations
  uint32_t lookahead_tokens = 0;  // a decode's table has room for so many tokens more, so that it need not wait for it
};

class Node {
 public:
  // Rules left out, to see the harness notice.
  struct TestOnly {
    bool has_no_gate = false, has_no_lease = false, has_no_session_fence = false, has_no_push_fence = false,
         keeps_entries = false, opens_gate_by_time = false;
  };

  explicit Node(NodeConfig config);

  // Session streams. `stream` is the driver's number of the connection, never used twice.
  void on_session_message(const std::string& gateway, uint64_t stream, const handoff::SessionMessage& message,
                          handoff::Nanos now, NodeActions& out);
  void on_session_closed(const std::string& gateway, uint64_t stream, handoff::Nanos now, NodeActions& out);
  // Data plane. `checksum`: of the payload as it arrived.
  void on_peer_message(const handoff::NodeRef& from, const handoff::PeerMessage& message, uint64_t checksum,
                       handoff::Nanos now, NodeActions& out);
  void on_peer_lost(const handoff::NodeRef& peer, handoff::Nanos now, NodeActions& out);
  // What a connection shows that is opened for this frame, and whether one is to be let in that shows `token` for the
  // request: the reservation's own, or that of the target whose KV is held here. 0: nothing to show, and never let in.
  uint64_t token_to_show(const handoff::PeerMessage& message) const;
  bool is_let_in(const handoff::RequestId& request, uint64_t token) const;
  // Engine thread's news, and the loop, which runs whether there is work or not.
  void on_engine(const EngineNews& news, handoff::Nanos now, NodeActions& out);
  void on_tick(const EngineProgress& progress, handoff::Nanos now, NodeActions& out);

  // With an engine beside: the number of the newest step that has begun, and how many have ended.
  void on_carried_out(uint64_t newest_step, uint64_t num_ended) {
    kv_.seal(newest_step);
    kv_.flush(num_ended);
  }

  // No new Reserve from now on. Done when is_idle().
  void drain() { is_draining_ = true; }
  void set_role(handoff::Role role, uint64_t role_epoch) {
    config_.role = role;
    config_.role_epoch = role_epoch;
  }
  // The revision of the cluster's configuration that is in force here; beats tell it.
  void set_config_revision(uint64_t revision) { config_revision_ = revision; }
  bool is_draining() const { return is_draining_; }
  bool is_idle() const { return entries_.empty() && !kv_.has_waiting(); }

  const NodeConfig& config() const { return config_; }
  const KvStore& kv() const { return kv_; }
  size_t num_entries() const { return entries_.size(); }
  size_t num_entries_of(const std::string& gateway) const;
  // Of a request decoded here: its attempt; 0: none.
  handoff::Attempt decoding_attempt(const handoff::RequestId& request) const;
  bool is_decoding() const;  // anything at all
  handoff::Attempt source_attempt(const handoff::RequestId& request) const;  // the same of a prefill
  uint32_t num_pinned_blocks() const;
  uint32_t mirror_lag() const;  // tokens decoded and not yet at their holder, the largest of all requests
  uint64_t num_stale() const { return num_stale_; }
  uint64_t num_cached_blocks() const { return num_cached_blocks_; }  // that reservations found, and nobody pushed
  // Stops the process when blocks are lost or charged twice.
  void check_invariants() const;
  std::string dump() const;

  TestOnly test_only;
  void test_only_change_kv(const KvStore::TestOnly& rules) { kv_.test_only = rules; }

 private:
  // When its parts began, of this node's clock; 0: has not happened, or has been told.
  struct PartMarks {
    handoff::Nanos told_at = 0, sampled_at = 0;               // source
    handoff::Nanos prefilled_at = 0, gate_at = 0;             // target
    bool has_stepped = false;
  };
  // All that one request has here.
  struct Entry {
    std::string gateway;
    std::optional<handoff::Source> source;
    std::optional<handoff::Holder> holder;
    KvTables held;  // the source's and holder's, charged to the shared part
    uint64_t held_token = 0;  // of the target that it goes to or comes from
    bool waits_for_room = false;
    std::optional<handoff::Target> target;
    KvTables decoding;  // charged to the private part
    uint32_t reserved = 0, final_tokens = 0;
    handoff::Nanos reserved_at = 0;
    PartMarks marks;
  };
  using Id = handoff::RequestId;
  struct MeasuredPart {
    handoff::Part part{};
    handoff::Nanos began_at = 0, ended_at = 0;
  };

  void on_hello(const std::string& gateway, uint64_t stream, const handoff::Hello& hello, handoff::Nanos now,
                NodeActions& out);
  void on_reserve(const std::string& gateway, handoff::Reserve reserve, handoff::Nanos now, NodeActions& out);
  void on_prefill(const std::string& gateway, const handoff::Prefill& prefill, handoff::Nanos now, NodeActions& out);
  void on_hold(const std::string& gateway, const handoff::Hold& hold, NodeActions& out);
  void on_release(const handoff::Release& release, NodeActions& out);
  void on_push(const handoff::NodeRef& from, const handoff::Push& push, uint64_t checksum, NodeActions& out);
  void on_mirror(const handoff::NodeRef& from, const handoff::Mirror& frame, NodeActions& out);
  void on_sampled(const Sampled& sampled, handoff::Nanos now, NodeActions& out);
  void on_step_tokens(const StepTokens& step, NodeActions& out);
  void on_job_failed(const JobFailed& failed, NodeActions& out);

  void try_start_prefill(Entry& entry, NodeActions& out);
  void pin_content(Entry& entry, handoff::Attempt attempt, const handoff::RequestState& state);
  handoff::PartSet take_cached(Entry& entry, const handoff::Reserve& reserve);
  bool refit_target(Entry& entry, const handoff::Reserve& reserve);
  void end_target(Entry& entry);
  void end_source_job(Entry& entry, NodeActions& out);
  void unpin_over_budget(Entry& entry);
  void begin_decode(const Id& id, Entry& entry, const handoff::RequestState& state, NodeActions& out);
  bool extend_for(const Id& id, Entry& entry, const handoff::RequestState& state, NodeActions& out);
  void drop_of(const std::string& gateway, NodeActions& out);
  void drop(const Id& id, Entry& entry, NodeActions& out);
  void erase_if_empty(const Id& id);
  // One that did not begin is left out.
  void tell_parts(const Id& id, const Entry& entry, handoff::Attempt attempt,
                  std::initializer_list<MeasuredPart> parts, NodeActions& out);
  void carry_out(const Id& id, Entry& entry, handoff::Actions& actions, NodeActions& out);
  void send_to_gateway(const std::string& gateway, handoff::SessionMessage message, NodeActions& out);
  void answer_stale(const handoff::NodeRef& from, const Id& id, handoff::Attempt attempt, NodeActions& out);
  handoff::Beat make_beat(const std::string& gateway, const EngineProgress& progress);
  void send_beats(const EngineProgress& progress, handoff::Nanos now, NodeActions& out);

  NodeConfig config_;
  KvStore kv_;
  handoff::NodeSessions sessions_;
  std::map<Id, Entry> entries_;  // ordered: the same events give the same actions
  struct LastBeat {
    handoff::Nanos at = 0;
    bool was_busy = false;
  };
  std::map<std::string, LastBeat> last_beat_;  // by gateway
  uint64_t next_landing_ = 1;
  uint64_t config_revision_ = 0;
  handoff::Nanos now_ = 0;  // of the event under way
  uint64_t io_seq_ = 0, step_seq_ = 0;
  uint64_t num_stale_ = 0, num_cached_blocks_ = 0;
  bool is_draining_ = false;
  std::map<uint64_t, std::vector<kv::BlockId>> test_only_landings_;  // where an unfenced late write would go
};

}  // namespace tandem::role
