#include "compute/device/fake_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

namespace tandem::device {
namespace {

FakeDevice* current = nullptr;

const td_plugin* current_table() { return &current->table(); }

uint8_t* row_of(const td_operand& operand, const td_bindings& bindings, uint32_t row) {
  void* base = operand.space == TD_ARENA ? bindings.arena : bindings.external[operand.slot];
  return static_cast<uint8_t*>(base) + operand.offset + row * operand.row_bytes + operand.column_begin * sizeof(float);
}

void add_rows(const td_op& op, const td_bindings& bindings) {
  for (uint32_t row = 0; row < bindings.num_tokens; ++row) {
    const auto* a = reinterpret_cast<const float*>(row_of(op.in[0], bindings, row));
    const auto* b = reinterpret_cast<const float*>(row_of(op.in[1], bindings, row));
    auto* out = reinterpret_cast<float*>(row_of(op.out[0], bindings, row));
    for (uint32_t i = 0; i < op.out[0].columns; ++i) out[i] = a[i] + b[i];
  }
}

}  // namespace

struct FakeEntries {
  static td_status record(const std::string& call, td_message* error) { return current->record(call, error); }
  template <class Handle>
  static void give(Handle** out) {
    *out = static_cast<Handle*>(current->give(current->new_handle()));
  }

  static td_status device_count(uint32_t* count, td_message* error) {
    *count = 1;
    return record("device_count", error);
  }
  static td_status device_open(uint32_t index, const td_device_options*, td_device** device, td_message* error) {
    const td_status status = record("device_open " + std::to_string(index), error);
    if (status == TD_OK) give(device);
    return status;
  }
  static void device_close(td_device* device) { current->take_back(device, "device_close"); }
  static void properties(td_device*, td_properties* properties) { *properties = current->properties_; }
  static td_status health(td_device*, td_message* error) { return record("health", error); }
  static td_status fingerprint(td_device*, char digest[33], td_message* error) {
    memcpy(digest, "0123456789abcdef0123456789abcdef", 33);
    return record("fingerprint", error);
  }

  static td_status memory_alloc(td_device*, uint64_t size_bytes, void** address, td_message* error) {
    const td_status status = record("memory_alloc " + std::to_string(size_bytes), error);
    if (status != TD_OK) return status;
    const uint64_t rounded = (size_bytes + 64) / 64 * 64;
    *address = current->give(aligned_alloc(64, rounded));
    memset(*address, 0, rounded);
    return TD_OK;
  }
  static void memory_free(td_device*, void* address) {
    current->take_back(address, "memory_free");
    free(address);
  }
  static td_status memory_import(td_device* device, const void* host, uint64_t size_bytes, void** address,
                                 td_message* error) {
    const td_status status = record("memory_import " + std::to_string(size_bytes), error);
    // A copy, so that memory_free may free whatever it gets.
    td_message ignored{};
    if (status != TD_OK) return status;
    const td_status allocated = memory_alloc(device, size_bytes, address, &ignored);
    if (allocated == TD_OK) memcpy(*address, host, size_bytes);
    return allocated;
  }

  static td_status stream_create(td_device*, td_stream** stream, td_message* error) {
    const td_status status = record("stream_create", error);
    if (status == TD_OK) give(stream);
    return status;
  }
  static void stream_destroy(td_stream* stream) { current->take_back(stream, "stream_destroy"); }
  static td_status stream_synchronize(td_stream*, td_message* error) { return record("stream_synchronize", error); }
  static td_status host_callback(td_stream*, td_host_function function, void* argument, td_message* error) {
    const td_status status = record("host_callback", error);
    if (status == TD_OK) function(argument);
    return status;
  }

  static td_status event_create(td_device*, td_event** event, td_message* error) {
    const td_status status = record("event_create", error);
    if (status == TD_OK) give(event);
    return status;
  }
  static void event_destroy(td_event* event) { current->take_back(event, "event_destroy"); }
  static td_status event_record(td_event*, td_stream*, td_message* error) { return record("event_record", error); }
  static td_status event_wait(td_stream*, td_event*, td_message* error) { return record("event_wait", error); }
  static td_status event_query(td_event*, uint32_t* is_done, td_message* error) {
    *is_done = current->events_pass_ ? 1 : 0;
    return record("event_query", error);
  }

  static td_status copy(const char* name, void* to, const void* from, uint64_t size_bytes, td_message* error) {
    const td_status status = record(std::string(name) + " " + std::to_string(size_bytes), error);
    if (status == TD_OK) memcpy(to, from, size_bytes);
    return status;
  }
  static td_status copy_to_device(td_stream*, void* to, const void* from, uint64_t size_bytes, td_message* error) {
    return copy("copy_to_device", to, from, size_bytes, error);
  }
  static td_status copy_to_host(td_stream*, void* to, const void* from, uint64_t size_bytes, td_message* error) {
    return copy("copy_to_host", to, from, size_bytes, error);
  }
  static td_status copy_on_device(td_stream*, void* to, const void* from, uint64_t size_bytes, td_message* error) {
    return copy("copy_on_device", to, from, size_bytes, error);
  }
  static td_status copy_blocks(td_stream*, void* kv, const td_kv_layout* layout, const td_block_copy* copies,
                               uint32_t num_copies, td_message* error) {
    const td_status status = record("copy_blocks " + std::to_string(num_copies), error);
    auto* base = static_cast<uint8_t*>(kv);
    for (uint32_t i = 0; status == TD_OK && i < num_copies; ++i) {
      memcpy(base + copies[i].to * layout->block_stride, base + copies[i].from * layout->block_stride,
             layout->block_stride);
    }
    return status;
  }

