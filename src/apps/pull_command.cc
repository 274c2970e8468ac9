#include <cstdio>

#include "apps/model_source.h"
#include "apps/subcommands.h"

namespace tandem::apps {

Result<int> run_pull(const cli::Invocation& invocation) {
  const std::string& spec = invocation.positionals[0];
  if (!fetch::ModelStore::can_pull(spec)) {
    std::fprintf(stderr, "tandem: cannot pull %s; give smollm2, an http(s) URL or hf:ORG/REPO[/FILE]\n", spec.c_str());
    return kExitUsage;
  }
  TRY_ASSIGN(const fetch::ModelStore store, fetch::ModelStore::open(cache_folder()));
  TRY_ASSIGN(const std::string path, pull_model(store, spec));
  limit_cache(invocation.values.integer("cache-limit"), {path});
  std::printf("%s\n", path.c_str());
  return kExitDone;
}

}  // namespace tandem::apps
