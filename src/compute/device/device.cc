#include "compute/device/device.h"

#include <dlfcn.h>

#include <string.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace tandem::device {
namespace {

ErrorCode to_code(td_status status) {
  switch (status) {
    case TD_INVALID:
    case TD_UNSUPPORTED: return ErrorCode::kInvalidArgument;
    case TD_OUT_OF_MEMORY: return ErrorCode::kExhausted;
    case TD_DEVICE_LOST: return ErrorCode::kUnavailable;
    default: return ErrorCode::kInternal;
  }
}

// Runs an ABI call that takes a message last.
template <class Call>
Status run(Call call) {
  td_message message{};
  return to_status(call(&message), message);
}

constexpr size_t kFirstTableBytes = offsetof(td_plugin, kv_slot_bytes);  // of ABI 1.0

bool knows_slots(const td_plugin& table) { return table.size_bytes >= offsetof(td_plugin, plan_launch_part); }
bool knows_parts(const td_plugin& table) { return table.size_bytes >= sizeof(td_plugin); }

Error no_slots() { return {ErrorCode::kInvalidArgument, "this device moves KV in whole blocks only"}; }

// The first entry without a default that the table leaves out, or a group of which only some are there; empty: none.
std::string missing_entry(const td_plugin& t) {
  const std::pair<const char*, bool> needed[] = {
      {"device_count", t.device_count != nullptr},
      {"device_open", t.device_open != nullptr},
      {"device_close", t.device_close != nullptr},
      {"properties", t.properties != nullptr},
      {"fingerprint", t.fingerprint != nullptr},
      {"memory_alloc", t.memory_alloc != nullptr},
      {"memory_free", t.memory_free != nullptr},
      {"host_alloc with host_free", (t.host_alloc != nullptr) == (t.host_free != nullptr)},
      {"stream_create", t.stream_create != nullptr},
      {"stream_destroy", t.stream_destroy != nullptr},
      {"stream_synchronize", t.stream_synchronize != nullptr},
      {"copy_to_device", t.copy_to_device != nullptr},
      {"copy_to_host", t.copy_to_host != nullptr},
      {"copy_on_device", t.copy_on_device != nullptr},
      {"row_bytes", t.row_bytes != nullptr},
      {"kv_layout", t.kv_layout != nullptr},
      {"weight_pack_size", t.weight_pack_size != nullptr},
      {"weight_pack", t.weight_pack != nullptr},
      {"op_supported", t.op_supported != nullptr},
      {"plan_launch with plan_create", (t.plan_launch != nullptr) == (t.plan_create != nullptr)},
      {"plan_destroy with plan_create", (t.plan_destroy != nullptr) == (t.plan_create != nullptr)},
  };
  for (const auto& [name, is_there] : needed) {
    if (!is_there) return name;
  }
  const int num_event_entries = (t.event_create != nullptr) + (t.event_destroy != nullptr) +
                                (t.event_record != nullptr) + (t.event_wait != nullptr) + (t.event_query != nullptr);
  if (num_event_entries != 0 && num_event_entries != 5) return "all five event entries together";
  if (knows_slots(t)) {
    const int num_slot_entries =
        (t.kv_slot_bytes != nullptr) + (t.kv_read_slots != nullptr) + (t.kv_write_slots != nullptr);
    if (num_slot_entries != 0 && num_slot_entries != 3) return "all three KV slot entries together";
  }
  return {};
}

}  // namespace

Status to_status(td_status status, const td_message& message) {
  if (status == TD_OK) return Done{};
  const size_t length = strnlen(message.text, sizeof message.text);
  return Error{to_code(status), length > 0 ? std::string(message.text, length) : "the device gave no reason"};
}

