#include "serve/runner/packed_weights.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "compute/tensor/dtype.h"

namespace tandem::runner {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kNoOffset = ~uint64_t{0};  // of a derived weight
constexpr char kMagic[8] = {'T', 'N', 'D', 'M', 'P', 'A', 'C', 'K'};
constexpr uint32_t kVersion = 1;

// The cache file: this, then the weights one after the other, each aligned. Little endian.
struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t num_weights;
  uint64_t size_bytes;     // of the whole file
  char contents_hash[32];  // hex, over what is packed and how: names, shapes, types, layout
};
static_assert(sizeof(FileHeader) == 56);

uint64_t align_up(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

td_dtype to_td(tensor::DType dtype) {
  using tensor::DType;
  switch (dtype) {
    case DType::kF32: return TD_DTYPE_F32;
    case DType::kF16: return TD_DTYPE_F16;
    case DType::kBF16: return TD_DTYPE_BF16;
    case DType::kQ4_0: return TD_DTYPE_Q4_0;
    case DType::kQ4_1: return TD_DTYPE_Q4_1;
    case DType::kQ5_0: return TD_DTYPE_Q5_0;
    case DType::kQ5_1: return TD_DTYPE_Q5_1;
    case DType::kQ8_0: return TD_DTYPE_Q8_0;
    case DType::kQ2_K: return TD_DTYPE_Q2_K;
    case DType::kQ3_K: return TD_DTYPE_Q3_K;
    case DType::kQ4_K: return TD_DTYPE_Q4_K;
    case DType::kQ5_K: return TD_DTYPE_Q5_K;
    case DType::kQ6_K: return TD_DTYPE_Q6_K;
    case DType::kIQ4_NL: return TD_DTYPE_IQ4_NL;
    case DType::kIQ4_XS: return TD_DTYPE_IQ4_XS;
  }
  return TD_DTYPE_F32;
}

Error system_error(const std::string& path) { return Error{ErrorCode::kUnavailable, path + ": " + strerror(errno)}; }

}  // namespace

td_weight_desc describe_weight(const graph::Weight& weight, td_quantization quantization,
                               std::vector<td_weight_part>& parts) {
  parts.clear();
  for (const graph::WeightPart& part : weight.parts) {
    parts.push_back({to_td(part.dtype), part.num_rows, part.bytes.data()});
  }
  td_weight_desc desc{};
  desc.use = weight.use;
  desc.num_parts = static_cast<uint32_t>(parts.size());
  desc.parts = parts.data();
  desc.n = weight.n;
  desc.k = weight.k;
  desc.segments = weight.segments;
  desc.interleave = weight.interleave ? 1 : 0;
  desc.activation = weight.activation;
  desc.quantization = quantization;
  return desc;
}

// Builds a PackedWeights step by step.
class WeightPacker {
 public:
  WeightPacker(device::Device& device, const PackOptions& options) : device_(device), options_(options) {}

  Status describe(const std::vector<const graph::Graph*>& graphs) {
    Hasher hasher;
    const std::string layout = device_.properties().pack_layout;
    hasher.update(layout.data(), layout.size());
    uint64_t end = align_up(sizeof(FileHeader));
    for (const graph::Graph* graph : graphs) {
      result_.parts_.emplace_back();
      result_.weights_.emplace_back();
      result_.parts_.back().reserve(graph->weights.size());
      result_.weights_.back().reserve(graph->weights.size());
      for (const graph::Weight& weight : graph->weights) {
        TRY(describe_weight(weight, hasher, end));
      }
    }
    size_bytes_ = end;
    contents_hash_ = hasher.hex();
    return Done{};
  }

