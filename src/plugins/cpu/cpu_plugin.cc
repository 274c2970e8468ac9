#include "plugins/cpu/cpu_plugin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <exception>
#include <new>
#include <set>
#include <string>
#include <system_error>

#include "base/hash.h"
#include "base/result.h"
#include "compute/kernels/denormals_off.h"
#include "compute/kernels/fingerprint.h"
#include "compute/kernels/kv_write.h"
#include "plugins/cpu/cpu_plan.h"
#include "plugins/cpu/weights.h"

using tandem::Done;
using tandem::Error;
using tandem::ErrorCode;
using tandem::Result;
using tandem::Status;

struct td_device {
  tandem::kernels::Isa isa;
  tandem::cpu::Team team;
  std::set<void*> owned;  // what memory_free() gives back; imported addresses are not in it

  td_device(tandem::kernels::Isa device_isa, uint32_t num_threads) : isa(device_isa), team(num_threads) {}
};

struct td_stream {
  td_device* device;
};

struct td_plan {
  std::unique_ptr<tandem::cpu::CpuPlan> plan;
};

namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kHugePageBytes = 2u << 20;
constexpr uint32_t kMaxThreads = 1024;
constexpr const char* kPackLayout = "cpu-panel32-v1";

td_status report(const Status& status, td_message* error) {
  if (status) return TD_OK;
  if (error != nullptr) {
    strncpy(error->text, status.error().message.c_str(), sizeof error->text - 1);
    error->text[sizeof error->text - 1] = '\0';
  }
  switch (status.error().code) {
    case ErrorCode::kInvalidArgument: return TD_INVALID;
    case ErrorCode::kExhausted: return TD_OUT_OF_MEMORY;
    default: return TD_INTERNAL;
  }
}

// No C++ exception may cross the ABI. To expect are a failed allocation and a thread that the system does not give.
template <class Call>
td_status guarded(td_message* error, Call call) {
  try {
    return report(call(), error);
  } catch (const std::bad_alloc&) {
    return report(Error{ErrorCode::kExhausted, "out of memory"}, error);
  } catch (const std::system_error& failure) {
    return report(Error{ErrorCode::kExhausted, failure.what()}, error);
  } catch (const std::exception& failure) {
    return report(Error{ErrorCode::kInternal, failure.what()}, error);
  }
}

td_status device_count(uint32_t* count, td_message* /*error*/) {
  *count = 1;
  return TD_OK;
}

Result<tandem::kernels::Isa> choose_isa(const char* name) {
  using tandem::kernels::Isa;
  if (name == nullptr || name[0] == '\0') return tandem::kernels::best_isa();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (tandem::kernels::isa_name(isa) != name) continue;
    if (!tandem::kernels::is_supported(isa)) {
      return Error{ErrorCode::kInvalidArgument, std::string("this machine has no ") + name};
    }
    return isa;
  }
  return Error{ErrorCode::kInvalidArgument,
               std::string("unknown instruction set '") + name + "'; there are scalar, avx2, avx512, avx512bf16"};
}

td_status device_open(uint32_t index, const td_device_options* options, td_device** device, td_message* error) {
  return guarded(error, [&]() -> Status {
    if (index != 0) return Error{ErrorCode::kInvalidArgument, "there is one CPU device, number 0"};
    TRY_ASSIGN(const tandem::kernels::Isa isa, choose_isa(options->isa));
    if (options->num_threads > kMaxThreads) {
      return Error{ErrorCode::kInvalidArgument, std::to_string(options->num_threads) + " threads are more than " +
                                                    std::to_string(kMaxThreads)};
    }
    *device = new td_device(isa, options->num_threads);
    return Done{};
  });
}

void device_close(td_device* device) {
  for (void* address : device->owned) free(address);
  delete device;
}

void properties(td_device* device, td_properties* out) {
  *out = td_properties{};
  const std::string name = "cpu/" + std::string(tandem::kernels::isa_name(device->isa));
  strncpy(out->name, name.c_str(), sizeof out->name - 1);
  strncpy(out->pack_layout, kPackLayout, sizeof out->pack_layout - 1);
  struct sysinfo machine {};
  if (sysinfo(&machine) == 0) out->memory_bytes = uint64_t{machine.totalram} * machine.mem_unit;
  out->host_visible = 1;
  out->batch_invariant = 1;
  out->is_synchronous = 1;
  out->num_threads = device->team.num_members();
}

