#include "compute/model/weight_file.h"

#include <doctest/doctest.h>

#include <string>

#include "compute/model/files_for_test.h"
#include "compute/model/split_name.h"

using namespace tandem;
using namespace tandem::model;

namespace {

std::string message_of(const std::string& path) {
  const auto files = WeightFiles::open(path);
  return files ? "" : files.error().message;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Shard `number` of three: the first has the metadata and no tensor, as splitting tools write it.
GgufBytes shard(uint32_t number) {
  GgufBytes file;
  if (number == 1) file.keys.push_back({"general.architecture", string_value("llama")});
  file.keys.push_back({"split.no", u16_value(static_cast<uint16_t>(number - 1))});
  file.keys.push_back({"split.count", u16_value(3)});
  file.keys.push_back({"split.tensors.count", le_bytes<uint32_t>(5) + le_bytes<int32_t>(2)});
  if (number == 1) return file;
  file.tensors = {{number == 2 ? "a" : "b", {4}, 0, 0}};
  file.data_bytes = 16;
  return file;
}

std::string shard_name(uint32_t number) { return split_path({"m", 1, 3}, number); }

void write_set(const TempDir& dir) {
  for (uint32_t number = 1; number <= 3; ++number) dir.write(shard_name(number), shard(number).encode());
}

std::string index_of(const std::string& map) { return "{\"metadata\":{},\"weight_map\":{" + map + "}}"; }

void write_sharded_directory(const TempDir& dir) {
  dir.write("one.safetensors", safetensors_of({{"a", {2}}, {"b", {3}}}));
  dir.write("two.safetensors", safetensors_of({{"c", {4}}}));
  dir.write("model.safetensors.index.json",
            index_of(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")"));
}

}  // namespace

TEST_CASE("split names") {
  const auto name = parse_split_name("/x/m-00002-of-00003.gguf");
  REQUIRE(name);
  CHECK(name->prefix == "/x/m");
  CHECK(name->number == 2);
  CHECK(name->count == 3);
  CHECK(split_path(*name, 3) == "/x/m-00003-of-00003.gguf");
  for (const char* other : {"m.gguf", "m-0002-of-0003.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf",
                            "m-0000x-of-00003.gguf", "m-00001-of-00003.bin", "-00001-of-00003.gguf"}) {
    CAPTURE(std::string(other));
    CHECK_FALSE(parse_split_name(other));
  }
}

TEST_CASE("LOD-03 weight files: a split model is found by each of its shards and by its folder") {
  const TempDir dir;
  write_set(dir);
  for (const std::string& name : {shard_name(1), shard_name(2), shard_name(3), std::string()}) {
    const std::string path = dir.path(name);
    CAPTURE(path);
    auto files = WeightFiles::open(path);
    REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
    CHECK(files->is_gguf());
    CHECK(files->tensors().size() == 2);
    CHECK(files->files().size() == 3);
    REQUIRE(files->find("b") != nullptr);
    CHECK(files->find("b")->file == dir.path(shard_name(3)));
    CHECK(files->find("c") == nullptr);
    CHECK(files->metadata().get_string("general.architecture").value() == "llama");
    const WeightFiles moved = std::move(files).value();  // views survive
    CHECK(moved.find("a")->bytes[3] == 3);
  }
}

TEST_CASE("LOD-03 weight files: every damaged set is refused, and the message names the shard") {
  const TempDir dir;
  SUBCASE("missing") {
    for (uint32_t gone = 1; gone <= 3; ++gone) {
      write_set(dir);
      dir.remove(shard_name(gone));
      CHECK(contains(message_of(dir.path(shard_name(gone == 1 ? 2 : 1))), "missing shards: \"" + shard_name(gone)));
    }
  }
  SUBCASE("renamed to stand alone") {
    const std::string path = dir.write("alone.gguf", shard(1).encode());
    CHECK(contains(message_of(path), "alone.gguf: named as shard 1 of 1, but its metadata says 1 of 3"));
  }
  SUBCASE("joined with cat") {
    const std::string path = dir.write("joined.gguf", shard(1).encode() + shard(2).encode() + shard(3).encode());
    CHECK(contains(message_of(path), "metadata says 1 of 3"));
  }
  SUBCASE("two shards exchanged") {
    write_set(dir);
    dir.write(shard_name(2), shard(3).encode());
    dir.write(shard_name(3), shard(2).encode());
    CHECK(contains(message_of(dir.path(shard_name(1))), shard_name(2) + ": named as shard 2 of 3"));
  }
  SUBCASE("wrong count") {
    write_set(dir);
    GgufBytes file = shard(3);
    file.keys[1].second = u16_value(4);
    dir.write(shard_name(3), file.encode());
    CHECK(contains(message_of(dir.path(shard_name(1))), shard_name(3) + ": named as shard 3 of 3"));
  }
  SUBCASE("not split at all") {
    write_set(dir);
    GgufBytes file = shard(2);
    file.keys.clear();
    dir.write(shard_name(2), file.encode());
    CHECK(contains(message_of(dir.path(shard_name(1))), "metadata says 1 of 1"));
  }
  SUBCASE("of two models") {
    write_set(dir);
    GgufBytes file = shard(3);
    file.keys[2].second = le_bytes<uint32_t>(5) + le_bytes<int32_t>(9);
    dir.write(shard_name(3), file.encode());
    CHECK(contains(message_of(dir.path(shard_name(1))), shard_name(3) + ": split.tensors.count differs"));
  }
  SUBCASE("tensor in two shards") {
    write_set(dir);
    GgufBytes file = shard(3);
    file.tensors[0].name = "a";
    dir.write(shard_name(3), file.encode());
    const std::string expected = shard_name(3) + ": tensor \"a\": is also in " + dir.path(shard_name(2));
    CHECK(contains(message_of(dir.path(shard_name(1))), expected));
  }
  SUBCASE("tensor lost") {
    write_set(dir);
    GgufBytes file = shard(3);
    file.tensors.clear();
    dir.write(shard_name(3), file.encode());
    CHECK(contains(message_of(dir.path(shard_name(1))), "the shards hold 1 tensors, the set should have 2"));
  }
  SUBCASE("truncated") {
    write_set(dir);
    const std::string whole = shard(3).encode();
    dir.write(shard_name(3), whole.substr(0, whole.size() - 1));
    CHECK(contains(message_of(dir.path(shard_name(1))), shard_name(3) + ": tensor \"b\": needs 16 bytes"));
  }
}

TEST_CASE("LOD-06 weight files: only what the index names is read") {
  const TempDir dir;
  write_sharded_directory(dir);
  dir.write("model.safetensors", safetensors_of({{"a", {9}}, {"stray", {1}}}));
  const auto files = WeightFiles::open(dir.path());
  REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
  CHECK_FALSE(files.value().is_gguf());
  CHECK(files.value().tensors().size() == 3);
  CHECK(files.value().find("a")->shape == std::vector<uint64_t>{2});
  CHECK(files.value().find("stray") == nullptr);
  REQUIRE(files.value().warnings().size() == 1);
  CHECK(contains(files.value().warnings()[0], "model.safetensors: not named by the index"));
}

TEST_CASE("LOD-04 weight files: a directory that does not fit its index is refused") {
  const TempDir dir;
  write_sharded_directory(dir);
  const auto with_map = [&dir](const std::string& map) {
    dir.write("model.safetensors.index.json", index_of(map));
    return message_of(dir.path());
  };
  SUBCASE("shard absent") {
    for (const std::string gone : {"one.safetensors", "two.safetensors"}) {
      write_sharded_directory(dir);
      dir.remove(gone);
      CHECK(contains(message_of(dir.path()), "names files that are absent: \"" + gone + "\""));
    }
  }
  SUBCASE("tensor absent") {
    CHECK(contains(with_map(R"("a":"one.safetensors","z":"two.safetensors")"),
                   "two.safetensors: tensor \"z\": the index places it here"));
  }
  SUBCASE("broken index") {
    CHECK(contains(with_map(R"("a":7)"), "tensor \"a\": its shard is not a string"));
    CHECK(contains(with_map(R"("a":"../one.safetensors")"), "is no name of a shard"));
    CHECK(contains(with_map(R"("a":"..")"), "is no name of a shard"));
    CHECK(contains(with_map(R"("a":"")"), "is no name of a shard"));
    CHECK(contains(with_map(R"("a":"one.safetensors","a":"two.safetensors")"), "tensor \"a\": is there twice"));
    CHECK(contains(with_map(""), "no weight_map"));
    CHECK(contains(with_map("}"), "not JSON"));
  }
  SUBCASE("damaged shard") {
    dir.write("two.safetensors", "short");
    CHECK(contains(message_of(dir.path()), "two.safetensors: too short"));
  }
}

TEST_CASE("weight files: what is no model says what was expected") {
  const TempDir dir;
  CHECK(contains(message_of(dir.path()), "holds neither model.safetensors"));
  dir.write("pytorch_model.bin", "");
  CHECK(contains(message_of(dir.path()), "PyTorch .bin weights are not read"));
  CHECK(contains(message_of(dir.write("empty.gguf", "")), "empty.gguf: the file ends inside the header"));
  CHECK(contains(message_of(dir.write("x.safetensors", "")), "give the model's directory"));
  CHECK(contains(message_of(dir.path("absent.gguf")), "absent.gguf: No such file"));
  dir.write("other.gguf", "");
  CHECK(contains(message_of(dir.path()), "holds several GGUF models, give one: \"empty.gguf\", \"other.gguf\""));
}

TEST_CASE("weight files: the hash covers every byte of every file, and the configuration") {
  const TempDir dir;
  write_sharded_directory(dir);
  const auto hash = [&dir] { return WeightFiles::open(dir.path()).value().content_hash(); };
  const std::string plain = hash();
  CHECK(plain.size() == 32);
  CHECK(hash() == plain);
  dir.write("config.json", "{}");
  const std::string configured = hash();
  CHECK(configured != plain);
  std::string shard_bytes = safetensors_of({{"c", {4}}});
  shard_bytes.back() ^= 1;
  dir.write("two.safetensors", shard_bytes);
  CHECK(hash() != configured);
}
