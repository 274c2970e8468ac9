#pragma once
// FakeDevice: a plug-in for tests. Its memory is the host's, it runs op by op and records what it is asked; of the ops
// it computes TD_OP_ADD alone, and it packs a weight to n * k floats whose bytes are all n. Optional entries can be
// taken away and any call can be made to fail.
//
// One exists at a time, since a plug-in's table has no place for a pointer to it. One thread.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "compute/device/device_abi.h"

namespace tandem::device {

class FakeDevice {
 public:
  FakeDevice();
  ~FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // What Plugin::from_entry() takes; returns table().
  td_plugin_entry entry() const;
  // Of the optional entries health, memory_import, host_callback and copy_blocks are there; set to null what shall be
  // missing. plan_create, plan_launch and plan_destroy are there after add_plans(), those of events after add_events().
  td_plugin& table() { return table_; }
  void add_plans();
  void add_events();
  // Whether events that were recorded have passed, from now on. At first they have.
  void let_events_pass(bool is_passing) { events_pass_ = is_passing; }
  td_properties& properties() { return properties_; }

  // The `call_index`-th call from now on that can fail (0: the next one) does, once.
  void fail(uint32_t call_index, td_status status, const std::string& message);

  // Entries called so far, in order, with the number that matters: "memory_alloc 64", "op_launch 9".
  const std::vector<std::string>& calls() const { return calls_; }
  void forget_calls() { calls_.clear(); }
  // Devices, streams, plans and addresses that were given out and not given back. Giving back what was not given out
  // stops the process.
  size_t num_live() const { return live_.size(); }

 private:
  friend struct FakeEntries;  // the C functions of the table

  td_status record(const std::string& call, td_message* error);
  void* give(void* handle);
  void take_back(void* handle, const char* call);
  void* new_handle() { return reinterpret_cast<void*>(next_handle_ += 64); }

  td_plugin table_{};
  td_properties properties_{};
  std::vector<std::string> calls_;
  std::set<void*> live_;
  uintptr_t next_handle_ = 0x1000;  // of devices, streams and plans: nobody may look inside
  bool events_pass_ = true;
  int64_t calls_until_failure_ = -1;
  td_status failure_ = TD_OK;
  std::string failure_message_;
};

}  // namespace tandem::device
