#include "serve/runner/packed_weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "compute/device/fake_device.h"
#include "compute/model/files_for_test.h"

namespace tandem::runner {
namespace {

using model::TempDir;

// A body with a linear of two parts, a norm and a derived table; a head with one linear.
struct Graphs {
  graph::Graph body, head;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(4096);

  explicit Graphs(uint32_t num_positions = 16) {
    add(body, "qkv", TD_WEIGHT_LINEAR, {8, 3}, 16);
    add(body, "norm", TD_WEIGHT_VECTOR, {16}, 1);
    add(body, "rope_table", TD_WEIGHT_VECTOR, {num_positions}, 4);
    body.weights.back().is_derived = true;
    add(head, "output", TD_WEIGHT_LINEAR, {20}, 16);
  }
  void add(graph::Graph& graph, const std::string& name, td_weight_use use, const std::vector<uint32_t>& rows,
           uint32_t k) {
    graph::Weight weight;
    weight.name = name;
    weight.use = use;
    weight.k = k;
    for (const uint32_t n : rows) {
      weight.parts.push_back({name + std::to_string(weight.n), tensor::DType::kF32, n, bytes});
      weight.n += n;
    }
    graph.add_weight(std::move(weight));
  }
};

struct Rig {
  device::FakeDevice fake;
  device::Device device = open(fake);

