#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include "apps/subcommands.h"
#include "base/json.h"
#include "lab/transport/transport_measurement.h"

namespace tandem::apps {
namespace {

// For the socket of a few seconds; removed with it.
class SocketFolder {
 public:
  SocketFolder() : is_made_(mkdtemp(path_.data()) != nullptr) {}
  ~SocketFolder() {
    if (is_made_) rmdir(path_.c_str());
  }
  bool is_made() const { return is_made_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/tandem-bench-XXXXXX";
  bool is_made_;
};

std::string figures_json(const transport_lab::TransportFigures& figures) {
  JsonWriter json;
  json.begin_object().key("latencies").begin_array();
  for (const transport_lab::Latency& latency : figures.latencies) {
    json.begin_object();
    json.key("transport").string(latency.transport);
    json.key("round_trip_p50_us").number(latency.p50_us);
    json.key("round_trip_p99_us").number(latency.p99_us);
    json.end_object();
  }
  json.end_array().key("bandwidths").begin_array();
  for (const transport_lab::Bandwidth& bandwidth : figures.bandwidths) {
    json.begin_object();
    json.key("transport").string(bandwidth.transport);
    json.key("frame_bytes").unsigned_integer(bandwidth.frame_bytes);
    json.key("bytes_per_s").number(bandwidth.bytes_per_s);
    json.key("plain_tcp_ratio").number(bandwidth.tcp_ratio);
    json.end_object();
  }
  json.end_array().end_object();
  return json.take();
}

}  // namespace

Result<int> run_bench_transport(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  transport_lab::TransportOptions options;
  options.frame_bytes.clear();
  for (const int64_t size : values.integers("frame-sizes")) options.frame_bytes.push_back(static_cast<uint64_t>(size));
  options.volume_bytes = static_cast<uint64_t>(values.integer("volume"));
  options.num_repetitions = static_cast<uint32_t>(values.integer("repetitions"));
  const SocketFolder folder;
  if (!folder.is_made()) return Error{ErrorCode::kUnavailable, "no folder for a socket in /tmp"};
  TRY_ASSIGN(const transport_lab::TransportFigures figures, transport_lab::measure_transports(options, folder.path()));
  if (values.is_on("json")) {
    fmt::print("{}\n", figures_json(figures));
    return kExitDone;
  }
  fmt::print("{:<10} {:>13} {:>13}\n", "TRANSPORT", "ROUND TRIP", "P99");
  for (const transport_lab::Latency& latency : figures.latencies) {
    fmt::print("{:<10} {:>10.1f} us {:>10.1f} us\n", latency.transport, latency.p50_us, latency.p99_us);
  }
  fmt::print("\n{:<10} {:>13} {:>13} {:>13}\n", "TRANSPORT", "FRAME BYTES", "GB/S", "TO PLAIN TCP");
  for (const transport_lab::Bandwidth& bandwidth : figures.bandwidths) {
    fmt::print("{:<10} {:>13} {:>13.2f} {:>13.2f}{}\n", bandwidth.transport, bandwidth.frame_bytes,
               bandwidth.bytes_per_s * 1e-9, bandwidth.tcp_ratio, bandwidth.tcp_ratio < 1 ? "  slower" : "");
  }
  return kExitDone;
}

}  // namespace tandem::apps
