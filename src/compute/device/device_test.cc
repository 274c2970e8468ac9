#include "compute/device/device.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "compute/device/fake_device.h"

namespace tandem::device {
namespace {

using Calls = std::vector<std::string>;

Device open_fake(const FakeDevice& fake) {
  auto plugin = Plugin::from_entry(fake.entry());
  REQUIRE(static_cast<bool>(plugin));
  auto device = Device::open(*plugin, 0, {});
  REQUIRE(static_cast<bool>(device));
  return std::move(device).value();
}

template <class T>
T need(Result<T> result) {
  REQUIRE_MESSAGE(static_cast<bool>(result), (result ? "" : result.error().message));
  return std::move(result).value();
}

TEST_CASE("a plug-in of another ABI, a shorter table or none is refused with both versions") {
  FakeDevice fake;
  fake.table().abi_major = TD_ABI_MAJOR + 1;
  auto newer = Plugin::from_entry(fake.entry());
  REQUIRE(!newer);
  CHECK(newer.error().code == ErrorCode::kInvalidArgument);
  CHECK(newer.error().message == "plug-in fake speaks ABI 2.2 (" + std::to_string(sizeof(td_plugin)) +
                                     " bytes), this program 1.2 (" + std::to_string(sizeof(td_plugin)) + " bytes)");
  fake.table().abi_major = TD_ABI_MAJOR;
  fake.table().size_bytes = 64;
  auto shorter = Plugin::from_entry(fake.entry());
  REQUIRE(!shorter);
  CHECK(shorter.error().message.find("(64 bytes)") != std::string::npos);
  // A newer plug-in of the same major version knows more than we do.
  fake.table().size_bytes = sizeof(td_plugin) + 8;
  fake.table().abi_minor = 9;
  CHECK(static_cast<bool>(Plugin::from_entry(fake.entry())));
  CHECK(!Plugin::from_entry([]() -> const td_plugin* { return nullptr; }));
}

TEST_CASE("a table of ABI 1.0 works without what came later, whatever lies behind its end") {
  FakeDevice fake;
  fake.table().size_bytes = offsetof(td_plugin, kv_slot_bytes);
  fake.table().abi_minor = 0;
  fake.table().kv_slot_bytes = [](td_device*, const td_kv_layout*) -> uint64_t { std::abort(); };
  Device device = open_fake(fake);
  td_kv_layout layout{};
  CHECK(device.kv_slot_bytes(layout) == 0);
  CHECK(device.read_kv_slots(nullptr, layout, 0, 0, 1, nullptr).error().message ==
        "this device moves KV in whole blocks only");
}

TEST_CASE("a plan runs in parts where the plug-in can: its own entry from 1.2 on, or op by op") {
  FakeDevice fake;
  fake.add_plans();
  fake.table().size_bytes = offsetof(td_plugin, plan_launch_part);
  fake.table().plan_launch_part = [](td_stream*, td_plan*, uint32_t, uint32_t, const td_bindings*, td_message*) {
    std::abort();
    return TD_OK;
  };
  const auto plan_on = [](Device& device) {
    td_op ops[3]{};
    for (uint32_t i = 0; i < 3; ++i) ops[i].kind = i;
    td_plan_desc desc{};
    desc.ops = ops;
    desc.num_ops = 3;
    auto plan = device.create_plan(desc);
    REQUIRE(plan);
    return std::move(*plan);
  };
  Device device = open_fake(fake);
  auto stream = device.create_stream();
  REQUIRE(stream);
  const td_bindings bindings{};
  {
    DevicePlan plan = plan_on(device);
    CHECK(!plan.has_parts());
    CHECK(plan.launch_part(*stream, 0, 1, bindings).error().code == ErrorCode::kInvalidArgument);
  }
  static int num_ops = 0;
  fake.table().size_bytes = sizeof(td_plugin);
  fake.table().plan_launch_part = [](td_stream*, td_plan*, uint32_t begin, uint32_t end, const td_bindings*,
                                     td_message*) {
    num_ops += static_cast<int>(end - begin);
    return TD_OK;
  };
  {
    DevicePlan plan = plan_on(device);
    CHECK(plan.has_parts());
    CHECK(plan.launch_part(*stream, 1, 3, bindings));
    CHECK(num_ops == 2);
  }
  fake.table().plan_create = nullptr;
  DevicePlan plan = plan_on(device);
  CHECK(plan.has_parts());
  fake.forget_calls();
  CHECK(plan.launch_part(*stream, 1, 3, bindings));
  CHECK(fake.calls() == std::vector<std::string>{"op_launch 1", "op_launch 2"});
  CHECK(!plan.launch_part(*stream, 2, 4, bindings));
}

TEST_CASE("a table without an entry that has no default, or with half a group of entries, is refused by name") {
  const auto complaint = [](const std::function<void(td_plugin&)>& spoil) {
    FakeDevice fake;
    spoil(fake.table());
    const auto plugin = Plugin::from_entry(fake.entry());
    return plugin ? std::string("accepted") : plugin.error().message;
  };
  CHECK(complaint([](td_plugin& t) {
          t.kv_slot_bytes = [](td_device*, const td_kv_layout*) -> uint64_t { return 8; };
        }) == "plug-in fake lacks all three KV slot entries together");
  CHECK(complaint([](td_plugin& t) { t.memory_free = nullptr; }) == "plug-in fake lacks memory_free");
  CHECK(complaint([](td_plugin& t) { t.weight_pack = nullptr; }) == "plug-in fake lacks weight_pack");
  CHECK(complaint([](td_plugin& t) { t.host_free = t.memory_free; }) == "plug-in fake lacks host_alloc with host_free");
  CHECK(complaint([](td_plugin& t) {
          t.event_query = [](td_event*, uint32_t*, td_message*) { return TD_OK; };
        }) == "plug-in fake lacks all five event entries together");
  CHECK(complaint([](td_plugin& t) {
          t.plan_destroy = [](td_plan*) {};
        }) == "plug-in fake lacks plan_destroy with plan_create");
  CHECK(complaint([](td_plugin& t) { t.health = nullptr, t.copy_blocks = nullptr, t.host_callback = nullptr; }) ==
        "accepted");
}

TEST_CASE("a plug-in file that is not there is not found") {
  const auto plugin = Plugin::load("/nowhere/libtandem_none.so", "none");
  REQUIRE(!plugin);
  CHECK(plugin.error().code == ErrorCode::kNotFound);
  CHECK(plugin.error().message.find("/nowhere/libtandem_none.so") != std::string::npos);
}

TEST_CASE("every status becomes an error of its kind, in the device's words") {
  FakeDevice fake;
  Device device = open_fake(fake);
  const std::pair<td_status, ErrorCode> codes[] = {{TD_INVALID, ErrorCode::kInvalidArgument},
                                                   {TD_UNSUPPORTED, ErrorCode::kInvalidArgument},
                                                   {TD_OUT_OF_MEMORY, ErrorCode::kExhausted},
                                                   {TD_DEVICE_LOST, ErrorCode::kUnavailable},
                                                   {TD_INTERNAL, ErrorCode::kInternal},
                                                   {static_cast<td_status>(7), ErrorCode::kInternal}};
  for (const auto& [status, code] : codes) {
    fake.fail(0, status, "as told");
    const auto buffer = device.alloc(64);
    REQUIRE(!buffer);
    CHECK(buffer.error().code == code);
    CHECK(buffer.error().message == "as told");
  }
  fake.fail(0, TD_INTERNAL, "");
  CHECK(device.fingerprint().error().message == "the device gave no reason");
  // A message without an end is cut, not read beyond.
  td_message full;
  memset(full.text, 'x', sizeof full.text);
  CHECK(to_status(TD_INTERNAL, full).error().message == std::string(sizeof full.text, 'x'));
}

TEST_CASE("all that is opened is given back once, moved or not") {
  FakeDevice fake;
  fake.add_plans();
  fake.add_events();
  {
    Device first = open_fake(fake);
    Device device = std::move(first);
    Buffer a = need(device.alloc(100)), b = need(device.alloc(200));
    CHECK(a.size_bytes() == 100);
    Buffer moved = std::move(a);
    CHECK(a.address() == nullptr);
    b = std::move(moved);
    CHECK(b.size_bytes() == 100);
    Stream stream = need(device.create_stream());
    Stream moved_stream = std::move(stream);
    td_plan_desc desc{};
    DevicePlan plan = need(device.create_plan(desc));
    DevicePlan moved_plan = std::move(plan);
    CHECK(static_cast<bool>(moved_plan.launch(moved_stream, {})));
    Event event = need(device.create_event());
    const Event moved_event = std::move(event);
    CHECK(fake.num_live() == 6);
  }
  CHECK(fake.num_live() == 0);
}

TEST_CASE("nothing is kept when opening or making something fails") {
  FakeDevice fake;
  fake.fail(0, TD_UNSUPPORTED, "no such device");
  auto plugin = Plugin::from_entry(fake.entry());
  CHECK(Device::open(*plugin, 3, {}).error().message == "no such device");
  CHECK(fake.calls() == Calls{"device_open 3"});
  CHECK(fake.num_live() == 0);
  fake.table().memory_import = nullptr;
  {
    Device device = open_fake(fake);
    const std::array<char, 64> bytes{};
    // Allocation, stream, copy and synchronisation fail in turn.
    for (uint32_t call = 0; call < 4; ++call) {
      fake.fail(call, TD_INTERNAL, "broken");
      CHECK(!device.import(bytes.data(), bytes.size()));
      CHECK(fake.num_live() == 1);
    }
    CHECK(static_cast<bool>(device.import(bytes.data(), bytes.size())));
  }
  CHECK(fake.num_live() == 0);
}

TEST_CASE("host memory is imported in place by devices that can, copied by others") {
  FakeDevice fake;
  Device device = open_fake(fake);
  const std::string text = "weights";
  fake.forget_calls();
  const Buffer imported = need(device.import(text.data(), text.size()));
  CHECK(fake.calls()[0] == "memory_import 7");
  fake.table().memory_import = nullptr;
  fake.forget_calls();
  const Buffer copied = need(device.import(text.data(), text.size()));
  CHECK(fake.calls() ==
        Calls{"memory_alloc 7", "stream_create", "copy_to_device 7", "stream_synchronize", "stream_destroy"});
  CHECK(memcmp(copied.address(), text.data(), text.size()) == 0);
}

TEST_CASE("blocks are copied by the device in one call, or one by one, in order") {
  FakeDevice fake;
  Device device = open_fake(fake);
  Stream stream = need(device.create_stream());
  td_kv_layout layout{};
  layout.block_tokens = 16, layout.num_layers = 1, layout.num_kv_heads = 1, layout.head_dim = 2;
  CHECK(static_cast<bool>(device.fill_kv_layout(layout)));
  const std::vector<td_block_copy> copies = {{0, 2}, {2, 3}, {1, 0}};
  for (const bool has_entry : {true, false}) {
    if (!has_entry) fake.table().copy_blocks = nullptr;
    Buffer kv = need(device.alloc(4 * layout.block_stride));
    auto* bytes = static_cast<uint8_t*>(kv.address());
    for (uint64_t i = 0; i < 4 * layout.block_stride; ++i) bytes[i] = static_cast<uint8_t>(i / layout.block_stride);
    fake.forget_calls();
    CHECK(static_cast<bool>(stream.copy_blocks(kv.address(), layout, copies)));
    CHECK(fake.calls().size() == (has_entry ? 1 : 3));
    const int expected[] = {1, 1, 0, 0};
    for (int block = 0; block < 4; ++block) {
      CHECK(bytes[block * layout.block_stride] == expected[block]);
      CHECK(bytes[(block + 1) * layout.block_stride - 1] == expected[block]);
    }
    fake.forget_calls();
    CHECK(static_cast<bool>(stream.copy_blocks(kv.address(), layout, {})));
    CHECK(fake.calls().empty());
  }
  fake.fail(1, TD_DEVICE_LOST, "gone");
  fake.forget_calls();
  Buffer kv = need(device.alloc(4 * layout.block_stride));
  CHECK(stream.copy_blocks(kv.address(), layout, copies).error().code == ErrorCode::kUnavailable);
  CHECK(fake.calls().size() == 2);  // the alloc and the copy that failed; no more after it
}

TEST_CASE("a host callback comes after the stream's work, also on devices without callbacks") {
  FakeDevice fake;
  Device device = open_fake(fake);
  Stream stream = need(device.create_stream());
  int called = 0;
  const auto count = [](void* argument) { ++*static_cast<int*>(argument); };
  CHECK(static_cast<bool>(stream.host_callback(count, &called)));
  CHECK(called == 1);
  fake.table().host_callback = nullptr;
  fake.forget_calls();
  CHECK(static_cast<bool>(stream.host_callback(count, &called)));
  CHECK(fake.calls() == Calls{"stream_synchronize"});
  CHECK(called == 2);
  fake.fail(0, TD_DEVICE_LOST, "gone");
  CHECK(!stream.host_callback(count, &called));
  CHECK(called == 2);
}

TEST_CASE("an event marks a place in a stream; without events recording waits for the stream") {
  FakeDevice fake;
  {
    Device device = open_fake(fake);
    Stream copies = need(device.create_stream()), work = need(device.create_stream());
    Event event = need(device.create_event());
    fake.forget_calls();
    CHECK(static_cast<bool>(event.record(copies)));
    CHECK(fake.calls() == Calls{"stream_synchronize"});
    fake.forget_calls();
    CHECK(static_cast<bool>(work.wait(event)));
    CHECK(need(event.is_passed()));
    CHECK(fake.calls().empty());
    fake.fail(0, TD_DEVICE_LOST, "gone");
    CHECK(event.record(copies).error().code == ErrorCode::kUnavailable);
  }
  fake.add_events();
  {
    Device device = open_fake(fake);
    Stream copies = need(device.create_stream()), work = need(device.create_stream());
    fake.forget_calls();
    Event event = need(device.create_event());
    fake.let_events_pass(false);
    CHECK(static_cast<bool>(event.record(copies)));
    CHECK(!need(event.is_passed()));
    CHECK(static_cast<bool>(work.wait(event)));
    fake.let_events_pass(true);
    CHECK(need(event.is_passed()));
    CHECK(fake.calls() == Calls{"event_create", "event_record", "event_query", "event_wait", "event_query"});
    for (uint32_t call = 0; call < 4; ++call) {
      fake.fail(0, TD_INTERNAL, "broken");
      if (call == 0) CHECK(!device.create_event());
      if (call == 1) CHECK(!event.record(copies));
      if (call == 2) CHECK(!work.wait(event));
      if (call == 3) CHECK(!event.is_passed());
    }
  }
  CHECK(fake.num_live() == 0);
}

TEST_CASE("a device that cannot say how it feels is well") {
  FakeDevice fake;
  Device device = open_fake(fake);
  fake.fail(0, TD_DEVICE_LOST, "fell off the bus");
  CHECK(device.health().error().message == "fell off the bus");
  fake.table().health = nullptr;
  CHECK(static_cast<bool>(device.health()));
}

td_op add_op(uint32_t a, uint32_t b, uint32_t out) {
  const auto operand = [](uint32_t slot) {
    td_operand made{};
    made.space = TD_EXTERNAL, made.slot = slot, made.columns = made.columns_total = 4, made.row_bytes = 16;
    return made;
  };
  td_op op{};
  op.kind = TD_OP_ADD;
  op.in[0] = operand(a), op.in[1] = operand(b), op.out[0] = operand(out);
  return op;
}

TEST_CASE("without plans the ops are launched one by one, from a description that may be gone") {
  FakeDevice fake;
  Device device = open_fake(fake);
  Stream stream = need(device.create_stream());
  std::optional<DevicePlan> plan;
  {
    std::vector<td_op> ops = {add_op(0, 1, 2), add_op(2, 1, 3)};
    std::vector<td_weight_part> parts = {{TD_DTYPE_F32, 4, nullptr}};
    std::vector<td_weight> weights(1);
    weights[0].desc.num_parts = 1;
    weights[0].desc.parts = parts.data();
    td_plan_desc desc{};
    desc.ops = ops.data(), desc.num_ops = 2;
    desc.weights = weights.data(), desc.num_weights = 1;
    plan.emplace(need(device.create_plan(desc)));
    memset(static_cast<void*>(ops.data()), 0xee, ops.size() * sizeof(td_op));
    memset(static_cast<void*>(weights.data()), 0xee, weights.size() * sizeof(td_weight));
    memset(static_cast<void*>(parts.data()), 0xee, parts.size() * sizeof(td_weight_part));
  }
  std::array<std::array<float, 8>, 4> rows{};
  for (int i = 0; i < 8; ++i) rows[0][i] = static_cast<float>(i), rows[1][i] = 10.0f * static_cast<float>(i);
  td_bindings bindings{};
  bindings.num_tokens = 2;
  for (int i = 0; i < 4; ++i) bindings.external[i] = rows[i].data();
  // The weights' parts must have been kept too: a device looks at their types at every launch.
  static uint32_t dtype_seen;
  dtype_seen = 99;
  static decltype(td_plugin::op_launch) recorded;
  recorded = fake.table().op_launch;
  fake.table().op_launch = [](td_stream* s, const td_plan_desc* desc, const td_op* op, const td_bindings* b,
                              td_message* error) {
    dtype_seen = desc->weights[0].desc.parts[0].dtype;
    return recorded(s, desc, op, b, error);
  };
  fake.forget_calls();
  CHECK(static_cast<bool>(plan->launch(stream, bindings)));
  CHECK(fake.calls() == Calls{"op_launch 9", "op_launch 9"});
  CHECK(dtype_seen == TD_DTYPE_F32);
  CHECK(rows[3][7] == 7.0f + 70.0f + 70.0f);
  fake.fail(0, TD_INTERNAL, "stuck");
  fake.forget_calls();
  CHECK(plan->launch(stream, bindings).error().message == "stuck");
  CHECK(fake.calls().size() == 1);  // the second op is not tried
}

TEST_CASE("a device with plans gets the whole list once, one with neither is refused") {
  FakeDevice fake;
  Device device = open_fake(fake);
  Stream stream = need(device.create_stream());
  const std::vector<td_op> ops = {add_op(0, 1, 2), add_op(2, 1, 3)};
  td_plan_desc desc{};
  desc.ops = ops.data(), desc.num_ops = 2;
  fake.table().op_launch = nullptr;
  CHECK(device.create_plan(desc).error().message == "the plug-in can run neither plans nor ops");
  fake.add_plans();
  fake.forget_calls();
  DevicePlan plan = need(device.create_plan(desc));
  CHECK(static_cast<bool>(plan.launch(stream, {})));
  CHECK(fake.calls() == Calls{"plan_create 2", "plan_launch"});
}

}  // namespace
}  // namespace tandem::device
