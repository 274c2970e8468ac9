// Known faults of model loaders, each tried on ours with whole small models; the names are those of the list they come
// from. The faults of single fields are in the tests of each reader.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "compute/model/files_for_test.h"
#include "compute/model/gguf.h"
#include "compute/model/safetensors.h"
#include "compute/model/split_name.h"
#include "compute/model/weight_names.h"

using namespace tandem;
using namespace tandem::model;

namespace {

namespace fs = std::filesystem;

const std::string kTiny = TANDEM_FIXTURES "/tiny/";

std::string bytes_of(const std::string& path) {
  auto file = MappedFile::open(path);
  REQUIRE_MESSAGE(file, path);
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// All that a start does with the files before it packs weights.
std::string load_message(const WeightFiles& files) {
  auto config = read_config(files);
  if (!config) return config.error().message;
  auto tensors = collect(files, *config);
  return tensors ? "" : tensors.error().message;
}

std::string load_message(const std::string& path) {
  auto files = WeightFiles::open(path);
  return files ? load_message(*files) : files.error().message;
}

// From an exactly sized heap copy, so that a sanitizer sees every read past the end.
std::string load_gguf_bytes(std::string_view bytes) {
  const auto copy = std::make_unique<uint8_t[]>(bytes.size());
  memcpy(copy.get(), bytes.data(), bytes.size());
  auto files = WeightFiles::from_gguf_bytes({copy.get(), bytes.size()}, "cut.gguf");
  return files ? load_message(*files) : files.error().message;
}

std::span<const uint8_t> span_of(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

// Where something begins or ends in a GGUF file: header fields, metadata values, tensors.
struct Borders {
  std::vector<size_t> at;
  size_t first_tensor = SIZE_MAX;
  size_t end = 0;  // of the last tensor; padding may follow
};

Borders borders_of(const std::string& bytes) {
  auto contents = parse_gguf(span_of(bytes), "whole.gguf");
  REQUIRE(contents);
  const auto* base = reinterpret_cast<const uint8_t*>(bytes.data());
  Borders borders{{0, 3, 4, 8, 15, 16, 24}};
  for (const std::string& key : contents->metadata.keys()) {
    const std::span<const uint8_t> value = contents->metadata.find(key)->bytes;
    const auto begin = static_cast<size_t>(value.data() - base);
    for (const size_t at : {begin - 4, begin, begin + value.size() / 2, begin + value.size()}) borders.at.push_back(at);
  }
  for (const TensorEntry& tensor : contents->tensors) {
    const auto begin = static_cast<size_t>(tensor.bytes.data() - base);
    for (const size_t at : {begin, begin + 1, begin + tensor.bytes.size() - 1}) borders.at.push_back(at);
    borders.first_tensor = std::min(borders.first_tensor, begin);
    borders.end = std::max(borders.end, begin + tensor.bytes.size());
  }
  return borders;
}

void copy_directory(const std::string& from, const TempDir& to) {
  for (const auto& entry : fs::directory_iterator(from)) {
    fs::copy_file(entry.path(), to.path(entry.path().filename().string()), fs::copy_options::overwrite_existing);
  }
}

// A GGUF file of these tensors, of types F32 and F16; without `metadata` only `more` keys.
std::string encode_gguf(const Metadata* metadata, std::vector<std::pair<std::string, std::string>> more,
                        const std::vector<TensorEntry>& tensors) {
  GgufBytes file;
  for (const std::string& key : metadata == nullptr ? std::vector<std::string>{} : metadata->keys()) {
    const MetadataValue& value = *metadata->find(key);
    std::string text(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
    if (value.type == ValueType::kString) {
      text = string_value(text);
    } else if (value.type == ValueType::kArray) {
      text = array_value(static_cast<uint32_t>(value.element_type), value.count, text);
    } else {
      text = le_bytes(static_cast<uint32_t>(value.type)) + text;
    }
    file.keys.emplace_back(key, text);
  }
  for (auto& key : more) file.keys.push_back(std::move(key));
  std::string data;
  for (const TensorEntry& tensor : tensors) {
    const uint32_t type = tensor.dtype == tensor::DType::kF32 ? 0 : 1;
    REQUIRE((type == 0 || tensor.dtype == tensor::DType::kF16));
    file.tensors.push_back({tensor.name, {tensor.shape.rbegin(), tensor.shape.rend()}, type, data.size()});
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    data.resize((data.size() + 31) / 32 * 32);
  }
  std::string encoded = file.encode();
  encoded.resize((encoded.size() + 31) / 32 * 32);
  return encoded + data;
}

// A split as llama.cpp's tool makes it: metadata in the first, each tensor in one.
void split_gguf(const std::string& bytes, const TempDir& dir, uint16_t count) {
  auto whole = parse_gguf(span_of(bytes), "whole.gguf");
  REQUIRE(whole);
  const std::string total = le_bytes<uint32_t>(5) + le_bytes(static_cast<int32_t>(whole->tensors.size()));
  for (uint16_t number = 1; number <= count; ++number) {
    std::vector<TensorEntry> tensors;
    for (size_t i = number - 1u; i < whole->tensors.size(); i += count) tensors.push_back(whole->tensors[i]);
    const auto index = static_cast<uint16_t>(number - 1);
    const std::string encoded = encode_gguf(
        number == 1 ? &whole->metadata : nullptr,
        {{"split.no", u16_value(index)}, {"split.count", u16_value(count)}, {"split.tensors.count", total}}, tensors);
    dir.write(split_path({"m", 1, count}, number), encoded);
  }
}

void check_same_tensors(const WeightFiles& got, const WeightFiles& expected) {
  CHECK(got.tensors().size() == expected.tensors().size());
  for (const TensorEntry& want : expected.tensors()) {
    const TensorEntry* tensor = got.find(want.name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == want.shape);
    CHECK(tensor->dtype == want.dtype);
    CHECK(std::ranges::equal(tensor->bytes, want.bytes));
  }
}

std::string index_with(const std::vector<std::pair<std::string, std::string>>& map) {
  JsonWriter out;
  out.begin_object().key("weight_map").begin_object();
  for (const auto& [name, shard] : map) out.key(name).string(shard);
  out.end_object().end_object();
  return out.take();
}

std::vector<std::pair<std::string, std::string>> read_index(const std::string& directory) {
  auto root = JsonValue::parse(bytes_of(directory + "/model.safetensors.index.json"));
  REQUIRE(root);
  std::vector<std::pair<std::string, std::string>> map;
  for (const auto& [name, shard] : *root->find("weight_map")->if_object()) map.emplace_back(name, *shard.if_string());
  return map;
}

}  // namespace

// Fails when place() compares the sum of offset and size with the file's size rounded up, or not at all.
TEST_CASE("LOD-01: a GGUF cut anywhere is refused, and the message names what is cut and how long the file is") {
  const std::string whole = bytes_of(kTiny + "llama-mha.F16.gguf");
  REQUIRE(load_gguf_bytes(whole) == "");
  Borders borders = borders_of(whole);
  for (size_t at = 0; at < whole.size(); at += 1024) borders.at.push_back(at);
  borders.at.push_back(whole.size() * 9 / 10);
  int num_cut_tensors = 0;
  for (const size_t size : borders.at) {
    if (size >= borders.end) continue;
    CAPTURE(size);
    const std::string message = load_gguf_bytes(std::string_view(whole).substr(0, size));
    CAPTURE(message);
    CHECK(message.starts_with("cut.gguf: "));
    if (size < borders.first_tensor) {
      const bool is_named = contains(message, "the file ends inside") ||
                            contains(message, "do not fit into the file") || contains(message, "tensor \"");
      CHECK(is_named);
      continue;
    }
    CHECK(contains(message, "tensor \""));
    CHECK(contains(message, "but the file has " + std::to_string(size - borders.first_tensor) + " bytes of tensors"));
    ++num_cut_tensors;
  }
  CHECK(num_cut_tensors > 800);
  CHECK(load_gguf_bytes(std::string_view(whole).substr(0, borders.end)) == "");  // padding alone may be missing
}

TEST_CASE("LOD-01: the same on a disk, where a read past the end would be a SIGBUS, and of a safetensors file") {
  const TempDir dir;
  const std::string whole = bytes_of(kTiny + "llama-mha.F16.gguf");
  const Borders borders = borders_of(whole);
  for (const size_t size : {whole.size() * 9 / 10, borders.first_tensor, borders.end - 1, size_t{20}}) {
    CHECK(load_message(dir.write("m.gguf", whole.substr(0, size))) != "");
  }
  const std::string single = bytes_of(kTiny + "llama-tied/model.safetensors");
  uint64_t header_bytes = 0;
  memcpy(&header_bytes, single.data(), 8);
  std::vector<size_t> cuts = {0, 7, 8, 9, 8 + header_bytes - 1, 8 + header_bytes, single.size() - 1};
  for (size_t at = 0; at < single.size(); at += 1024) cuts.push_back(at);
  for (const size_t size : cuts) {
    CAPTURE(size);
    const auto copy = std::make_unique<uint8_t[]>(size);
    memcpy(copy.get(), single.data(), size);
    auto tensors = parse_safetensors_weights({copy.get(), size}, "cut.safetensors");
    REQUIRE(!tensors);
    CHECK(tensors.error().message.starts_with("cut.safetensors: "));
    if (size >= 8 + header_bytes) CHECK(contains(tensors.error().message, "tensor \""));
  }
}

// Fails when a shard given by name is opened alone, or when the metadata is that of the shard which was given.
TEST_CASE("LOD-03: a model split in three is the whole model, whichever shard or folder is given") {
  const std::string bytes = bytes_of(kTiny + "llama-mha.F16.gguf");
  auto whole = WeightFiles::open(kTiny + "llama-mha.F16.gguf");
  REQUIRE(whole);
  const TempDir dir;
  split_gguf(bytes, dir, 3);
  for (const std::string& name :
       {split_path({"m", 1, 3}, 1), split_path({"m", 1, 3}, 2), split_path({"m", 1, 3}, 3), std::string()}) {
    CAPTURE(name);
    auto files = WeightFiles::open(dir.path(name));
    REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
    CHECK(load_message(*files) == "");
    check_same_tensors(*files, *whole);
    CHECK(read_config(*files)->vocab == read_config(*whole)->vocab);
  }
  const std::string last = split_path({"m", 1, 3}, 3);
  const std::string last_bytes = bytes_of(dir.path(last));
  dir.write(last, last_bytes.substr(0, last_bytes.size() / 2));
  CHECK(contains(load_message(dir.path()), last + ": tensor \""));
  dir.write("joined.gguf", bytes_of(dir.path(split_path({"m", 1, 3}, 1))) + last_bytes);
  CHECK(contains(load_message(dir.path("joined.gguf")), "joined.gguf: named as shard 1 of 1"));
  dir.remove(last);
  CHECK(contains(load_message(dir.path(split_path({"m", 1, 3}, 1))), "missing shards: \"" + last + "\""));
}

// Fails when open_directory() skips shards that are absent, or collect() takes what is missing for not needed.
TEST_CASE("LOD-04: a shard that is not on the disk, or a tensor that no index names, is refused by its name") {
  const TempDir dir;
  copy_directory(kTiny + "llama-gqa", dir);
  REQUIRE(load_message(dir.path()) == "");
  const auto map = read_index(dir.path());
  for (int number = 1; number <= 3; ++number) {
    const std::string shard = "model-0000" + std::to_string(number) + "-of-00003.safetensors";
    fs::rename(dir.path(shard), dir.path("away"));
    CHECK(contains(load_message(dir.path()), "names files that are absent: \"" + shard + "\""));
    fs::rename(dir.path("away"), dir.path(shard));
  }
  for (size_t gone = 0; gone < map.size(); ++gone) {
    auto fewer = map;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(gone));
    dir.write("model.safetensors.index.json", index_with(fewer));
    CAPTURE(map[gone].first);
    CHECK(contains(load_message(dir.path()), "missing tensors: \"" + map[gone].first + "\""));
  }
}

// Fails when open_directory() reads every *.safetensors.
TEST_CASE("LOD-06: a stray weight file beside an indexed set changes nothing and is told") {
  const TempDir dir;
  copy_directory(kTiny + "llama-gqa", dir);
  fs::copy_file(kTiny + "quantised/llama-gqa.Q4_0.gguf", dir.path("stray.gguf"));
  dir.write("model.safetensors", bytes_of(kTiny + "llama-mha/model.safetensors"));
  dir.write("consolidated.safetensors", "not even safetensors");
  auto expected = WeightFiles::open(kTiny + "llama-gqa");
  auto files = WeightFiles::open(dir.path());
  REQUIRE(expected);
  REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
  check_same_tensors(*files, *expected);
  CHECK(load_message(*files) == "");
  for (const char* stray : {"/model.safetensors: not named", "/consolidated.safetensors: not named"}) {
    CHECK(std::ranges::any_of(files->warnings(), [stray](const std::string& w) { return contains(w, stray); }));
  }
}

// Fails when collect() does not compare shapes, or the configuration takes the heads as they come.
TEST_CASE("LOD-09: every size of a GGUF's metadata that does not fit its tensors is refused with both") {
  const std::string whole = bytes_of(kTiny + "llama-gqa.F16.gguf");
  auto contents = parse_gguf(span_of(whole), "whole.gguf");
  REQUIRE(contents);
  int num_keys = 0;
  for (const char* name :
       {"attention.head_count", "attention.head_count_kv", "embedding_length", "feed_forward_length", "block_count",
        "vocab_size", "attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    const MetadataValue* value = contents->metadata.find(std::string("llama.") + name);
    if (value == nullptr || value->bytes.size() != 4) continue;
    ++num_keys;
    uint32_t old = 0;
    memcpy(&old, value->bytes.data(), 4);
    const auto offset = static_cast<size_t>(value->bytes.data() - span_of(whole).data());
    for (const uint32_t changed : {0u, 1u, old - 1, old + 1, old / 2, old * 2, old * 3, 1u << 31, UINT32_MAX}) {
      if (changed == old) continue;
      std::string damaged = whole;
      memcpy(damaged.data() + offset, &changed, 4);
      CAPTURE(std::string(name));
      CAPTURE(changed);
      const std::string message = load_gguf_bytes(damaged);
      CAPTURE(message);
      CHECK(message.starts_with("cut.gguf: "));
      const bool is_named = contains(message, "tensor") || contains(message, std::to_string(changed));
      CHECK(is_named);
    }
  }
  CHECK(num_keys >= 6);
}

TEST_CASE("LOD-09: the same of a config.json, where the tensor and both shapes are named") {
  const std::string config = bytes_of(kTiny + "llama-gqa/config.json");
  const TempDir dir;
  copy_directory(kTiny + "llama-gqa", dir);
  const std::pair<const char*, int> sizes[] = {{"hidden_size", 256},       {"intermediate_size", 256},
                                               {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                                               {"num_key_value_heads", 2}, {"vocab_size", 512}};
  for (const auto& [name, old] : sizes) {
    const std::string field = "\"" + std::string(name) + "\": ";
    const std::string text = field + std::to_string(old);
    REQUIRE(contains(config, text));
    for (const int64_t changed : {int64_t{0}, int64_t{1}, int64_t{old} * 2, int64_t{old} + 1, int64_t{92550}}) {
      std::string other = config;
      other.replace(other.find(text), text.size(), field + std::to_string(changed));
      dir.write("config.json", other);
      CAPTURE(other);
      const std::string message = load_message(dir.path());
      CAPTURE(message);
      CHECK(message != "");
      const bool is_about_layers = name == std::string("num_hidden_layers");
      const bool is_named = contains(message, "but the configuration needs [") || contains(message, "config.json: ") ||
                            (is_about_layers && contains(message, "tensors"));
      CHECK(is_named);
    }
  }
}

// Fails when collect() counts tensors instead of naming them.
TEST_CASE("LOD-10: of a GGUF with a tensor too many or too few the message tells which") {
  const std::string bytes = bytes_of(kTiny + "llama-mha.F16.gguf");
  auto whole = parse_gguf(span_of(bytes), "whole.gguf");
  REQUIRE(whole);
  REQUIRE(load_gguf_bytes(encode_gguf(&whole->metadata, {}, whole->tensors)) == "");
  for (size_t gone = 0; gone < whole->tensors.size(); ++gone) {
    std::vector<TensorEntry> fewer = whole->tensors;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(gone));
    const std::string& name = whole->tensors[gone].name;
    CAPTURE(name);
    const std::string message = load_gguf_bytes(encode_gguf(&whole->metadata, {}, fewer));
    CAPTURE(message);
    // Without an output matrix a GGUF's embedding serves as one.
    CHECK(message == (name == "output.weight" ? "" : "cut.gguf: missing tensors: \"" + name + "\""));
  }
  const std::vector<uint8_t> ones(16, 1);
  const auto with_extra = [&](const std::string& name) {
    std::vector<TensorEntry> more = whole->tensors;
    more.push_back({name, tensor::DType::kF32, {4}, ones, "whole.gguf"});
    return load_gguf_bytes(encode_gguf(&whole->metadata, {}, more));
  };
  // Parts of other kinds, such as a vision tower's, are left alone; what computes something in a layer is not.
  CHECK(with_extra("v.patch_embd.weight") == "");
  for (const std::string name : {"blk.0.attn_q.bias", "blk.2.ffn_up.weight", "output_norm.bias"}) {
    CHECK(with_extra(name) == "cut.gguf: tensors that this architecture does not use: \"" + name + "\"");
  }
}
