#include "apps/cli/command_line.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "apps/cli/flag_parser.h"

namespace tandem::cli {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Invocation> parse(const std::vector<std::string>& args, const Variables& variables = {}) {
  return parse_command_line(args, [&](const std::string& name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string fault(const std::vector<std::string>& args, const Variables& variables = {}) {
  const auto invocation = parse(args, variables);
  return invocation ? "" : invocation.error().message;
}

// A file that is gone at the end of the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) : path_("command_line_test.toml") { std::ofstream(path_) << text; }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_CASE("DEP-05: a flag wins over the environment, that over the file, that over the default") {
  const TemporaryFile file("port = 1\nmax_num_seqs = 2\nblock-size = 32\n");
  const Variables variables = {{"TANDEM_PORT", "2"}, {"TANDEM_MAX_NUM_SEQS", "7"}};
  auto invocation = parse({"serve", "m", "--config", file.path(), "--port", "3"}, variables);
  REQUIRE(bool(invocation));
  CHECK(invocation->values.integer("port") == 3);
  CHECK(invocation->values.integer("max-num-seqs") == 7);
  CHECK(invocation->values.integer("block-size") == 32);
  CHECK(invocation->values.text("host") == "127.0.0.1");
  CHECK(invocation->values.source("block-size") == OptionSource::kFile);
  CHECK(invocation->positionals == std::vector<std::string>{"m"});
}

TEST_CASE("DEP-05: an empty variable is unset; the file may come from the environment") {
  const TemporaryFile file("port = 1\n");
  auto invocation = parse({"serve", "m"}, {{"TANDEM_PORT", ""}, {"TANDEM_CONFIG", file.path()}});
  REQUIRE(bool(invocation));
  CHECK(invocation->values.integer("port") == 1);
}

TEST_CASE("values are refused by the name the user wrote, with what is allowed") {
  CHECK(fault({"serve", "m", "--port", "70000"}) ==
        "--port: '70000' is not allowed; give a whole number, 0 to 65535");
  CHECK(fault({"serve", "m"}, {{"TANDEM_PORT", "x"}}) ==
        "TANDEM_PORT: 'x' is not allowed; give a whole number, 0 to 65535");
  const TemporaryFile file("# comment\n\nport = -1\n");
  CHECK(fault({"serve", "m", "--config", file.path()}) ==
        "command_line_test.toml line 3: port: '-1' is not allowed; give a whole number, 0 to 65535");
}

TEST_CASE("DEP-05: unknown names are errors that name the nearest known one") {
  CHECK(fault({"serve", "m", "--max-num-seq", "3"}) == "unknown option --max-num-seq; is it --max-num-seqs?");
  CHECK(fault({"serve", "m", "--no-enable-prefix-cachin"}) ==
        "unknown option --no-enable-prefix-cachin; is it --no-enable-prefix-caching?");
  CHECK(fault({"serve", "m", "--frobnicate=3"}) == "unknown option --frobnicate");
  CHECK(fault({"serve", "m", "-z"}) == "unknown option -z");
  CHECK(fault({"sevre", "m"}) == "unknown command sevre; is it serve?");
  CHECK(fault({"xyzzy"}) == "unknown command xyzzy; tandem --help lists them");
  CHECK(fault({"bench"}) == "tandem bench needs one of: engine, limits, transport");
  CHECK(fault({"inspect", "grap"}) == "tandem inspect needs one of: model, graph, kv");
  const TemporaryFile file("prot = 1\n");
  CHECK(fault({"serve", "m", "--config", file.path()}) ==
        "command_line_test.toml line 1: prot: unknown key; is it port?");
}

TEST_CASE("a file may hold keys of other commands; faults of the file name its line") {
  const TemporaryFile file("temperature = 0.5\nport = 8080\nserved-model-name = [\"a\", \"b\"]\nmax-num-seqs = 9\n");
  auto serve = parse({"serve", "m", "--config", file.path()});
  REQUIRE(bool(serve));
  CHECK(serve->values.texts("served-model-name") == std::vector<std::string>{"a", "b"});
  auto run = parse({"run", "m", "--config", file.path()});
  REQUIRE(bool(run));
  CHECK(run->values.number("temperature") == 0.5);

  CHECK(fault({"serve", "m", "--config", "no/such.toml"}).find("no/such.toml") != std::string::npos);
  const auto file_fault = [](const std::string& text) {
    const TemporaryFile bad(text);
    return fault({"serve", "m", "--config", bad.path()});
  };
  CHECK(file_fault("port = 1\nport = = 2\n").find("command_line_test.toml line 2") == 0);
  CHECK(file_fault("[serve]\nport = 1\n").find("line 1: serve: give a text") != std::string::npos);
  CHECK(file_fault("port = 1979-05-27\n").find("line 1: port: give a text") != std::string::npos);
  CHECK(file_fault("port = [1, 2]\n").find("line 1: port: given more than once") != std::string::npos);
  CHECK(file_fault("config = \"x\"\n").find("cannot name another") != std::string::npos);
}

TEST_CASE("the forms in which flags are written") {
  auto invocation = parse({"serve", "--port=1", "m", "--no-enable-prefix-caching", "--api-key", "a", "--api-key",
                           "b,c", "-t", "2", "--no-parse-special", "--parse-special"});
  REQUIRE(bool(invocation));
  CHECK(invocation->values.integer("port") == 1);
  CHECK_FALSE(invocation->values.is_on("enable-prefix-caching"));
  CHECK(invocation->values.is_on("parse-special"));
  CHECK(invocation->values.texts("api-key") == std::vector<std::string>{"a", "b", "c"});
  CHECK(invocation->values.integer("threads") == 2);

  auto bench = parse({"bench", "engine", "m", "-p", "512,4096", "-n", "64", "-d", "0,512,4096", "-b", "1,8,32", "-t",
                      "2", "-r", "5", "--json"});
  REQUIRE(bool(bench));
  CHECK(bench->values.integers("n-depth") == std::vector<int64_t>{0, 512, 4096});
  CHECK(bench->values.integers("batch-size") == std::vector<int64_t>{1, 8, 32});
  CHECK(bench->values.integer("repetitions") == 5);
  CHECK(bench->values.is_on("json"));

  auto run = parse({"run", "m", "--", "-3 + 4 = ?"});
  REQUIRE(bool(run));
  CHECK(run->positionals == std::vector<std::string>{"m", "-3 + 4 = ?"});
  auto system = parse({"run", "m", "--system", "-not a flag-", "--seed", "7"});
  REQUIRE(bool(system));
  CHECK(system->values.text("system") == "-not a flag-");
  CHECK(fault({"run", "m", "--seed", "-7"}) == "--seed: '-7' is not allowed; give a whole number, at least 0");
  CHECK(fault({"serve", "m", "--port"}).find("--port") != std::string::npos);
  CHECK(fault({"serve", "m", "--port", "1", "--port", "2"}) == "--port: given more than once");
}

TEST_CASE("arguments: missing, too many; help and version") {
  CHECK(fault({"serve"}).find("tandem serve needs MODEL: a GGUF file") == 0);
  CHECK(fault({"list", "x"}) == "tandem list: 'x' is one argument too many");
  CHECK(fault({}) == "a command is missing; tandem --help lists them");
  CHECK(parse({"run", "m"})->positionals.size() == 1);
  CHECK(parse({"--version"})->action == Action::kVersion);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--help"}, {"help"}, {"-h"}, {"bench", "--help"}}) {
    CHECK(parse(args)->action == Action::kHelp);
    CHECK(parse(args)->command == nullptr);
  }
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"serve", "--help"}, {"serve", "-h"}, {"help", "serve"}, {"serve", "m", "--help"}}) {
    CHECK(parse(args)->action == Action::kHelp);
    CHECK(parse(args)->command == find_command("serve"));
  }
}

}  // namespace
}  // namespace tandem::cli