  // The cache file's weights; false when there is none that fits.
  Result<bool> map_cached(const std::string& path) {
    auto file = MappedFile::open(path);
    if (!file) return false;
    if (!is_ours(file.value().bytes())) {
      log_warning("serve/runner", "packed weights do not fit this model and are made again", {{"file", path}});
      return false;
    }
    TRY_ASSIGN(device::Buffer buffer, device_.import(file.value().bytes().data(), size_bytes_));
    place_at(static_cast<const uint8_t*>(buffer.address()));
    result_.buffers_.push_back(std::move(buffer));
    result_.files_.push_back(std::move(file).value());
    return true;
  }

  // Packs into a file beside, syncs, renames: a reader never sees half a file.
  Status write_cache(const std::string& path) {
    // A name of its own: another process or thread may be packing the same weights now.
    std::string beside = path + ".XXXXXX.new";
    const int fd = mkostemps(beside.data(), 4, O_CLOEXEC);
    if (fd < 0) return system_error(beside);
    Status written = fill_file(fd, beside);
    if (written && fsync(fd) != 0) written = system_error(beside);
    ::close(fd);
    if (written && rename(beside.c_str(), path.c_str()) != 0) written = system_error(path);
    if (!written) unlink(beside.c_str());
    return written;
  }

  Status pack_to_device() {
    const bool is_host_visible = device_.properties().host_visible != 0;
    TRY_ASSIGN(device::Buffer buffer, device_.alloc(size_bytes_));
    auto* target = static_cast<uint8_t*>(buffer.address());
    std::vector<uint8_t> staged(is_host_visible ? 0 : size_bytes_);
    TRY(pack_all(is_host_visible ? target : staged.data()));
    if (!is_host_visible) {
      TRY_ASSIGN(device::Stream stream, device_.create_stream());
      TRY(stream.copy_to_device(target, staged.data(), staged.size()));
      TRY(stream.synchronize());
    }
    place_at(target);
    result_.buffers_.push_back(std::move(buffer));
    return Done{};
  }

  std::string cache_path() const {
    return options_.cache_directory + "/" + options_.file_hash + "-" + contents_hash_ + ".pack";
  }

  // Small tables that are computed at load go to memory of their own, since they change with options.
  Status pack_derived() {
    const bool is_host_visible = device_.properties().host_visible != 0;
    for (td_weight* weight : derived_) {
      TRY_ASSIGN(device::Buffer buffer, device_.alloc(weight->size_bytes));
      std::vector<uint8_t> staged(is_host_visible ? 0 : weight->size_bytes);
      TRY(device_.weight_pack(weight->desc, is_host_visible ? buffer.address() : staged.data()));
      if (!is_host_visible) {
        TRY_ASSIGN(device::Stream stream, device_.create_stream());
        TRY(stream.copy_to_device(buffer.address(), staged.data(), staged.size()));
        TRY(stream.synchronize());
      }
      weight->address = buffer.address();
      result_.buffers_.push_back(std::move(buffer));
    }
    return Done{};
  }

  PackedWeights take(bool was_cached) && {
    result_.size_bytes_ = size_bytes_;
    result_.was_cached_ = was_cached;
    // Nothing of the weight files is referred to from here on.
    for (auto& graph : result_.parts_) {
      for (std::vector<td_weight_part>& parts : graph) {
        for (td_weight_part& part : parts) part.rows = nullptr;
      }
    }
    return std::move(result_);
  }

 private:
  Status describe_weight(const graph::Weight& weight, Hasher& hasher, uint64_t& end) {
    result_.parts_.back().emplace_back();
    std::vector<td_weight_part>& parts = result_.parts_.back().back();
    td_weight packed{};
    packed.desc = runner::describe_weight(weight, options_.quantization, parts);
    for (size_t i = 0; i < parts.size() && !weight.is_derived; ++i) {
      const std::string text = fmt::format("{}/{}x{};", static_cast<int>(parts[i].dtype), parts[i].num_rows, weight.k);
      hasher.update(weight.parts[i].name.data(), weight.parts[i].name.size());
      hasher.update(text.data(), text.size());
    }
    auto size = device_.weight_pack_size(packed.desc);
    if (!size) return std::move(size).error().during("weight " + weight.name);
    packed.size_bytes = *size;
    result_.weights_.back().push_back(packed);
    if (weight.is_derived) {
      derived_.push_back(&result_.weights_.back().back());
      offsets_.push_back(kNoOffset);
      return Done{};
    }
    const std::string text = fmt::format("{},{},{},{},{},{},{}|", static_cast<int>(weight.use), weight.n, weight.k,
                                         weight.segments, weight.interleave, static_cast<int>(weight.activation),
                                         static_cast<int>(options_.quantization));
    hasher.update(text.data(), text.size());
    offsets_.push_back(end);
    end += align_up(packed.size_bytes);
    return Done{};
  }