Result<Plugin> Plugin::from_entry(td_plugin_entry entry) {
  const td_plugin* table = entry();
  if (table == nullptr) return Error{ErrorCode::kInternal, "the plug-in returned no table"};
  if (table->abi_major != TD_ABI_MAJOR || table->size_bytes < kFirstTableBytes) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string("plug-in ") + (table->name != nullptr ? table->name : "?") + " speaks ABI " +
                     std::to_string(table->abi_major) + "." + std::to_string(table->abi_minor) + " (" +
                     std::to_string(table->size_bytes) + " bytes), this program " + std::to_string(TD_ABI_MAJOR) + "." +
                     std::to_string(TD_ABI_MINOR) + " (" + std::to_string(sizeof(td_plugin)) + " bytes)"};
  }
  if (const std::string missing = missing_entry(*table); !missing.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string("plug-in ") + (table->name != nullptr ? table->name : "?") + " lacks " + missing};
  }
  return Plugin(table);
}

Result<Plugin> Plugin::load(const std::string& path, const std::string& name) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Error{ErrorCode::kNotFound, std::string("plug-in: ") + dlerror()};
  const std::string symbol = "tandem_plugin_" + name;
  auto* entry = reinterpret_cast<td_plugin_entry>(dlsym(library, symbol.c_str()));
  if (entry == nullptr) return Error{ErrorCode::kInvalidArgument, path + " does not export " + symbol};
  return from_entry(entry);
}

