#pragma once
// PackedWeights: a model's weights in the device's own form, packed once and kept in a cache file that all processes of
// the machine map; or packed into device memory when there is no cache.

#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "compute/device/device.h"
#include "compute/graph/graph.h"

namespace tandem::runner {

// A weight of a graph as the device is told of it. `parts` holds what the description points to.
td_weight_desc describe_weight(const graph::Weight& weight, td_quantization quantization,
                               std::vector<td_weight_part>& parts);

struct PackOptions {
  td_quantization quantization = TD_QUANTIZE_NONE;
  std::string cache_directory;  // empty: no cache
  std::string file_hash;        // of the weight files; names the cache file. Only with a cache
};

// Owns the mapping or the buffers; the device must outlive it. Weights stand in the order of the graphs given.
class PackedWeights {
 public:
  // `graphs` borrow the weight files, which may be closed afterwards.
  static Result<PackedWeights> create(device::Device& device, const std::vector<const graph::Graph*>& graphs,
                                      const PackOptions& options);

  // The weights of graphs[index], for a plan of it. Valid as long as this object.
  const std::vector<td_weight>& of_graph(size_t index) const { return weights_[index]; }
  uint64_t size_bytes() const { return size_bytes_; }
  bool was_cached() const { return was_cached_; }
  // The cache file that is mapped; empty: the weights are in the device's memory.
  std::string cache_file() const { return files_.empty() ? std::string() : files_.front().path(); }

 private:
  std::vector<std::vector<td_weight>> weights_;                  // by graph
  std::vector<std::vector<std::vector<td_weight_part>>> parts_;  // what the descriptions point to
  std::vector<MappedFile> files_;
  std::vector<device::Buffer> buffers_;
  uint64_t size_bytes_ = 0;
  bool was_cached_ = false;

  friend class WeightPacker;
};

}  // namespace tandem::runner