  bool is_ours(std::span<const uint8_t> bytes) const {
    FileHeader header{};
    if (bytes.size() != size_bytes_) return false;
    memcpy(&header, bytes.data(), sizeof header);
    return memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.version == kVersion &&
           header.num_weights == offsets_.size() && header.size_bytes == size_bytes_ &&
           memcmp(header.contents_hash, contents_hash_.data(), sizeof header.contents_hash) == 0;
  }

  Status fill_file(int fd, const std::string& name) {
    // Real blocks, not a hole: a full disk must show here and not as a signal in the middle of packing.
    if (const int code = posix_fallocate(fd, 0, static_cast<off_t>(size_bytes_)); code != 0) {
      errno = code;
      return system_error(name);
    }
    void* memory = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return system_error(name);
    auto* bytes = static_cast<uint8_t*>(memory);
    Status packed = pack_all(bytes);
    FileHeader header{};
    memcpy(header.magic, kMagic, sizeof kMagic);
    header.version = kVersion;
    header.num_weights = static_cast<uint32_t>(offsets_.size());
    header.size_bytes = size_bytes_;
    memcpy(header.contents_hash, contents_hash_.data(), sizeof header.contents_hash);
    memcpy(bytes, &header, sizeof header);
    if (packed && msync(memory, size_bytes_, MS_SYNC) != 0) packed = system_error(name);
    munmap(memory, size_bytes_);
    return packed;
  }

  Status pack_all(uint8_t* base) {
    size_t index = 0;
    for (const std::vector<td_weight>& weights : result_.weights_) {
      for (const td_weight& weight : weights) {
        const uint64_t offset = offsets_[index++];
        if (offset != kNoOffset) TRY(device_.weight_pack(weight.desc, base + offset));
      }
    }
    return Done{};
  }

  void place_at(const uint8_t* base) {
    size_t index = 0;
    for (std::vector<td_weight>& weights : result_.weights_) {
      for (td_weight& weight : weights) {
        const uint64_t offset = offsets_[index++];
        if (offset != kNoOffset) weight.address = base + offset;
      }
    }
  }

  device::Device& device_;
  const PackOptions& options_;
  PackedWeights result_;
  std::vector<uint64_t> offsets_;  // of all weights, in order, from the start of the file
  std::vector<td_weight*> derived_;
  uint64_t size_bytes_ = 0;
  std::string contents_hash_;
};

Result<PackedWeights> PackedWeights::create(device::Device& device, const std::vector<const graph::Graph*>& graphs,
                                            const PackOptions& options) {
  WeightPacker packer(device, options);
  TRY(packer.describe(graphs));
  TRY(packer.pack_derived());
  if (!options.cache_directory.empty()) {
    const std::string path = packer.cache_path();
    TRY_ASSIGN(const bool is_cached, packer.map_cached(path));
    if (is_cached) return std::move(packer).take(true);
    if (const Status written = packer.write_cache(path); written) {
      TRY_ASSIGN(const bool is_mapped, packer.map_cached(path));
      if (is_mapped) return std::move(packer).take(false);
    } else {
      log_warning("serve/runner", "packed weights cannot be kept", {{"reason", written.error().message}});
    }
  }
  TRY(packer.pack_to_device());
  return std::move(packer).take(false);
}

}  // namespace tandem::runner
