#pragma once
// How fast the KV data plane moves frames on this machine: latency and bandwidth of each transport, beside a plain TCP
// copy in the same run (tandem bench transport).
//
// Two threads, each with a loop, as two processes would be: shared memory is mapped by each side on its own. Payloads
// leave from a pool and land in another, both larger than the caches.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::transport_lab {

struct TransportOptions {
  std::vector<uint64_t> frame_bytes = {4096, 65'536, 368'640, 1 << 20, 16 << 20};  // payloads
  uint64_t volume_bytes = 256 << 20;  // moved for each figure, in at most 20,000 frames
  uint32_t num_repetitions = 5;       // in turns; medians are kept
  uint32_t num_round_trips = 2000;    // in each repetition
};

struct Latency {
  std::string transport;
  double p50_us = 0, p99_us = 0;  // of a round trip of 88 bytes each way
};

struct Bandwidth {
  std::string transport;
  uint64_t frame_bytes = 0;
  double bytes_per_s = 0;  // payload, from the first send to the answer that all has landed
  double tcp_ratio = 0;    // to the plain TCP copy of the same size; below 1: slower
};

struct TransportFigures {
  std::vector<Latency> latencies;
  std::vector<Bandwidth> bandwidths;  // by transport, then size; "plain tcp" first
};

// Starts threads and sockets of its own, on 127.0.0.1 and in `folder`, and ends them. kUnavailable when a connection
// breaks.
Result<TransportFigures> measure_transports(const TransportOptions& options, const std::string& folder);

}  // namespace tandem::transport_lab
