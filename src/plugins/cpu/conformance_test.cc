// Every instruction set and team size against the scalar kernels on one thread, over the conformance list.

#include "compute/device/conformance.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "compute/kernels/isa.h"
#include "plugins/cpu/cpu_plugin.h"

namespace tandem::cpu {
namespace {

device::Device open_cpu(const std::string& isa, uint32_t num_threads) {
  auto plugin = device::Plugin::from_entry(tandem_plugin_cpu);
  REQUIRE(static_cast<bool>(plugin));
  auto device = device::Device::open(*plugin, 0, {num_threads, 0, isa.c_str()});
  REQUIRE_MESSAGE(static_cast<bool>(device), (device ? "" : device.error().message));
  return std::move(device).value();
}

// What opening a device with many threads says when there is no room for their stacks. In a process of its own, whose
// limit ends with it: 0 as it should be, else what was wrong.
int open_without_room() {
  rlimit room{};
  room.rlim_cur = room.rlim_max = 512 << 20;
  if (setrlimit(RLIMIT_AS, &room) != 0) return 1;
  const td_plugin* table = tandem_plugin_cpu();
  const td_device_options options{1000, 0, ""};
  td_message message{};
  td_device* device = nullptr;
  if (table->device_open(0, &options, &device, &message) != TD_OUT_OF_MEMORY) return 2;
  if (std::string(message.text).find("of 1000") == std::string::npos) return 3;
  const td_device_options few{2, 0, ""};  // those that did start are gone
  return table->device_open(0, &few, &device, &message) == TD_OK ? 0 : 4;
}

TEST_CASE("threads that the system does not give are an error of opening, and leave none behind") {
  const pid_t child = fork();
  if (child == 0) _exit(open_without_room());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

void check_against_scalar(const std::string& isa, uint32_t num_threads) {
  CAPTURE(isa);
  CAPTURE(num_threads);
  device::Device oracle = open_cpu("scalar", 1);
  device::Device device = open_cpu(isa, num_threads);
  CHECK(device.properties().batch_invariant == 1);
  auto report = device::check_conformance(device, oracle);
  REQUIRE_MESSAGE(static_cast<bool>(report), (report ? "" : report.error().message));
  CHECK(report->num_cases > 150);
  for (const device::ConformanceFailure& failure : report->failures) {
    CHECK_MESSAGE(false, failure.case_name << ": " << failure.text);
  }
  CHECK(device.fingerprint().value() == oracle.fingerprint().value());
}

TEST_CASE("each instruction set gives the scalar bits") {
  using kernels::Isa;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    const std::string name(kernels::isa_name(isa));
    if (kernels::is_supported(isa)) check_against_scalar(name, 1);
    else std::printf("not run: this machine has no %s\n", name.c_str());
  }
}

TEST_CASE("each team size gives the same bits") {
  for (const uint32_t num_threads : {2u, 3u}) check_against_scalar("", num_threads);
}

}  // namespace
}  // namespace tandem::cpu
