#include "serve/runner/memory_budget.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "compute/model/files_for_test.h"

namespace tandem::runner {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A tree of /proc and /sys in which 4096 MiB are available, to be narrowed.
class Machine {
 public:
  Machine() { write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\nMemAvailable:    4194304 kB\n"); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_.path(name)).parent_path());
    folder_.write(name, text);
  }
  uint64_t available_mib() const { return available_memory_bytes(folder_.path()) / kMiB; }

 private:
  model::TempDir folder_;
};

std::string mib(uint64_t count) { return std::to_string(count * kMiB) + "\n"; }

TEST_CASE("without a group's limit it is what the machine has available") {
  Machine machine;
  CHECK(machine.available_mib() == 4096);
  machine.write("proc/self/cgroup", "0::/user.slice/session\n");
  machine.write("sys/fs/cgroup/user.slice/session/memory.max", "max\n");
  machine.write("sys/fs/cgroup/user.slice/session/memory.current", mib(100));
  CHECK(machine.available_mib() == 4096);
}

TEST_CASE("a limit of the own group counts, less what is used, with file pages that can go given back") {
  Machine machine;
  machine.write("proc/self/cgroup", "0::/box\n");
  machine.write("sys/fs/cgroup/box/memory.max", mib(2000));
  machine.write("sys/fs/cgroup/box/memory.current", mib(1500));
  CHECK(machine.available_mib() == 500);
  machine.write("sys/fs/cgroup/box/memory.stat", "anon 1\ninactive_file " + mib(1200) + "active_file 5\n");
  CHECK(machine.available_mib() == 1700);
  machine.write("sys/fs/cgroup/box/memory.current", mib(3500));
  CHECK(machine.available_mib() == 0);
}

TEST_CASE("a limit of an enclosing group and of a container's root count too") {
  Machine machine;
  machine.write("proc/self/cgroup", "0::/slice/box\n");
  machine.write("sys/fs/cgroup/slice/box/memory.max", "max\n");
  machine.write("sys/fs/cgroup/slice/box/memory.current", mib(1));
  machine.write("sys/fs/cgroup/slice/memory.max", mib(1000));
  machine.write("sys/fs/cgroup/slice/memory.current", mib(100));
  CHECK(machine.available_mib() == 900);
  machine.write("sys/fs/cgroup/memory.max", mib(300));
  machine.write("sys/fs/cgroup/memory.current", mib(100));
  CHECK(machine.available_mib() == 200);
}

TEST_CASE("version 1 of cgroups has other names") {
  Machine machine;
  machine.write("proc/self/cgroup", "5:cpu:/a\n4:memory:/box\n");
  machine.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", mib(700));
  machine.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", mib(500));
  machine.write("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file " + mib(50));
  CHECK(machine.available_mib() == 250);
  machine.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(machine.available_mib() == 4096);
}

TEST_CASE("nothing to read is 0, and odd files stop nothing") {
  const model::TempDir empty;
  CHECK(available_memory_bytes(empty.path()) == 0);
  Machine machine;
  machine.write("proc/self/cgroup", "nonsense\n0::relative\n");
  machine.write("sys/fs/cgroup/memory.max", "\n");
  CHECK(machine.available_mib() == 4096);
  CHECK(available_memory_bytes() > 0);  // this machine
}

}  // namespace
}  // namespace tandem::runner
