#include "lab/transport/transport_measurement.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <set>

using namespace tandem;
using namespace tandem::transport_lab;

TEST_CASE("every transport and size is measured, and compared with the plain copy of its size") {
  char folder[] = "/tmp/tandem-transport-lab-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  TransportOptions options;
  options.frame_bytes = {100'000, 1000};
  options.volume_bytes = 1 << 20;
  options.num_repetitions = 2;
  options.num_round_trips = 10;
  auto figures = measure_transports(options, folder);
  CHECK(rmdir(folder) == 0);  // nothing is left there
  REQUIRE(figures);
  const std::set<std::string> expected = {"plain tcp", "loop", "shm", "tcp", "ucx"};
  std::set<std::string> names;
  for (const Latency& latency : figures->latencies) {
    names.insert(latency.transport);
    CHECK(latency.p50_us > 0);
    CHECK(latency.p99_us >= latency.p50_us);
  }
  CHECK(names == expected);
  REQUIRE(figures->bandwidths.size() == 10);
  for (size_t i = 0; i < 10; ++i) {
    const Bandwidth& bandwidth = figures->bandwidths[i];
    const Bandwidth& plain = figures->bandwidths[i % 2];
    CHECK(plain.transport == "plain tcp");
    CHECK(bandwidth.frame_bytes == (i % 2 == 0 ? 1000 : 100'000));
    CHECK(bandwidth.bytes_per_s > 0);
    CHECK(bandwidth.tcp_ratio == bandwidth.bytes_per_s / plain.bytes_per_s);
  }
  options.frame_bytes = {0};
  CHECK(measure_transports(options, folder).error().code == ErrorCode::kInvalidArgument);
}