Buffer::Buffer(Buffer&& other) noexcept
    : table_(other.table_),
      device_(other.device_),
      address_(std::exchange(other.address_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (address_ != nullptr) table_->memory_free(device_, address_);
}

Event::Event(Event&& other) noexcept : table_(other.table_), event_(std::exchange(other.event_, nullptr)) {}
Event::~Event() {
  if (event_ != nullptr) table_->event_destroy(event_);
}

Status Event::record(Stream& stream) {
  if (event_ == nullptr) return stream.synchronize();
  return run([&](td_message* error) { return table_->event_record(event_, stream.stream_, error); });
}

Result<bool> Event::is_passed() const {
  if (event_ == nullptr) return true;
  uint32_t is_done = 0;
  TRY(run([&](td_message* error) { return table_->event_query(event_, &is_done, error); }));
  return is_done != 0;
}

Stream::Stream(Stream&& other) noexcept : table_(other.table_), stream_(std::exchange(other.stream_, nullptr)) {}
Stream::~Stream() {
  if (stream_ != nullptr) table_->stream_destroy(stream_);
}

Status Stream::synchronize() {
  return run([&](td_message* error) { return table_->stream_synchronize(stream_, error); });
}
Status Stream::copy_to_device(void* to, const void* from_host, uint64_t size_bytes) {
  return run([&](td_message* error) { return table_->copy_to_device(stream_, to, from_host, size_bytes, error); });
}
Status Stream::copy_to_host(void* to_host, const void* from, uint64_t size_bytes) {
  return run([&](td_message* error) { return table_->copy_to_host(stream_, to_host, from, size_bytes, error); });
}
Status Stream::copy_on_device(void* to, const void* from, uint64_t size_bytes) {
  return run([&](td_message* error) { return table_->copy_on_device(stream_, to, from, size_bytes, error); });
}

Status Stream::copy_blocks(void* kv, const td_kv_layout& layout, std::span<const td_block_copy> copies) {
  if (copies.empty()) return Done{};
  if (table_->copy_blocks != nullptr) {
    return run([&](td_message* error) {
      return table_->copy_blocks(stream_, kv, &layout, copies.data(), static_cast<uint32_t>(copies.size()), error);
    });
  }
  auto* base = static_cast<uint8_t*>(kv);
  for (const td_block_copy& copy : copies) {
    TRY(copy_on_device(base + copy.to * layout.block_stride, base + copy.from * layout.block_stride,
                       layout.block_stride));
  }
  return Done{};
}

Status Stream::wait(const Event& event) {
  if (event.event_ == nullptr) return Done{};  // record() has waited already
  return run([&](td_message* error) { return table_->event_wait(stream_, event.event_, error); });
}

Status Stream::host_callback(td_host_function function, void* argument) {
  if (table_->host_callback != nullptr) {
    return run([&](td_message* error) { return table_->host_callback(stream_, function, argument, error); });
  }
  TRY(synchronize());
  function(argument);
  return Done{};
}

// The whole description, copied: the caller's may go.
struct DevicePlan::Ops {
  std::vector<td_op> ops;
  std::vector<td_weight> weights;
  std::vector<std::vector<td_weight_part>> parts;
  td_plan_desc desc;
};

DevicePlan::DevicePlan(const td_plugin* table, td_plan* plan, std::unique_ptr<Ops> ops)
    : table_(table), plan_(plan), ops_(std::move(ops)) {}
DevicePlan::DevicePlan(DevicePlan&& other) noexcept
    : table_(other.table_), plan_(std::exchange(other.plan_, nullptr)), ops_(std::move(other.ops_)) {}
DevicePlan::~DevicePlan() {
  if (plan_ != nullptr) table_->plan_destroy(plan_);
}

Status DevicePlan::launch(Stream& stream, const td_bindings& bindings) {
  if (plan_ != nullptr) {
    return run([&](td_message* error) { return table_->plan_launch(stream.stream_, plan_, &bindings, error); });
  }
  return launch_part(stream, 0, static_cast<uint32_t>(ops_->ops.size()), bindings);
}

bool DevicePlan::has_parts() const {
  return plan_ == nullptr || (knows_parts(*table_) && table_->plan_launch_part != nullptr);
}

Status DevicePlan::launch_part(Stream& stream, uint32_t begin_op, uint32_t end_op, const td_bindings& bindings) {
  if (!has_parts()) return Error{ErrorCode::kInvalidArgument, "this device launches plans as a whole only"};
  if (plan_ != nullptr) {
    return run([&](td_message* error) {
      return table_->plan_launch_part(stream.stream_, plan_, begin_op, end_op, &bindings, error);
    });
  }
  if (begin_op > end_op || end_op > ops_->ops.size()) {
    return Error{ErrorCode::kInvalidArgument, "launch: no such part of the plan"};
  }
  for (uint32_t op = begin_op; op < end_op; ++op) {
    TRY(run([&](td_message* error) {
      return table_->op_launch(stream.stream_, &ops_->desc, &ops_->ops[op], &bindings, error);
    }));
  }
  return Done{};
}

Result<Device> Device::open(const Plugin& plugin, uint32_t index, const td_device_options& options) {
  const td_plugin& table = plugin.table();
  td_device* device = nullptr;
  TRY(run([&](td_message* error) { return table.device_open(index, &options, &device, error); }));
  return Device(&table, device);
}

Device::Device(Device&& other) noexcept : table_(other.table_), device_(std::exchange(other.device_, nullptr)) {}
Device::~Device() {
  if (device_ != nullptr) table_->device_close(device_);
}

td_properties Device::properties() const {
  td_properties properties{};
  table_->properties(device_, &properties);
  return properties;
}

Result<std::string> Device::fingerprint() {
  char digest[33] = {};
  TRY(run([&](td_message* error) { return table_->fingerprint(device_, digest, error); }));
  return std::string(digest);
}

Status Device::health() {
  if (table_->health == nullptr) return Done{};
  return run([&](td_message* error) { return table_->health(device_, error); });
}

Result<Buffer> Device::alloc(uint64_t size_bytes) {
  void* address = nullptr;
  TRY(run([&](td_message* error) { return table_->memory_alloc(device_, size_bytes, &address, error); }));
  return Buffer(table_, device_, address, size_bytes);
}

Result<Buffer> Device::import(const void* host, uint64_t size_bytes) {
  if (table_->memory_import != nullptr) {
    void* address = nullptr;
    TRY(run([&](td_message* error) { return table_->memory_import(device_, host, size_bytes, &address, error); }));
    return Buffer(table_, device_, address, size_bytes);
  }
  TRY_ASSIGN(Buffer buffer, alloc(size_bytes));
  TRY_ASSIGN(Stream stream, create_stream());
  TRY(stream.copy_to_device(buffer.address(), host, size_bytes));
  TRY(stream.synchronize());
  return buffer;
}

Result<Stream> Device::create_stream() {
  td_stream* stream = nullptr;
  TRY(run([&](td_message* error) { return table_->stream_create(device_, &stream, error); }));
  return Stream(table_, stream);
}

Result<Event> Device::create_event() {
  td_event* event = nullptr;
  if (table_->event_create != nullptr) {
    TRY(run([&](td_message* error) { return table_->event_create(device_, &event, error); }));
  }
  return Event(table_, event);
}

uint64_t Device::row_bytes(td_format format, uint32_t columns) const {
  return table_->row_bytes(device_, format, columns);
}

uint64_t Device::kv_slot_bytes(const td_kv_layout& layout) const {
  return knows_slots(*table_) && table_->kv_slot_bytes != nullptr ? table_->kv_slot_bytes(device_, &layout) : 0;
}

Status Device::read_kv_slots(const void* kv, const td_kv_layout& layout, uint32_t block, uint32_t begin, uint32_t count,
                             void* to_host) {
  if (kv_slot_bytes(layout) == 0) return no_slots();
  return run([&](td_message* error) {
    return table_->kv_read_slots(device_, kv, &layout, block, begin, count, to_host, error);
  });
}

Status Device::write_kv_slots(void* kv, const td_kv_layout& layout, uint32_t block, uint32_t begin, uint32_t count,
                              const void* from_host) {
  if (kv_slot_bytes(layout) == 0) return no_slots();
  return run([&](td_message* error) {
    return table_->kv_write_slots(device_, kv, &layout, block, begin, count, from_host, error);
  });
}

Status Device::fill_kv_layout(td_kv_layout& layout) {
  return run([&](td_message* error) { return table_->kv_layout(device_, &layout, error); });
}

Result<uint64_t> Device::weight_pack_size(const td_weight_desc& desc) {
  uint64_t size_bytes = 0;
  TRY(run([&](td_message* error) { return table_->weight_pack_size(device_, &desc, &size_bytes, error); }));
  return size_bytes;
}

Status Device::weight_pack(const td_weight_desc& desc, void* host) {
  return run([&](td_message* error) { return table_->weight_pack(device_, &desc, host, error); });
}

Status Device::op_supported(const td_op& op, const td_weight* weights) {
  return run([&](td_message* error) { return table_->op_supported(device_, &op, weights, error); });
}

Result<DevicePlan> Device::create_plan(const td_plan_desc& desc) {
  if (table_->plan_create != nullptr) {
    td_plan* plan = nullptr;
    TRY(run([&](td_message* error) { return table_->plan_create(device_, &desc, &plan, error); }));
    return DevicePlan(table_, plan, nullptr);
  }
  if (table_->op_launch == nullptr) {
    return Error{ErrorCode::kInvalidArgument, "the plug-in can run neither plans nor ops"};
  }
  auto ops = std::make_unique<DevicePlan::Ops>();
  ops->ops.assign(desc.ops, desc.ops + desc.num_ops);
  ops->weights.assign(desc.weights, desc.weights + desc.num_weights);
  ops->parts.reserve(desc.num_weights);
  for (td_weight& weight : ops->weights) {
    ops->parts.emplace_back(weight.desc.parts, weight.desc.parts + weight.desc.num_parts);
    weight.desc.parts = ops->parts.back().data();
  }
  ops->desc = desc;
  ops->desc.ops = ops->ops.data();
  ops->desc.weights = ops->weights.data();
  return DevicePlan(table_, nullptr, std::move(ops));
}

}  // namespace tandem::device
