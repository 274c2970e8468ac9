#include "cluster/registry/registry.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "cluster/registry/etcd_for_test.h"
#include "cluster/registry/etcd_registry.h"
#include "cluster/registry/file_registry.h"
#include "cluster/registry/memory_registry.h"
#include "cluster/registry/view_json.h"
#include "cluster/registry/view_keeper.h"

namespace tandem::registry {
namespace {

using handoff::Role;
using Names = std::vector<std::string>;

NodeRecord node(const std::string& id, Role role, uint64_t incarnation = 1) {
  return {id, incarnation, role, 0, NodeState::kReady, "127.0.0.1:1", "tcp:127.0.0.1:2", 42};
}

// A file in a folder that goes away with the object.
class RegistryFile {
 public:
  RegistryFile() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-registry-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~RegistryFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path() const { return folder_ + "/registry.json"; }

 private:
  std::string folder_;
};

// The same expectations of every implementation.
void on_each(const std::function<void(Registry&)>& check) {
  SUBCASE("in memory") {
    MemoryRegistry registry;
    check(registry);
  }
  SUBCASE("in a file") {
    const RegistryFile file;
    FileRegistry registry(file.path());
    check(registry);
  }
  SUBCASE("in etcd") {
    EtcdRegistry registry(shared_etcd().new_address());
    check(registry);
  }
}

View view_of(Registry& registry, uint64_t revision = 0) {
  auto view = registry.poll(revision);
  REQUIRE(static_cast<bool>(view));
  REQUIRE(view->has_value());
  return **view;
}

TEST_CASE("names of roles and states are read back as they are written; others are none") {
  for (const Role role : {Role::kPrefill, Role::kDecode, Role::kMixed}) CHECK(role_of(role_name(role)) == role);
  for (const NodeState state : {NodeState::kStarting, NodeState::kReady, NodeState::kDraining, NodeState::kLeft}) {
    CHECK(state_of(state_name(state)) == state);
  }
  CHECK(!role_of("Prefill"));
  CHECK(!state_of(""));
}

TEST_CASE("a node joins, changes and leaves; each change is a revision, and only the process that has the name may") {
  on_each([](Registry& registry) {
    CHECK(!registry.poll(0)->has_value());
    CHECK(!registry.join(node("", Role::kMixed)));
    CHECK(registry.join(node("p0", Role::kPrefill))->role_epoch == 1);
    CHECK(view_of(registry).nodes.at("p0") == NodeRecord{"p0", 1, Role::kPrefill, 1, NodeState::kReady, "127.0.0.1:1",
                                                         "tcp:127.0.0.1:2", 42});
    CHECK(!registry.poll(1)->has_value());
    CHECK(registry.set_state("p0", 2, NodeState::kDraining).error().code == ErrorCode::kNotFound);
    CHECK(registry.set_state("p1", 1, NodeState::kDraining).error().message == "no node is called p1");
    CHECK(static_cast<bool>(registry.set_state("p0", 1, NodeState::kReady)));
    CHECK(!registry.poll(1)->has_value());  // nothing changed
    CHECK(static_cast<bool>(registry.set_state("p0", 1, NodeState::kDraining)));
    CHECK(view_of(registry, 1).nodes.at("p0").state == NodeState::kDraining);
    // A restart takes the name over, and what was said to the old process is void.
    CHECK(static_cast<bool>(registry.join(node("p0", Role::kPrefill, 2))));
    CHECK(!registry.leave("p0", 1));
    CHECK(static_cast<bool>(registry.leave("p0", 2)));
    CHECK(view_of(registry).nodes.empty());
  });
}

TEST_CASE("a role is flipped by transaction and outlives a restart; the last of a role stays") {
  on_each([](Registry& registry) {
    CHECK(static_cast<bool>(registry.join(node("p0", Role::kPrefill))));
    const uint64_t epoch = registry.join(node("p1", Role::kPrefill))->role_epoch;
    CHECK(static_cast<bool>(registry.join(node("d0", Role::kDecode))));
    CHECK(registry.flip_role("x", 0, Role::kDecode).error().code == ErrorCode::kNotFound);
    CHECK(registry.flip_role("d0", 3, Role::kPrefill).error().message == "d0 is the last ready decode node");
    CHECK(registry.flip_role("p1", epoch, Role::kPrefill).error().message == "p1 is a prefill node already");
    CHECK(registry.flip_role("p1", epoch - 1, Role::kDecode).error().code == ErrorCode::kUnavailable);
    auto flipped = registry.flip_role("p1", epoch, Role::kDecode);
    REQUIRE(static_cast<bool>(flipped));
    CHECK(*flipped > epoch);
    // Two flips that both saw two prefill nodes: the second finds itself the last one.
    CHECK(registry.flip_role("p0", 1, Role::kDecode).error().message == "p0 is the last ready prefill node");
    CHECK(registry.join(node("p1", Role::kPrefill, 9))->role == Role::kDecode);
    // A node that drains does not count as another of its role.
    CHECK(static_cast<bool>(registry.set_state("d0", 1, NodeState::kDraining)));
    CHECK(!registry.flip_role("p1", *flipped, Role::kMixed));
  });
}

TEST_CASE("configuration changes only from the revision that its writer has seen") {
  on_each([](Registry& registry) {
    auto first = registry.set_config("max-num-seqs", "32", 0);
    REQUIRE(static_cast<bool>(first));
    CHECK(registry.set_config("max-num-seqs", "64", 0).error().code == ErrorCode::kUnavailable);
    CHECK(static_cast<bool>(registry.set_config("max-num-seqs", "64", *first)));
    CHECK(view_of(registry).config.at("max-num-seqs") == "64");
  });
}

TEST_CASE("an unreachable registry refuses everything and loses nothing") {
  MemoryRegistry registry;
  CHECK(static_cast<bool>(registry.join(node("m0", Role::kMixed))));
  registry.set_reachable(false);
  CHECK(registry.poll(0).error().code == ErrorCode::kUnavailable);
  CHECK(registry.join(node("m1", Role::kMixed)).error().code == ErrorCode::kUnavailable);
  CHECK(registry.flip_role("m0", 1, Role::kDecode).error().code == ErrorCode::kUnavailable);
  CHECK(registry.set_config("a", "b", 0).error().code == ErrorCode::kUnavailable);
  registry.set_reachable(true);
  CHECK(view_of(registry).nodes.size() == 1);
}

TEST_CASE("a file that is not a registry is refused by place, and is left as it is") {
  const RegistryFile file;
  FileRegistry registry(file.path());
  CHECK(static_cast<bool>(registry.join(node("p0", Role::kPrefill))));
  const auto complaint = [&](const std::string& text) {
    std::ofstream(file.path()) << text;
    const Status joined = [&]() -> Status {
      TRY(registry.join(node("p1", Role::kPrefill)));
      return Done{};
    }();
    std::string now;
    std::getline(std::ifstream(file.path()), now, '\0');
    CHECK(now == text);
    return joined ? std::string() : joined.error().message.substr(file.path().size() + 2);
  };
  const std::string good = to_json(View{});
  CHECK(complaint("[]") == "the registry is not an object");
  CHECK(complaint("{\"revision\":-1}") == "the registry has no number revision");
  CHECK(complaint(R"({"revision":1,"config_revision":0,"nodes":[7],"config":{}})") == "nodes[0] is not an object");
  CHECK(complaint(R"({"revision":1,"config_revision":0,"nodes":[{"id":"a","incarnation":1,"role":"king",)"
                  R"("role_epoch":1,"state":"ready","control":"","data":""}],"config":{}})") ==
        "nodes[0] has an unknown role king");
  CHECK(complaint(R"({"revision":1,"config_revision":0,"nodes":[],"config":{"a":1}})") == "config.a is not a text");
  CHECK(!complaint(good.substr(0, good.size() / 2)).empty());
}

TEST_CASE("processes that change the file at once lose nothing") {
  const RegistryFile file;
  constexpr int kProcesses = 4, kRounds = 25;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    if (child == 0) {
      FileRegistry registry(file.path());
      bool is_good = true;
      for (int round = 0; round < kRounds; ++round) {
        const std::string id = "n" + std::to_string(p) + "-" + std::to_string(round);
        is_good &= static_cast<bool>(registry.join(node(id, Role::kMixed)));
      }
      _exit(is_good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  FileRegistry registry(file.path());
  const View view = view_of(registry);
  CHECK(view.nodes.size() == kProcesses * kRounds);
  CHECK(view.revision == kProcesses * kRounds);
}

Names ids(const std::vector<NodeRecord>& records) {
  Names names;
  for (const NodeRecord& record : records) names.push_back(record.id);
  return names;
}

TEST_CASE("a keeper tells what is new, what changed and what went; old views change nothing") {
  ViewKeeper keeper;
  View view;
  view.revision = 5;
  for (const char* id : {"p0", "p1", "d0"}) view.nodes[id] = node(id, id[0] == 'p' ? Role::kPrefill : Role::kDecode);
  view.config = {{"a", "b"}}, view.config_revision = 4;
  ViewKeeper::Change change = keeper.on_view(view);
  CHECK(ids(change.added) == Names{"d0", "p0", "p1"});
  CHECK(change.has_config);
  CHECK(change.config.at("a") == "b");
  CHECK(keeper.on_view(view).added.empty());
  View newer = view;
  newer.revision = 6;
  newer.nodes["p1"].incarnation = 2;
  newer.nodes.erase("p0");
  change = keeper.on_view(newer);
  CHECK(ids(change.changed) == Names{"p1"});
  CHECK(change.removed == Names{"p0"});
  CHECK(!change.has_config);
  CHECK(keeper.on_view(view).added.empty());
  CHECK(!keeper.nodes().contains("p0"));
}

TEST_CASE("a record that goes while the session lives only stops new work; it may come back") {
  ViewKeeper keeper;
  View view;
  view.revision = 1;
  for (const char* id : {"a", "b", "c"}) view.nodes[id] = node(id, Role::kMixed);
  keeper.on_view(view);
  keeper.on_session_opened("b");
  const NodeRecord b = view.nodes["b"];
  view.nodes.erase("b");
  view.revision = 2;
  CHECK(keeper.on_view(view).retired == Names{"b"});
  CHECK(keeper.is_retired("b"));
  CHECK(keeper.nodes().contains("b"));
  view.revision = 3;
  CHECK(keeper.on_view(view).retired.empty());  // said once
  view.nodes["b"] = b;
  view.revision = 4;
  CHECK(ids(keeper.on_view(view).changed) == Names{"b"});
  CHECK(!keeper.is_retired("b"));
  view.nodes.erase("b");
  view.revision = 5;
  keeper.on_view(view);
  CHECK(keeper.on_session_closed("b"));
  CHECK(!keeper.nodes().contains("b"));
  CHECK(!keeper.on_session_closed("a"));
}

TEST_CASE("when most records go at once the last view stays; those that said they leave may go together") {
  MemoryRegistry registry;
  for (const char* id : {"a", "b", "c", "d"}) CHECK(static_cast<bool>(registry.join(node(id, Role::kMixed))));
  ViewKeeper keeper;
  keeper.on_view(view_of(registry));
  for (const char* id : {"a", "b", "c"}) registry.expire(id);
  const ViewKeeper::Change change = keeper.on_view(view_of(registry));
  CHECK(change.removed.empty());
  CHECK(change.retired.empty());
  CHECK(keeper.nodes().size() == 4);
  CHECK(keeper.num_mass_losses() == 1);
  // They come back, and then three of four leave on purpose.
  for (const char* id : {"a", "b", "c"}) {
    CHECK(static_cast<bool>(registry.join(node(id, Role::kMixed))));
    CHECK(static_cast<bool>(registry.set_state(id, 1, NodeState::kDraining)));
  }
  keeper.on_view(view_of(registry));
  for (const char* id : {"a", "b", "c"}) CHECK(static_cast<bool>(registry.leave(id, 1)));
  CHECK(keeper.on_view(view_of(registry)).removed == Names{"a", "b", "c"});
  CHECK(keeper.num_mass_losses() == 1);
}

}  // namespace
}  // namespace tandem::registry