td_status fingerprint(td_device* device, char digest[33], td_message* error) {
  return guarded(error, [&]() -> Status {
    const tandem::kernels::DenormalsOff denormals_off;
    tandem::Hasher hasher;
    for (const std::string& part :
         {tandem::kernels::linear_digest(device->isa), tandem::kernels::attention_digest(device->isa)}) {
      hasher.update(part.data(), part.size());
    }
    strncpy(digest, hasher.hex().c_str(), 33);
    return Done{};
  });
}

// Weights and KV are read once a step from end to end or in small pieces all over: with small pages the walks of the
// page tables take as long as the reads, above all under a hypervisor. Advice only: without it all works as before.
td_status memory_alloc(td_device* device, uint64_t size_bytes, void** address, td_message* error) {
  return guarded(error, [&]() -> Status {
    const uint64_t alignment = size_bytes >= kHugePageBytes ? kHugePageBytes : kAlignment;
    const uint64_t rounded = std::max(alignment, (size_bytes + alignment - 1) / alignment * alignment);
    void* memory = rounded < size_bytes ? nullptr : aligned_alloc(alignment, rounded);
    if (memory == nullptr) {
      return Error{ErrorCode::kExhausted, "no " + std::to_string(size_bytes >> 20) + " MiB of memory"};
    }
    if (alignment == kHugePageBytes) (void)madvise(memory, rounded, MADV_HUGEPAGE);
    device->owned.insert(memory);
    *address = memory;
    return Done{};
  });
}

void memory_free(td_device* device, void* address) {
  if (device->owned.erase(address) > 0) free(address);
}

td_status memory_import(td_device* /*device*/, const void* host, uint64_t /*size_bytes*/, void** address,
                        td_message* /*error*/) {
  *address = const_cast<void*>(host);
  return TD_OK;
}

td_status stream_create(td_device* device, td_stream** stream, td_message* error) {
  return guarded(error, [&]() -> Status {
    *stream = new td_stream{device};
    return Done{};
  });
}
void stream_destroy(td_stream* stream) { delete stream; }
td_status stream_synchronize(td_stream* /*stream*/, td_message* /*error*/) { return TD_OK; }

td_status copy(td_stream* /*stream*/, void* to, const void* from, uint64_t size_bytes, td_message* /*error*/) {
  memcpy(to, from, size_bytes);
  return TD_OK;
}

uint64_t row_bytes(td_device* /*device*/, uint32_t format, uint32_t columns) {
  return tandem::kernels::tk_activation_row_bytes(tandem::cpu::rows_kind(format), columns);
}

uint64_t kv_slot_bytes(td_device* /*device*/, const td_kv_layout* layout) {
  const uint32_t tile_bytes = tandem::kernels::tk_kv_tile_bytes(layout->kind, layout->head_dim);
  return uint64_t{layout->num_layers} * layout->num_kv_heads * (tile_bytes / tandem::kernels::TK_TILE_TOKENS);
}

// Calls copy(tile, slot of the tile, offset in the host's bytes) for each head of each slot.
template <typename Copy>
td_status for_slots(const td_kv_layout& layout, uint32_t block, uint32_t begin, uint32_t count, td_message* error,
                    const Copy& copy) {
  using namespace tandem::kernels;
  return guarded(error, [&]() -> Status {
    if (begin > layout.block_tokens || count > layout.block_tokens - begin) {
      return Error{ErrorCode::kInvalidArgument, "KV slots beyond the end of their block"};
    }
    const uint64_t tile_bytes = tk_kv_tile_bytes(layout.kind, layout.head_dim);
    uint64_t host = 0;
    for (uint32_t slot = begin; slot < begin + count; ++slot) {
      for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
        for (uint32_t head = 0; head < layout.num_kv_heads; ++head, host += tile_bytes / TK_TILE_TOKENS) {
          copy(block * layout.block_stride + layer * layout.layer_stride + head * layout.head_stride +
                   slot / TK_TILE_TOKENS * tile_bytes,
               slot % TK_TILE_TOKENS, host);
        }
      }
    }
    return Done{};
  });
}

td_status kv_read_slots(td_device* /*device*/, const void* kv, const td_kv_layout* layout, uint32_t block,
                        uint32_t begin, uint32_t count, void* to_host, td_message* error) {
  const auto kind = static_cast<tandem::kernels::tk_kv_kind>(layout->kind);
  return for_slots(*layout, block, begin, count, error, [&](uint64_t tile, uint32_t slot, uint64_t host) {
    tandem::kernels::kv_slot_out(kind, layout->head_dim, static_cast<const uint8_t*>(kv) + tile, slot,
                                 static_cast<uint8_t*>(to_host) + host);
  });
}

