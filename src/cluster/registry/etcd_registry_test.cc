#include "cluster/registry/etcd_registry.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cluster/registry/etcd_for_test.h"
#include "cluster/registry/view_json.h"
#include "cluster/registry/view_keeper.h"
#include "net/fetch/scripted_server.h"

namespace tandem::registry {
namespace {

using fetch::ScriptedServer;
using handoff::Role;
using testing::comes_true;

NodeRecord node(const std::string& id, Role role = Role::kMixed, uint64_t incarnation = 1) {
  return {id, incarnation, role, 0, NodeState::kReady, "127.0.0.1:1", "tcp:127.0.0.1:2", 42};
}

View view_of(Registry& registry) {
  auto view = registry.poll(0);
  REQUIRE_MESSAGE(static_cast<bool>(view), (view ? "" : view.error().message));
  REQUIRE(view->has_value());
  return **view;
}

// Of a machine that may be slow: a lease that does not run out meanwhile, and time for each call. And one that does.
const EtcdOptions kPatient = {.lease_ttl_s = 300, .timeout_ms = 60'000};
const EtcdOptions kShort = {.lease_ttl_s = 3, .timeout_ms = 60'000};

EtcdClient client_of(const EtcdAddress& address) { return {address.endpoints, {}, 60'000}; }

TEST_CASE("an address has endpoints, TLS or not, and a prefix") {
  const auto one = EtcdAddress::parse("etcd://a:1234,b,[::1]:7,[::1]/x/y/");
  REQUIRE(static_cast<bool>(one));
  CHECK(one.value().endpoints ==
        std::vector<std::string>{"http://a:1234", "http://b:2379", "http://[::1]:7", "http://[::1]:2379"});
  CHECK(one.value().prefix == "x/y");
  const auto secret = EtcdAddress::parse("etcd+https://a");
  REQUIRE(static_cast<bool>(secret));
  CHECK(secret.value().endpoints == std::vector<std::string>{"https://a:2379"});
  CHECK(secret.value().prefix == "tandem");
  for (const char* bad : {"etcd://", "etcd:///x", "etcd://a,,b", "etcd://a,", "etcd://:1", "etcd://u@a", "etcd://a?b",
                          "http://a", "a:1"}) {
    CHECK_MESSAGE(!EtcdAddress::parse(bad), bad);
  }
}

TEST_CASE("processes that change etcd at once lose nothing") {
  const EtcdAddress address = shared_etcd().new_address();
  constexpr int kThreads = 4, kRounds = 8;
  std::vector<std::thread> threads;
  std::atomic<int> num_good = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      EtcdRegistry registry(address, kPatient);
      for (int round = 0; round < kRounds; ++round) {
        num_good += registry.join(node("n" + std::to_string(t) + "-" + std::to_string(round))) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(num_good == kThreads * kRounds);
  EtcdRegistry registry(address);
  const View view = view_of(registry);
  CHECK(view.nodes.size() == kThreads * kRounds);
  CHECK(view.revision == kThreads * kRounds);
}

TEST_CASE("who polls keeps its record; who does not loses it, once for all, and is back as it was with its next poll") {
  const EtcdAddress address = shared_etcd().new_address();
  EtcdRegistry watcher(address), kept(address, kPatient), lost(address, kShort);
  REQUIRE(static_cast<bool>(kept.join(node("a", Role::kPrefill))));
  REQUIRE(static_cast<bool>(kept.join(node("b", Role::kPrefill))));
  REQUIRE(static_cast<bool>(lost.join(node("c", Role::kPrefill, 7))));
  const auto epoch = watcher.flip_role("c", view_of(watcher).nodes.at("c").role_epoch, Role::kDecode);
  REQUIRE(static_cast<bool>(epoch));
  REQUIRE(static_cast<bool>(lost.poll(0)));
  ViewKeeper keeper;
  keeper.on_view(view_of(watcher));
  keeper.on_session_opened("c");
  const uint64_t before = view_of(watcher).revision;
  CHECK(comes_true([&] { return kept.poll(0) && !view_of(watcher).nodes.contains("c"); }));
  CHECK(view_of(watcher).revision == before + 1);
  CHECK(view_of(kept).revision == before + 1);
  CHECK(keeper.on_view(view_of(watcher)).retired == std::vector<std::string>{"c"});
  CHECK(keeper.nodes().contains("c"));
  CHECK(comes_true([&] { return lost.poll(0) && view_of(watcher).nodes.contains("c"); }));
  CHECK(view_of(watcher).nodes.at("c").role == Role::kDecode);
  CHECK(view_of(watcher).nodes.at("c").role_epoch == epoch.value());
  CHECK(view_of(watcher).nodes.at("c").incarnation == 7);
  CHECK(view_of(watcher).nodes.size() == 3);
}

TEST_CASE("a process that lost its lease does not take its name back from another") {
  const EtcdAddress address = shared_etcd().new_address();
  EtcdRegistry old(address, kShort), next(address, kPatient);
  REQUIRE(static_cast<bool>(old.join(node("a"))));
  REQUIRE(static_cast<bool>(next.join(node("b"))));
  CHECK(comes_true([&] { return !view_of(next).nodes.contains("a"); }));
  REQUIRE(static_cast<bool>(next.join(node("a", Role::kMixed, 2))));
  CHECK(comes_true([&] { return static_cast<bool>(old.poll(0)); }));
  CHECK(view_of(old).nodes.at("a").incarnation == 2);
  CHECK(!old.leave("a", 1));
  CHECK(static_cast<bool>(next.leave("a", 2)));
}

TEST_CASE("a record that someone deletes is gone: its node does not write it again") {
  const EtcdAddress address = shared_etcd().new_address();
  EtcdRegistry registry(address, kPatient);
  REQUIRE(static_cast<bool>(registry.join(node("a"))));
  REQUIRE(static_cast<bool>(registry.join(node("b"))));
  EtcdClient client = client_of(address);
  const auto is_deleted = client.commit({{}, {}, {address.prefix + "/nodes/a"}});
  REQUIRE(static_cast<bool>(is_deleted));
  CHECK(is_deleted.value());
  const View view = view_of(registry);
  CHECK(view.nodes.size() == 1);
  CHECK(view.revision == 3);
  CHECK(registry.set_state("a", 1, NodeState::kDraining).error().code == ErrorCode::kNotFound);
}

TEST_CASE("when most leases run out at once the keeper keeps the last view; a poll of each brings them back") {
  const EtcdAddress address = shared_etcd().new_address();
  EtcdRegistry watcher(address);
  std::vector<std::unique_ptr<EtcdRegistry>> nodes;
  for (const char* id : {"a", "b", "c"}) {
    nodes.push_back(std::make_unique<EtcdRegistry>(address, kShort));
    REQUIRE(static_cast<bool>(nodes.back()->join(node(id))));
    REQUIRE(static_cast<bool>(nodes.back()->poll(0)));
  }
  ViewKeeper keeper;
  keeper.on_view(view_of(watcher));
  // Nobody looks until the last has lost its lease, so that all of them are found lost at once.
  EtcdClient client = client_of(address);
  CHECK(comes_true([&] {
    auto looked = client.look(address.prefix + "/head", address.prefix + "/nodes/");
    return looked && looked->num_keys == 0;
  }));
  keeper.on_view(view_of(watcher));
  CHECK(view_of(watcher).nodes.empty());
  CHECK(keeper.nodes().size() == 3);
  CHECK(keeper.num_mass_losses() == 1);
  for (const auto& registry : nodes) CHECK(static_cast<bool>(registry->poll(0)));
  CHECK(keeper.on_view(view_of(watcher)).removed.empty());
  CHECK(view_of(watcher).nodes.size() == 3);
}

TEST_CASE("a store that is emptied gets its revision, configuration and nodes back from those who have seen them") {
  const EtcdAddress address = shared_etcd().new_address();
  EtcdRegistry watcher(address), joined(address);
  REQUIRE(static_cast<bool>(joined.join(node("a"))));
  REQUIRE(static_cast<bool>(joined.set_config("k", "v", 0)));
  const uint64_t seen = view_of(joined).revision;
  REQUIRE(view_of(watcher).revision == seen);
  EtcdClient client = client_of(address);
  REQUIRE(client.commit({{}, {}, {address.prefix + "/head", address.prefix + "/nodes/a"}}).value());
  CHECK(watcher.poll(0).error().code == ErrorCode::kUnavailable);
  CHECK(view_of(joined).nodes.contains("a"));
  CHECK(view_of(watcher).nodes.contains("a"));
  CHECK(view_of(watcher).revision > seen);
  CHECK(view_of(watcher).config.at("k") == "v");
}

TEST_CASE("etcd is killed: polls say so and lose nothing; it comes back with all; a dead endpoint is passed over") {
  EtcdServer server;
  EtcdAddress address = server.new_address();
  address.endpoints.insert(address.endpoints.begin(), "http://127.0.0.1:1");
  EtcdRegistry registry(address), watcher(address);
  REQUIRE(static_cast<bool>(registry.join(node("a"))));
  ViewKeeper keeper;
  keeper.on_view(view_of(watcher));
  server.kill();
  CHECK(watcher.poll(0).error().code == ErrorCode::kUnavailable);
  CHECK(registry.join(node("b")).error().code == ErrorCode::kUnavailable);
  CHECK(registry.set_state("a", 1, NodeState::kDraining).error().code == ErrorCode::kUnavailable);
  CHECK(registry.flip_role("a", 1, Role::kDecode).error().code == ErrorCode::kUnavailable);
  CHECK(registry.set_config("k", "v", 0).error().code == ErrorCode::kUnavailable);
  CHECK(keeper.nodes().contains("a"));
  server.start();
  CHECK(comes_true([&] { return static_cast<bool>(watcher.poll(0)); }));
  CHECK(view_of(watcher).nodes.contains("a"));
  CHECK(static_cast<bool>(registry.set_state("a", 1, NodeState::kDraining)));
  CHECK(keeper.on_view(view_of(watcher)).changed.size() == 1);
}

// What a registry says of a store whose every answer is `answer`.
std::string complaint(const std::string& answer, const std::string& status = "200 OK") {
  ScriptedServer server([&](ScriptedServer::Connection& connection, const ScriptedServer::Request&, size_t) {
    connection.say(fetch::reply_text(status, "", answer));
  });
  const std::string url = server.url("");
  EtcdRegistry registry(EtcdAddress{{url}, "t"});
  std::string said;
  const auto note = [&](ErrorCode code, const std::string& message) {
    CHECK((code == ErrorCode::kCorrupt || code == ErrorCode::kUnavailable));
    if (said.find(message) == std::string::npos) said += (said.empty() ? "" : "; ") + message;
  };
  if (auto polled = registry.poll(0); !polled) note(polled.error().code, polled.error().message);
  if (auto joined = registry.join(node("a")); !joined) note(joined.error().code, joined.error().message);
  if (auto set = registry.set_config("k", "v", 0); !set) note(set.error().code, set.error().message);
  for (size_t at = 0; (at = said.find(url)) != std::string::npos;) said.erase(at, url.size());
  return said;
}

TEST_CASE("an answer that is truncated, of wrong types, too long or no answer gives an error that says what is wrong") {
  CHECK(complaint("").find("etcd's answer is no JSON") == 0);
  CHECK(complaint("{\"kvs\":[{\"key\":\"").find("etcd's answer is no JSON") == 0);
  CHECK(complaint("[]") == "etcd's answer is not an object");
  CHECK(complaint("{}") == "etcd's answer has not the two ranges that were asked for; etcd's answer has no lease; "
                           "the registry changes too often");
  CHECK(complaint(R"({"responses":7,"ID":true,"kvs":"x"})") ==
        "etcd's answer has no list responses; etcd's answer has no number ID; etcd's answer has no list kvs");
  const std::string looked = R"("responses":[{"response_range":{"kvs":[{"mod_revision":"3"}]}},{"response_range":{}}])";
  const auto with_kvs = [&](const std::string& kvs) {
    return complaint("{" + looked + R"(,"ID":"1","kvs":[)" + kvs + "]}");
  };
  CHECK(with_kvs("1") == "etcd's answer has no object in kvs");
  CHECK(with_kvs(R"({"key":"!"})") == "etcd's answer has no Base64 key");
  CHECK(with_kvs(R"({"key":"dC9oZWFk","value":"e30=","mod_revision":"-1"})") ==
        "etcd's answer has no number mod_revision");
  CHECK(with_kvs(R"({"key":"eA==","value":"e30=","mod_revision":"1"})") ==
        "etcd's answer has a key that was not asked for");
  CHECK(with_kvs(R"({"key":"dC9oZWFk","value":"e30=","mod_revision":"1"})") == "the registry has no number revision");
  CHECK(with_kvs(R"({"key":"dC9oZWFk","value":"AAA=","mod_revision":"1"})").find("the registry is no JSON") == 0);
  const std::string refused = complaint(R"({"error":"no leader","code":14})", "503 Unavailable");
  CHECK(refused.find("/v3/kv/txn: HTTP 503: no leader") == 0);
  const std::string giant = complaint(std::string((16 << 20) + 1, ' '));
  CHECK(giant.find("the answer is longer than 16777216 bytes") != std::string::npos);
}

TEST_CASE("a store that says nothing costs its time limit, and no more") {
  ScriptedServer server([](ScriptedServer::Connection& connection, const ScriptedServer::Request&, size_t) {
    connection.say_nothing();
  });
  EtcdRegistry registry(EtcdAddress{{server.url("")}, "t"}, {.timeout_ms = 50});
  CHECK(registry.poll(0).error().message.find("no answer within 50 ms") != std::string::npos);
}

}  // namespace
}  // namespace tandem::registry