  static uint64_t row_bytes(td_device*, uint32_t format, uint32_t columns) {
    return uint64_t{columns} * (format == TD_BF16 ? 2 : 4);
  }
  static td_status kv_layout(td_device*, td_kv_layout* layout, td_message* error) {
    layout->head_stride = uint64_t{layout->block_tokens} * layout->head_dim * 2 * sizeof(float);
    layout->layer_stride = layout->head_stride * layout->num_kv_heads;
    layout->block_stride = layout->layer_stride * layout->num_layers;
    return record("kv_layout", error);
  }
  static td_status weight_pack_size(td_device*, const td_weight_desc* desc, uint64_t* size_bytes, td_message* error) {
    *size_bytes = uint64_t{desc->n} * desc->k * sizeof(float);
    return record("weight_pack_size", error);
  }
  static td_status weight_pack(td_device*, const td_weight_desc* desc, void* host, td_message* error) {
    const td_status status = record("weight_pack " + std::to_string(desc->n), error);
    if (status == TD_OK) memset(host, static_cast<int>(desc->n), uint64_t{desc->n} * desc->k * sizeof(float));
    return status;
  }

  static td_status op_supported(td_device*, const td_op* op, const td_weight*, td_message* error) {
    return record("op_supported " + std::to_string(op->kind), error);
  }
  static td_status op_launch(td_stream*, const td_plan_desc*, const td_op* op, const td_bindings* bindings,
                             td_message* error) {
    const td_status status = record("op_launch " + std::to_string(op->kind), error);
    if (status == TD_OK && op->kind == TD_OP_ADD) add_rows(*op, *bindings);
    return status;
  }
  static td_status plan_create(td_device*, const td_plan_desc* desc, td_plan** plan, td_message* error) {
    const td_status status = record("plan_create " + std::to_string(desc->num_ops), error);
    if (status == TD_OK) give(plan);
    return status;
  }
  static td_status plan_launch(td_stream*, td_plan*, const td_bindings*, td_message* error) {
    return record("plan_launch", error);
  }
  static void plan_destroy(td_plan* plan) { current->take_back(plan, "plan_destroy"); }
};

FakeDevice::FakeDevice() {
  TANDEM_CHECK(current == nullptr);
  current = this;
  table_.abi_major = TD_ABI_MAJOR;
  table_.abi_minor = TD_ABI_MINOR;
  table_.size_bytes = sizeof(td_plugin);
  table_.name = "fake";
  table_.device_count = FakeEntries::device_count;
  table_.device_open = FakeEntries::device_open;
  table_.device_close = FakeEntries::device_close;
  table_.properties = FakeEntries::properties;
  table_.health = FakeEntries::health;
  table_.fingerprint = FakeEntries::fingerprint;
  table_.memory_alloc = FakeEntries::memory_alloc;
  table_.memory_free = FakeEntries::memory_free;
  table_.memory_import = FakeEntries::memory_import;
  table_.stream_create = FakeEntries::stream_create;
  table_.stream_destroy = FakeEntries::stream_destroy;
  table_.stream_synchronize = FakeEntries::stream_synchronize;
  table_.host_callback = FakeEntries::host_callback;
  table_.copy_to_device = FakeEntries::copy_to_device;
  table_.copy_to_host = FakeEntries::copy_to_host;
  table_.copy_on_device = FakeEntries::copy_on_device;
  table_.copy_blocks = FakeEntries::copy_blocks;
  table_.row_bytes = FakeEntries::row_bytes;
  table_.kv_layout = FakeEntries::kv_layout;
  table_.weight_pack_size = FakeEntries::weight_pack_size;
  table_.weight_pack = FakeEntries::weight_pack;
  table_.op_supported = FakeEntries::op_supported;
  table_.op_launch = FakeEntries::op_launch;
  memcpy(properties_.name, "fake", 5);
  memcpy(properties_.pack_layout, "fake-v1", 8);
  properties_.host_visible = 1;
  properties_.is_synchronous = 1;
}

FakeDevice::~FakeDevice() { current = nullptr; }

td_plugin_entry FakeDevice::entry() const { return current_table; }

void FakeDevice::add_plans() {
  table_.plan_create = FakeEntries::plan_create;
  table_.plan_launch = FakeEntries::plan_launch;
  table_.plan_destroy = FakeEntries::plan_destroy;
}

void FakeDevice::add_events() {
  table_.event_create = FakeEntries::event_create;
  table_.event_destroy = FakeEntries::event_destroy;
  table_.event_record = FakeEntries::event_record;
  table_.event_wait = FakeEntries::event_wait;
  table_.event_query = FakeEntries::event_query;
}

void FakeDevice::fail(uint32_t call_index, td_status status, const std::string& message) {
  calls_until_failure_ = call_index;
  failure_ = status;
  failure_message_ = message;
}

td_status FakeDevice::record(const std::string& call, td_message* error) {
  calls_.push_back(call);
  if (calls_until_failure_ < 0 || calls_until_failure_-- > 0) return TD_OK;
  if (error != nullptr) strncpy(error->text, failure_message_.c_str(), sizeof error->text - 1);
  return failure_;
}

void* FakeDevice::give(void* handle) {
  live_.insert(handle);
  return handle;
}

void FakeDevice::take_back(void* handle, const char* call) {
  calls_.emplace_back(call);
  TANDEM_CHECK(live_.erase(handle) == 1);
}

}  // namespace tandem::device
