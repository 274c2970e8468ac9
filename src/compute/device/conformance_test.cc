// What the conformance check says of devices that compute nothing. Of real devices: plugins/cpu.

#include "compute/device/conformance.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "compute/device/fake_device.h"

namespace tandem::device {
namespace {

Device open_fake(const FakeDevice& fake) {
  auto plugin = Plugin::from_entry(fake.entry());
  auto device = Device::open(*plugin, 0, {});
  REQUIRE(static_cast<bool>(device));
  return std::move(device).value();
}

TEST_CASE("devices that leave zeros agree, but bindings that they accept are reported one by one") {
  FakeDevice fake;
  {
    Device device = open_fake(fake), oracle = open_fake(fake);
    auto report = check_conformance(device, oracle);
    REQUIRE(static_cast<bool>(report));
    CHECK(report->num_cases > 150);
    CHECK(report->failures.size() == 13);
    for (const ConformanceFailure& failure : report->failures) {
      CHECK(failure.case_name.starts_with("refusal of "));
      CHECK(failure.text == "was accepted");
    }
  }
  CHECK(fake.num_live() == 0);
}

TEST_CASE("a wrong result is reported with its place, within the tolerance or bit for bit") {
  FakeDevice fake;
  // The device adds a little to what the oracle leaves at zero.
  static decltype(td_plugin::copy_to_host) copy;
  static uint32_t num_copies;
  static float error_added;
  copy = fake.table().copy_to_host;
  fake.table().copy_to_host = [](td_stream* stream, void* to, const void* from, uint64_t size, td_message* message) {
    const td_status status = copy(stream, to, from, size, message);
    // Oracle and device copy out in turn; the oracle goes first.
    if (num_copies++ % 2 == 1 && size >= 8) static_cast<float*>(to)[1] += error_added;
    return status;
  };
  for (const uint32_t is_exact : {0u, 1u}) {
    fake.properties().batch_invariant = is_exact;
    for (const float error : {1e-4f, 0.5f}) {
      num_copies = 0;
      error_added = error;
      Device device = open_fake(fake), oracle = open_fake(fake);
      auto report = check_conformance(device, oracle);
      REQUIRE(static_cast<bool>(report));
      const bool is_seen = std::any_of(report->failures.begin(), report->failures.end(), [](const auto& failure) {
        return failure.text.starts_with("step 0: row 0 column 1: ") &&
               failure.text.find("expected 0.0") != std::string::npos;
      });
      CHECK(is_seen == (is_exact != 0 || error > 0.1f));
    }
  }
}

TEST_CASE("an error of the device is a failure of its case, an error of the oracle ends the check") {
  FakeDevice fake;
  Device device = open_fake(fake), oracle = open_fake(fake);
  const size_t num_usual = check_conformance(device, oracle).value().failures.size();
  // The oracle makes the first case ready before the device does.
  uint32_t call = 0;
  for (;; ++call) {
    fake.fail(call, TD_OUT_OF_MEMORY, "no room");
    auto report = check_conformance(device, oracle);
    if (!report) {
      CHECK(report.error().message == "oracle: embed F32: no room");
      continue;
    }
    CHECK(report->failures.size() == num_usual + 1);
    CHECK(report->failures[0].case_name == "embed F32");
    CHECK(report->failures[0].text == "no room");
    break;
  }
  CHECK(call > 5);
}

}  // namespace
}  // namespace tandem::device
