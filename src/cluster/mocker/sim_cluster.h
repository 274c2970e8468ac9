#pragma once
// SimCluster: gateways and nodes, the classes that also run in processes, joined by SimNet and mock engines in virtual
// time. Faults on command; invariants are checked as it runs. docs/protocol.md, section 9, says what each one is.

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/mocker/mock_engine.h"
#include "cluster/mocker/sim_net.h"
#include "cluster/role/gateway.h"
#include "cluster/role/node.h"

namespace tandem::mocker {

// A cost that has been fitted to steps of exactly these terms.
cost::StepCost cost_of(const cost::StepCost::Terms& terms);

struct SimNodeSpec {
  std::string id;
  handoff::Role role = handoff::Role::kMixed;
};

struct SimConfig {
  uint64_t seed = 1;
  std::vector<SimNodeSpec> nodes;
  uint32_t num_gateways = 1;
  kv::PoolShape pool{64, 32, 16};
  uint32_t max_pinned_blocks = 16;
  uint32_t num_layer_groups = 2;
  NetConfig net;
  MockEngineConfig engine;
  bool has_random_sampling = false;      // each process samples differently: only the chain can be checked
  bool are_timers_scaled = false;        // each party's timers are halved, doubled or left, and its clock is its own
  bool does_holder_adopt = true;
  bool uses_wire_format = true;          // messages become bytes and are read again, as between processes
  bool runs_to_length = false;           // no end tokens: a stream is as long as was asked for
  const cost::StepCost* step_cost = nullptr;  // of all engines; null: a small machine's
  handoff::Timing timing;
  double prefill_tokens_per_s = 5000;
  Nanos tick = 10'000'000;
  Nanos ramp = 0;
  std::optional<router::RouterConfig> router;
  role::Node::TestOnly node_rules;
  role::Gateway::TestOnly gateway_rules;
  role::KvStore::TestOnly kv_rules;
  bool traces = false;
};

class SimCluster {
 public:
  explicit SimCluster(const SimConfig& config);
  ~SimCluster();
  SimCluster(const SimCluster&) = delete;
  SimCluster& operator=(const SimCluster&) = delete;

  // Clients.
  handoff::RequestId submit(uint32_t gateway, std::vector<TokenId> prompt, uint32_t num_choices, uint32_t max_tokens);
  void cancel(const handoff::RequestId& id);
  size_t num_open() const;      // accepted and not ended; those of dead gateways do not count
  size_t num_completed() const { return num_completed_; }
  size_t num_failed() const { return num_failed_; }
  size_t num_given_up() const { return num_given_up_; }  // of those that failed: too many nodes died under them
  const std::vector<handoff::ChoiceState>& answer(const handoff::RequestId& id) const { return clients_.at(id).got; }
  std::vector<double> gaps_ms() const { return gaps_ms_; }  // from token to token, of a choice
  struct Served {  // a completed request's first choice
    double ttft_ms = 0, tpot_ms = 0;  // tpot: the mean gap; 0 for one token
    size_t num_tokens = 0;
  };
  const std::vector<Served>& served() const { return served_; }

  // Faults. By index; nothing happens to what is not in the state for it.
  void kill_node(size_t n);
  void restart_node(size_t n);
  void stop_node(size_t n);
  void continue_node(size_t n);
  void stop_at_message(size_t n, uint32_t count) { nodes_[n].stops_after = count; }
  void die_at_message(size_t n, uint32_t count) { nodes_[n].dies_after = count; }
  void hang_engine(size_t n);
  void kill_gateway(size_t g);
  void stall_gateway(size_t g, Nanos duration);  // SIGSTOP, and SIGCONT by itself
  void cut_from_gateway(size_t g, size_t n, bool is_cut);
  void break_stream(size_t g, size_t n);  // the gateway's to the node, while both live
  void cut_between(size_t a, size_t b, bool is_cut);
  void partition(uint64_t sides);        // bit n: on which side node n is; gateways see both
  void suspect(size_t g, size_t n);      // falsely
  void move_request(size_t which);       // some decode moves elsewhere, planned
  void drain(size_t n);
  void heal_all();                       // links, stops, dead nodes and hung engines

  void run_for(Nanos duration, bool stops_when_idle = false);
  Nanos now() const { return events_.now(); }
  uint64_t num_events() const { return events_.num_run(); }

  // I5, I7, I9, L2 at rest: nothing is held for any request on any node that runs.
  void check_at_rest();
  void violated(const std::string& what);
  const std::string& violation() const { return violation_; }  // the first; empty: none
  bool is_gateway_alive(size_t g) const { return gateways_[g].policy != nullptr; }
  bool is_node_running(size_t n) const { return nodes_[n].policy && !nodes_[n].is_stopped; }
  bool is_reachable(size_t n) const;  // from every living gateway
  size_t num_nodes() const { return nodes_.size(); }
  const std::string& node_id(size_t n) const { return nodes_[n].spec.id; }
  const role::Gateway& gateway(size_t g) const { return *gateways_[g].policy; }
  const role::Node& node(size_t n) const { return *nodes_[n].policy; }
  uint64_t num_mismatches() const;
  uint64_t num_suspicions() const;
  uint64_t num_pushed_parts() const { return num_pushed_parts_; }
  uint64_t num_cached_blocks() const;  // that living nodes' reservations found
  // What nodes said they measured, over all requests.
  const std::map<handoff::Part, std::vector<Nanos>>& part_times() const { return part_times_; }
  uint64_t num_recoveries() const { return num_recoveries_; }  // attempts beyond each request's first
  const std::deque<std::string>& trace() const { return trace_; }

