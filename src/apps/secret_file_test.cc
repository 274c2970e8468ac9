#include "apps/secret_file.h"

#include <doctest/doctest.h>

#include "apps/cluster_access.h"
#include "apps/front.h"

namespace tandem::apps {
namespace {

OptionValues values_with(const std::string& name, const std::string& text) {
  std::vector<OptionSpec> specs = {{.name = "api-key", .type = OptionType::kTextList}};
  for (const char* file : {"api-key-file", "tls-cert", "tls-key", "cluster-cert", "cluster-key", "cluster-ca"}) {
    specs.push_back({.name = file});
  }
  OptionValues values(specs);
  if (!name.empty()) REQUIRE(values.set(name, {text}, OptionSource::kFlag, "--" + name));
  return values;
}

// The fault: an empty text counts as absent, and the server is open to all, or speaks plain text.
TEST_CASE("an option that guards the server is refused when it is empty, not taken for absent") {
  CHECK(api_keys(values_with("", ""))->empty());
  CHECK(!cluster_tls(values_with("", ""))->has_value());
  CHECK(path_or_empty(values_with("", ""), "tls-cert").value().empty());
  CHECK(path_or_empty(values_with("tls-cert", "a.pem"), "tls-cert").value() == "a.pem");
  const auto fault = [](auto result) { return result ? std::string("taken") : result.error().message; };
  CHECK(fault(api_keys(values_with("api-key-file", ""))) == "--api-key-file is empty, where a file has to be named");
  for (const char* name : {"cluster-cert", "cluster-key", "cluster-ca"}) {
    CHECK(fault(cluster_tls(values_with(name, ""))).starts_with("--" + std::string(name) + " is empty"));
  }
  for (const char* name : {"tls-cert", "tls-key"}) {
    CHECK(fault(path_or_empty(values_with(name, ""), name)).starts_with("--" + std::string(name) + " is empty"));
  }
}

}  // namespace
}  // namespace tandem::apps
