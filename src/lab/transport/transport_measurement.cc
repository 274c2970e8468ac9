#include "lab/transport/transport_measurement.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "lab/transport/timed_path.h"

namespace tandem::transport_lab {
namespace {

constexpr uint64_t kMaxFrames = 20'000;
const char* const kPlain = "plain tcp";

// Sorts.
double quantile(std::vector<double>& values, double fraction) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(fraction * static_cast<double>(values.size() - 1))];
}

struct Path {
  std::string name;
  std::unique_ptr<TimedPath> timed;
  std::vector<double> round_trips;
  std::map<uint64_t, std::vector<double>> rates;  // by frame size; bytes a second
};

Result<std::vector<Path>> open_paths(const std::string& folder) {
  std::vector<Path> paths;
  TRY_ASSIGN(auto plain, open_plain_tcp());
  paths.push_back({kPlain, std::move(plain), {}, {}});
  for (const std::string& address : {std::string("loop:bench"), "shm:" + folder + "/bench.sock",
                                     std::string("tcp:127.0.0.1:0"), std::string("ucx:127.0.0.1:0")}) {
    TRY_ASSIGN(auto timed, open_transport(address));
    paths.push_back({address.substr(0, address.find(':')), std::move(timed), {}, {}});
  }
  return paths;
}

Status measure_once(Path& path, const TransportOptions& options) {
  TRY_ASSIGN(const auto seconds, path.timed->round_trips(options.num_round_trips));
  path.round_trips.insert(path.round_trips.end(), seconds.begin(), seconds.end());
  for (const uint64_t size : options.frame_bytes) {
    const uint64_t count = std::clamp<uint64_t>(options.volume_bytes / size, 1, kMaxFrames);
    TRY_ASSIGN(const double took_s, path.timed->move(size, count));
    path.rates[size].push_back(static_cast<double>(size * count) / took_s);
  }
  return Done{};
}

}  // namespace

Result<TransportFigures> measure_transports(const TransportOptions& options, const std::string& folder) {
  for (const uint64_t size : options.frame_bytes) {
    if (size == 0 || size > kPoolBytes) {
      return Error{ErrorCode::kInvalidArgument, "a frame has 1 to " + std::to_string(kPoolBytes) + " bytes"};
    }
  }
  TRY_ASSIGN(std::vector<Path> paths, open_paths(folder));
  for (uint32_t repetition = 0; repetition < options.num_repetitions; ++repetition) {
    for (Path& path : paths) TRY(measure_once(path, options));
  }
  TransportFigures figures;
  std::map<uint64_t, double> plain;
  for (Path& path : paths) {
    figures.latencies.push_back(
        {path.name, quantile(path.round_trips, 0.5) * 1e6, quantile(path.round_trips, 0.99) * 1e6});
    for (auto& [size, rates] : path.rates) {
      const double median = quantile(rates, 0.5);
      if (path.name == kPlain) plain[size] = median;
      figures.bandwidths.push_back({path.name, size, median, median / plain[size]});
    }
  }
  return figures;
}

}  // namespace tandem::transport_lab