 private:
  struct SimNode {
    SimNodeSpec spec;
    uint64_t incarnation = 0;  // 0: never started
    std::unique_ptr<role::Node> policy;  // null: dead
    std::unique_ptr<MockKv> kv;
    std::unique_ptr<MockEngine> engine;
    bool is_stopped = false;
    uint32_t stops_after = 0, dies_after = 0;  // messages; 0: does not
    Nanos clock_offset = 0;
  };
  struct SimGateway {
    std::string id;
    std::unique_ptr<role::Gateway> policy;
    Nanos stalled_until = 0;
    Nanos clock_offset = 0;
  };
  struct ClientRequest {
    uint32_t gateway = 0;
    std::vector<TokenId> prompt;
    uint64_t seed = 0;
    uint32_t max_tokens = 0;
    std::vector<handoff::ChoiceState> got;
    std::vector<Nanos> last_token;
    Nanos asked_at = 0, first_at = 0;
    handoff::Attempt attempts = 0;
    uint32_t num_dead_nodes = 0;  // when it was asked, and since
    bool is_over = false, is_cancelled = false;
  };
  struct Frame {  // a data frame under way, with its bytes
    handoff::NodeRef from, to;
    handoff::PeerMessage message;
    std::vector<uint64_t> words;
    uint64_t checksum = 0;
  };

  void start_node(size_t n);
  handoff::Timing scaled_timing();
  void tick_node(size_t n, uint64_t incarnation);
  void tick_gateway(size_t g);
  void after_node_event(size_t n, role::NodeActions& actions, const std::vector<uint64_t>& payload);
  void after_gateway_event(size_t g, role::GatewayOuts& outs);
  void schedule_step(size_t n);
  void end_step(size_t n, uint64_t incarnation);
  void count_message(size_t n);  // after it was handled
  void send_to_node(size_t g, const role::SendNode& send);
  void send_to_gateway(size_t n, const role::SendSession& send);
  void open_stream(size_t g, const role::OpenStream& open);
  void act(size_t n, role::NodeAction& action, const std::vector<uint64_t>& payload);
  void send_frame(size_t n, const handoff::NodeRef& to, handoff::PeerMessage message, std::vector<uint64_t> words);
  void deliver_frame(const Frame& frame);
  void break_connection(size_t a, size_t b);
  void tell_peer_lost(size_t n, const handoff::NodeRef& peer);
  void deliver_token(const handoff::TokenEntry& entry);
  void end_request(const role::RequestEnded& ended);
  void check_running();
  size_t index_of(const std::string& node) const;
  Nanos node_time(size_t n) const { return events_.now() + nodes_[n].clock_offset; }
  Nanos gateway_time(size_t g) const { return events_.now() + gateways_[g].clock_offset; }
  bool may_deliver(const ChannelKey& channel) const;
  void send_eof_to_gateway(const ChannelKey& stream, bool is_refused = false);
  void note(const std::string& line);
  // The message as the other process reads it. What cannot be read there is a violation.
  handoff::SessionMessage as_read(const handoff::SessionMessage& message);
  handoff::PeerMessage as_read(const handoff::PeerMessage& message);

  SimConfig config_;
  SimRandom random_;
  EventQueue events_;
  SimNet net_;
  cost::StepCost cost_;
  std::vector<SimNode> nodes_;
  std::vector<SimGateway> gateways_;
  std::map<std::string, size_t> node_index_;
  std::set<std::pair<size_t, size_t>> cut_gateway_, cut_nodes_;  // (gateway, node); (lower, higher)
  // Streams that gateways have not closed, as the channel to the node; and the process they lead to.
  std::map<ChannelKey, uint64_t> streams_;
  std::map<std::pair<size_t, size_t>, uint64_t> connections_;  // of the data plane, by (lower, higher)
  std::map<handoff::RequestId, ClientRequest> clients_;
  uint64_t next_request_ = 1, next_connection_ = 1;
  size_t num_completed_ = 0, num_failed_ = 0, num_given_up_ = 0;
  uint64_t num_recoveries_ = 0, mismatches_of_dead_ = 0, num_pushed_parts_ = 0;
  std::vector<double> gaps_ms_;
  std::vector<Served> served_;
  std::map<handoff::Part, std::vector<Nanos>> part_times_;
  std::string violation_;
  std::deque<std::string> trace_;
};

// The name of a message's kind, for traces.
const char* name_of(const handoff::SessionMessage& message);
const char* name_of(const handoff::PeerMessage& message);

}  // namespace tandem::mocker