td_status kv_write_slots(td_device* /*device*/, void* kv, const td_kv_layout* layout, uint32_t block, uint32_t begin,
                         uint32_t count, const void* from_host, td_message* error) {
  const auto kind = static_cast<tandem::kernels::tk_kv_kind>(layout->kind);
  return for_slots(*layout, block, begin, count, error, [&](uint64_t tile, uint32_t slot, uint64_t host) {
    tandem::kernels::kv_slot_in(kind, layout->head_dim, static_cast<uint8_t*>(kv) + tile, slot,
                                static_cast<const uint8_t*>(from_host) + host);
  });
}

td_status kv_layout(td_device* /*device*/, td_kv_layout* layout, td_message* error) {
  using namespace tandem::kernels;
  return guarded(error, [&]() -> Status {
    if (layout->block_tokens == 0 || layout->block_tokens % TK_TILE_TOKENS != 0) {
      return Error{ErrorCode::kInvalidArgument, "the KV block size must be a multiple of 16"};
    }
    if (!tk_kv_is_supported(layout->kind, layout->head_dim)) {
      return Error{ErrorCode::kInvalidArgument, "no KV of this type for head_dim " + std::to_string(layout->head_dim) +
                                                    " (int8 needs a multiple of 32, the others an even number)"};
    }
    const uint64_t tiles = layout->block_tokens / TK_TILE_TOKENS;
    const uint64_t bytes = tiles * tk_kv_tile_bytes(layout->kind, layout->head_dim);
    layout->head_stride = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    layout->layer_stride = layout->head_stride * layout->num_kv_heads;
    layout->block_stride = layout->layer_stride * layout->num_layers;
    return Done{};
  });
}

td_status weight_pack_size(td_device* /*device*/, const td_weight_desc* desc, uint64_t* size_bytes, td_message* error) {
  return guarded(error, [&]() -> Status {
    TRY_ASSIGN(*size_bytes, tandem::cpu::packed_size(*desc));
    return Done{};
  });
}

td_status weight_pack(td_device* device, const td_weight_desc* desc, void* host, td_message* error) {
  return guarded(error, [&] { return tandem::cpu::pack(*desc, host, device->team); });
}

td_status op_supported(td_device* /*device*/, const td_op* op, const td_weight* /*weights*/, td_message* error) {
  return guarded(error, [&]() -> Status {
    if (op->kind <= TD_OP_ROPE_KV_WRITE) return Done{};
    return Error{ErrorCode::kInvalidArgument, "unknown op " + std::to_string(op->kind)};
  });
}

td_status plan_create(td_device* device, const td_plan_desc* desc, td_plan** plan, td_message* error) {
  return guarded(error, [&]() -> Status {
    TRY_ASSIGN(auto made, tandem::cpu::CpuPlan::create(*desc, device->isa, device->team));
    *plan = new td_plan{std::move(made)};
    return Done{};
  });
}

td_status plan_launch(td_stream* /*stream*/, td_plan* plan, const td_bindings* bindings, td_message* error) {
  return guarded(error, [&] { return plan->plan->launch(*bindings); });
}

td_status plan_launch_part(td_stream* /*stream*/, td_plan* plan, uint32_t begin_op, uint32_t end_op,
                           const td_bindings* bindings, td_message* error) {
  return guarded(error, [&] { return plan->plan->launch_part(begin_op, end_op, *bindings); });
}

void plan_destroy(td_plan* plan) { delete plan; }

td_plugin make_table() {
  td_plugin table{};
  table.abi_major = TD_ABI_MAJOR;
  table.abi_minor = TD_ABI_MINOR;
  table.size_bytes = sizeof(td_plugin);
  table.name = "cpu";
  table.device_count = device_count;
  table.device_open = device_open;
  table.device_close = device_close;
  table.properties = properties;
  table.fingerprint = fingerprint;
  table.memory_alloc = memory_alloc;
  table.memory_free = memory_free;
  table.memory_import = memory_import;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.copy_to_device = copy;
  table.copy_to_host = copy;
  table.copy_on_device = copy;
  table.row_bytes = row_bytes;
  table.kv_layout = kv_layout;
  table.weight_pack_size = weight_pack_size;
  table.weight_pack = weight_pack;
  table.op_supported = op_supported;
  table.plan_create = plan_create;
  table.plan_launch = plan_launch;
  table.plan_destroy = plan_destroy;
  table.kv_slot_bytes = kv_slot_bytes;
  table.kv_read_slots = kv_read_slots;
  table.kv_write_slots = kv_write_slots;
  table.plan_launch_part = plan_launch_part;
  return table;
}

}  // namespace

const td_plugin* tandem_plugin_cpu(void) {
  static const td_plugin table = make_table();
  return &table;
}
