#include <doctest/doctest.h>

#include <thread>

#include "base/base64.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mapped_file.h"

namespace tandem {
namespace {

TEST_CASE("a queue refuses what is over its limit and what comes after close") {
  BoundedQueue<int> queue(2);
  CHECK(queue.try_push(1));
  CHECK(queue.try_push(2));
  CHECK(!queue.try_push(3));
  CHECK(queue.drain() == std::vector<int>{1, 2});
  queue.close();
  CHECK(!queue.try_push(4));
  CHECK(queue.wait_drain(10).empty());
}

TEST_CASE("wait_drain wakes for an item of another thread, and for wake()") {
  BoundedQueue<int> queue(8);
  std::thread producer([&] { queue.try_push(7); });
  std::vector<int> got;
  while (got.empty()) got = queue.wait_drain(1);
  producer.join();
  CHECK(got == std::vector<int>{7});
  queue.wake();
  CHECK(queue.wait_drain(1000).empty());
}

TEST_CASE("Base64 is RFC 4648's, both ways, and nothing else is read") {
  const std::pair<const char*, const char*> published[] = {{"", ""},         {"f", "Zg=="},     {"fo", "Zm8="},
                                                           {"foo", "Zm9v"},  {"foob", "Zm9vYg=="},
                                                           {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : published) {
    CHECK(to_base64(bytes) == text);
    CHECK(from_base64(text) == bytes);
  }
  CHECK(to_base64(std::string("\xff\x00\xfe", 3)) == "/wD+");
  CHECK(from_base64("/wD+") == std::string("\xff\x00\xfe", 3));
  for (const char* bad : {"Z", "Zg=", "Zg==Zg==", "Z===", "====", "Zm9-", "Zm 9"}) CHECK(!from_base64(bad));
}

TEST_CASE("XXH3-128 of the empty input is the published value") {
  CHECK(hash_hex("", 0) == "99aa06d3014798d86001c324468d497f");
  Hasher parts;
  parts.update("ab", 2);
  parts.update("c", 1);
  CHECK(parts.hex() == hash_hex("abc", 3));
}

TEST_CASE("a file that is not there is named in the error") {
  auto file = MappedFile::open("/nonexistent/x.gguf");
  REQUIRE(!file);
  CHECK(file.error().code == ErrorCode::kNotFound);
  CHECK(file.error().message.find("/nonexistent/x.gguf") != std::string::npos);
  CHECK(!MappedFile::open("/"));
}

}  // namespace
}  // namespace tandem
