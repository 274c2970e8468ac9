#pragma once
// Plugin, Device, Buffer, Stream, Event, DevicePlan: owning C++ handles over the C ABI (device_abi.h), with the ABI's
// documented defaults for entries that a plug-in leaves out. Errors carry the device's own words.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "compute/device/device_abi.h"

namespace tandem::device {

// A plug-in's table, checked for its version and for entries that have no default. A value; a loaded library stays
// mapped for the life of the program, since devices may outlive the last Plugin.
class Plugin {
 public:
  static Result<Plugin> from_entry(td_plugin_entry entry);
  // dlopen()s `path` and calls tandem_plugin_<name>.
  static Result<Plugin> load(const std::string& path, const std::string& name);

  const td_plugin& table() const { return *table_; }

 private:
  explicit Plugin(const td_plugin* table) : table_(table) {}
  const td_plugin* table_;
};

class Device;

// Device memory. Moves; frees at the end. The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* address() const { return address_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  friend class Device;
  Buffer(const td_plugin* table, td_device* device, void* address, uint64_t size_bytes)
      : table_(table), device_(device), address_(address), size_bytes_(size_bytes) {}

  const td_plugin* table_ = nullptr;
  td_device* device_ = nullptr;
  void* address_ = nullptr;
  uint64_t size_bytes_ = 0;
};

class Stream;

// A point in a stream's work. One thread. The device must outlive it. One that was never recorded counts as passed.
class Event {
 public:
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  ~Event();

  // Marks the end of what the stream has been given so far; again: moves the mark.
  Status record(Stream& stream);
  // Has the stream come that far? Does not wait.
  Result<bool> is_passed() const;

 private:
  friend class Device;
  friend class Stream;
  Event(const td_plugin* table, td_event* event) : table_(table), event_(event) {}

  const td_plugin* table_;
  td_event* event_;  // null on devices without events, where record() waits for the stream instead
};

// Work in order. One thread. The device must outlive it.
class Stream {
 public:
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  Status synchronize();
  Status copy_to_device(void* to, const void* from_host, uint64_t size_bytes);
  Status copy_to_host(void* to_host, const void* from, uint64_t size_bytes);
  Status copy_on_device(void* to, const void* from, uint64_t size_bytes);
  Status copy_blocks(void* kv, const td_kv_layout& layout, std::span<const td_block_copy> copies);
  // What is given to this stream from now on starts when `event` has passed, on whichever stream it was recorded.
  Status wait(const Event& event);
  // Calls `function(argument)` when the stream has come this far.
  Status host_callback(td_host_function function, void* argument);

 private:
  friend class Device;
  friend class DevicePlan;
  friend class Event;
  Stream(const td_plugin* table, td_stream* stream) : table_(table), stream_(stream) {}

  const td_plugin* table_;
  td_stream* stream_;
};

// A list of ops ready to run. Device and weights must outlive it.
class DevicePlan {
 public:
  DevicePlan(DevicePlan&& other) noexcept;
  DevicePlan& operator=(DevicePlan&&) = delete;
  ~DevicePlan();

  Status launch(Stream& stream, const td_bindings& bindings);
  // Ops [begin_op, end_op) alone: what device_abi.h says of plan_launch_part. Only where has_parts().
  bool has_parts() const;
  Status launch_part(Stream& stream, uint32_t begin_op, uint32_t end_op, const td_bindings& bindings);

 private:
  friend class Device;
  struct Ops;  // the kept description, for devices that run op by op
  DevicePlan(const td_plugin* table, td_plan* plan, std::unique_ptr<Ops> ops);

  const td_plugin* table_;
  td_plan* plan_;
  std::unique_ptr<Ops> ops_;
};

// An open device. One thread at a time.
class Device {
 public:
  static Result<Device> open(const Plugin& plugin, uint32_t index, const td_device_options& options);
  Device(Device&& other) noexcept;
  Device& operator=(Device&&) = delete;
  ~Device();

  td_properties properties() const;
  Result<std::string> fingerprint();
  Status health();

  Result<Buffer> alloc(uint64_t size_bytes);
  // Read-only host bytes as device memory: in place when the device can, else by a copy.
  Result<Buffer> import(const void* host, uint64_t size_bytes);
  Result<Stream> create_stream();
  Result<Event> create_event();

  uint64_t row_bytes(td_format format, uint32_t columns) const;
  Status fill_kv_layout(td_kv_layout& layout);
  // 0: this device moves KV in whole blocks only, and the next two are kInvalidArgument. `kv`: of the pool.
  uint64_t kv_slot_bytes(const td_kv_layout& layout) const;
  Status read_kv_slots(const void* kv, const td_kv_layout& layout, uint32_t block, uint32_t begin, uint32_t count,
                       void* to_host);
  Status write_kv_slots(void* kv, const td_kv_layout& layout, uint32_t block, uint32_t begin, uint32_t count,
                        const void* from_host);
  Result<uint64_t> weight_pack_size(const td_weight_desc& desc);
  Status weight_pack(const td_weight_desc& desc, void* host);
  Status op_supported(const td_op& op, const td_weight* weights);
  Result<DevicePlan> create_plan(const td_plan_desc& desc);

 private:
  Device(const td_plugin* table, td_device* device) : table_(table), device_(device) {}

  const td_plugin* table_;
  td_device* device_;
};

// A device call's outcome as a Status.
Status to_status(td_status status, const td_message& message);

}  // namespace tandem::device