  static device::Device open(const device::FakeDevice& fake) {
    auto plugin = device::Plugin::from_entry(fake.entry());
    auto device = device::Device::open(*plugin, 0, {});
    return std::move(device).value();
  }
  PackedWeights pack(const Graphs& graphs, const PackOptions& options) {
    fake.forget_calls();
    auto packed = PackedWeights::create(device, {&graphs.body, &graphs.head}, options);
    REQUIRE_MESSAGE(static_cast<bool>(packed), (packed ? "" : packed.error().message));
    return std::move(packed).value();
  }
  long num_packed() const {
    return std::count_if(fake.calls().begin(), fake.calls().end(),
                         [](const std::string& call) { return call.starts_with("weight_pack "); });
  }
};

// Every weight holds what the device packed: bytes that are its n.
void check_contents(const PackedWeights& weights) {
  const std::vector<uint32_t> body_rows = {11, 16, 16};
  REQUIRE(weights.of_graph(0).size() == 3);
  REQUIRE(weights.of_graph(1).size() == 1);
  for (size_t i = 0; i < 3; ++i) CHECK(weights.of_graph(0)[i].desc.n == body_rows[i]);
  for (const size_t graph : {size_t{0}, size_t{1}}) {
    for (const td_weight& weight : weights.of_graph(graph)) {
      REQUIRE(weight.address != nullptr);
      CHECK(reinterpret_cast<uintptr_t>(weight.address) % 64 == 0);
      CHECK(weight.size_bytes == uint64_t{weight.desc.n} * weight.desc.k * 4);
      const auto* bytes = static_cast<const uint8_t*>(weight.address);
      CHECK(std::all_of(bytes, bytes + weight.size_bytes, [&](uint8_t byte) { return byte == weight.desc.n; }));
      CHECK(weight.desc.parts[0].rows == nullptr);  // nothing of the weight files is referred to
    }
  }
  CHECK(weights.of_graph(0)[0].desc.num_parts == 2);
  CHECK(weights.of_graph(0)[0].desc.parts[1].num_rows == 3);
}

std::vector<std::string> files_in(const TempDir& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

PackOptions cached(const TempDir& folder) { return {TD_QUANTIZE_NONE, folder.path(), "0123"}; }

TEST_CASE("the first start packs and writes, later ones map and pack the derived table alone") {
  Rig rig;
  const TempDir folder;
  const Graphs graphs;
  {
    const PackedWeights weights = rig.pack(graphs, cached(folder));
    CHECK(!weights.was_cached());
    CHECK(rig.num_packed() == 4);
    check_contents(weights);
  }
  const std::vector<std::string> files = files_in(folder);
  REQUIRE(files.size() == 1);  // nothing half written is left
  CHECK(files[0].starts_with("0123-"));
  CHECK(files[0].ends_with(".pack"));
  for (int start = 0; start < 2; ++start) {
    const PackedWeights weights = rig.pack(graphs, cached(folder));
    CHECK(weights.was_cached());
    CHECK(weights.cache_file() == folder.path(files[0]));
    CHECK(rig.num_packed() == 1);
    check_contents(weights);
  }
  CHECK(rig.fake.num_live() == 1);  // the device
}

TEST_CASE("without a cache, and on devices whose memory the host does not see, the contents are the same") {
  for (const bool is_host_visible : {true, false}) {
    Rig rig;
    rig.fake.properties().host_visible = is_host_visible ? 1 : 0;
    const PackedWeights weights = rig.pack(Graphs(), {});
    CHECK(!weights.was_cached());
    CHECK(weights.cache_file().empty());
    check_contents(weights);
    const auto& calls = rig.fake.calls();
    const auto num_copies = std::count_if(calls.begin(), calls.end(), [](const std::string& call) {
      return call.starts_with("copy_to_device");
    });
    CHECK(num_copies == (is_host_visible ? 0 : 2));
  }
}

TEST_CASE("a cache file that is cut short, of another version, or foreign is made anew") {
  Rig rig;
  const TempDir folder;
  const Graphs graphs;
  (void)rig.pack(graphs, cached(folder));
  const std::string path = folder.path(files_in(folder)[0]);
  std::ifstream in(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto spoiled = [&](size_t at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] + 1);
    return bytes;
  };
  // Magic, version, number of weights, size, hash of what is packed and how; cut, empty, longer.
  const std::vector<std::string> bad = {spoiled(0),  spoiled(8),           spoiled(12), spoiled(16),
                                        spoiled(24), good.substr(0, 1000), "",          good + "x"};
  for (size_t i = 0; i < bad.size(); ++i) {
    CAPTURE(i);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad[i];
    const PackedWeights weights = rig.pack(graphs, cached(folder));
    CHECK(!weights.was_cached());
    check_contents(weights);
    CHECK(files_in(folder).size() == 1);
    CHECK(rig.pack(graphs, cached(folder)).was_cached());
  }
}

TEST_CASE("a cache that cannot be written is done without") {
  Rig rig;
  const TempDir folder;
  folder.write("file", "not a folder");
  const PackOptions options{TD_QUANTIZE_NONE, folder.path("file"), "0123"};
  for (int start = 0; start < 2; ++start) {
    const PackedWeights weights = rig.pack(Graphs(), options);
    CHECK(!weights.was_cached());
    check_contents(weights);
  }
}

TEST_CASE("when the device cannot pack, the start fails and leaves no file") {
  Rig rig;
  const TempDir folder;
  const Graphs graphs;
  // Four sizes, the derived table's allocation and pack; then the first weight of the file.
  rig.fake.fail(6, TD_INTERNAL, "broken packer");
  auto packed = PackedWeights::create(rig.device, {&graphs.body, &graphs.head}, cached(folder));
  // The cache is tried, then memory of the device, where packing works again.
  REQUIRE(static_cast<bool>(packed));
  CHECK(files_in(folder).empty());
  rig.fake.fail(0, TD_UNSUPPORTED, "no such type");
  auto refused = PackedWeights::create(rig.device, {&graphs.body, &graphs.head}, cached(folder));
  REQUIRE(!refused);
  CHECK(refused.error().message == "weight qkv: no such type");
}

TEST_CASE("the file's name depends on what is packed and how, not on how long the context may be") {
  Rig rig;
  const TempDir folder;
  std::set<std::string> names;
  const auto add = [&](const Graphs& graphs, PackOptions options) {
    (void)rig.pack(graphs, options);
    const size_t before = names.size();
    for (const std::string& name : files_in(folder)) names.insert(name);
    return names.size() - before;
  };
  CHECK(add(Graphs(16), cached(folder)) == 1);
  CHECK(add(Graphs(64), cached(folder)) == 0);  // a longer table alone
  PackOptions options = cached(folder);
  options.quantization = TD_QUANTIZE_W8;
  CHECK(add(Graphs(), options) == 1);
  options = cached(folder);
  options.file_hash = "4567";
  CHECK(add(Graphs(), options) == 1);
  Graphs int8;
  int8.body.weights[0].activation = TD_Q8;
  CHECK(add(int8, cached(folder)) == 1);
  Graphs segments;
  segments.head.weights[0].segments = 4;
  CHECK(add(segments, cached(folder)) == 1);
  Graphs fused;  // as passes stack rows
  fused.body.weights[0].parts.pop_back();
  fused.body.weights[0].n = 8;
  CHECK(add(fused, cached(folder)) == 1);
  Graphs renamed;
  renamed.body.weights[0].parts[0].name = "other";
  CHECK(add(renamed, cached(folder)) == 1);
  rig.fake.properties().pack_layout[0] = 'x';
  CHECK(add(Graphs(), cached(folder)) == 1);
}

}  // namespace
}  // namespace tandem::runner
