#include "serve/runner/file_hash.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "compute/model/files_for_test.h"

namespace tandem::runner {
namespace {

using model::TempDir;

std::string hash_of(const std::string& path, const TempDir& cache) {
  auto files = model::WeightFiles::open(path);
  REQUIRE_MESSAGE(static_cast<bool>(files), (files ? "" : files.error().message));
  return cached_file_hash(*files, cache.path());
}

// As if all files had been written a while ago: fresh ones are not trusted to stay as they are.
void settle(const TempDir& folder) {
  static const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::minutes(1);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::last_write_time(entry.path(), then);
  }
}

std::string directory_model(const TempDir& folder) {
  folder.write("config.json", R"({"model_type":"llama","hidden_size":64})");
  folder.write("model.safetensors", model::safetensors_of({{"a", {4, 8}}, {"b", {8}}}));
  settle(folder);
  return folder.path();
}

void put_note(const TempDir& cache, const std::string& hash) {
  for (const auto& entry : std::filesystem::directory_iterator(cache.path())) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file << hash;
  }
}

TEST_CASE("the hash is remembered while no file changes, and computed again when one does") {
  const TempDir folder, cache;
  const std::string path = directory_model(folder);
  const std::string hash = hash_of(path, cache);
  CHECK(hash.size() == 32);
  CHECK(hash_of(path, cache) == hash);
  // A false note is believed: so the second call above read the note and not the files.
  const std::string fake_hash(32, 'f');
  put_note(cache, fake_hash);
  CHECK(hash_of(path, cache) == fake_hash);
  // The weights change.
  folder.write("model.safetensors", model::safetensors_of({{"b", {4, 8}}, {"a", {8}}}));
  const std::string changed = hash_of(path, cache);
  CHECK(changed != fake_hash);
  CHECK(changed != hash);
}

TEST_CASE("a changed config.json of a directory is noticed") {
  const TempDir folder, cache;
  const std::string path = directory_model(folder);
  const std::string hash = hash_of(path, cache);
  // Of the same length: only its contents and its time of change differ.
  folder.write("config.json", R"({"model_type":"llama","hidden_size":65})");
  CHECK(hash_of(path, cache) != hash);
}

TEST_CASE("the hash of files written this moment is not kept: a second write could go unseen") {
  const TempDir folder, cache;
  const std::string path = directory_model(folder);
  folder.write("config.json", R"({"model_type":"llama","hidden_size":65})");
  const std::string hash = hash_of(path, cache);
  CHECK(std::filesystem::is_empty(cache.path()));
  settle(folder);
  CHECK(hash_of(path, cache) == hash);
  CHECK(!std::filesystem::is_empty(cache.path()));
}

TEST_CASE("two models whose paths are the same from different folders do not share a note") {
  const TempDir a, b, cache;
  directory_model(a);
  directory_model(b);
  b.write("model.safetensors", model::safetensors_of({{"b", {4, 8}}, {"a", {8}}}));
  settle(b);  // both of one size and age
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(a.path());
  const std::string hash_a = hash_of(".", cache);
  put_note(cache, std::string(32, 'f'));
  std::filesystem::current_path(b.path());
  const std::string hash_b = hash_of(".", cache);
  std::filesystem::current_path(before);
  CHECK(hash_a != hash_b);
  CHECK(hash_b != std::string(32, 'f'));
}

TEST_CASE("a damaged note and a cache that cannot be written do no harm") {
  const TempDir folder, cache;
  const std::string path = directory_model(folder);
  const std::string hash = hash_of(path, cache);
  for (const auto& entry : std::filesystem::directory_iterator(cache.path())) {
    std::filesystem::resize_file(entry.path(), 20);
  }
  CHECK(hash_of(path, cache) == hash);
  cache.write("file", "not a folder");
  auto files = model::WeightFiles::open(path);
  CHECK(cached_file_hash(*files, cache.path("file")) == hash);
}

}  // namespace
}  // namespace tandem::runner
