#include <cstdio>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "apps/model_source.h"
#include "apps/subcommands.h"
#include "base/json.h"

namespace tandem::apps {

Result<int> run_list(const cli::Invocation& invocation) {
  TRY_ASSIGN(const fetch::ModelStore store, fetch::ModelStore::open(cache_folder()));
  const std::vector<fetch::StoredModel> models = store.list();
  if (invocation.values.is_on("json")) {
    JsonWriter json;
    json.begin_array();
    for (const fetch::StoredModel& model : models) {
      json.begin_object();
      json.key("name").string(model.name);
      json.key("path").string(model.path);
      json.key("size_bytes").unsigned_integer(model.size_bytes);
      json.key("last_used").integer(model.last_used_s);
      json.end_object();
    }
    json.end_array();
    fmt::print("{}\n", json.text());
    return kExitDone;
  }
  if (models.empty()) fmt::print("No models yet. Try: tandem pull smollm2\n");
  else fmt::print("{:<40} {:>10}  {}\n", "NAME", "MB", "LAST USED");
  for (const fetch::StoredModel& model : models) {
    const std::time_t time = model.last_used_s;
    fmt::print("{:<40} {:>10.1f}  {:%Y-%m-%d %H:%M}\n", model.name, static_cast<double>(model.size_bytes) / 1e6,
               fmt::localtime(time));
  }
  return kExitDone;
}

}  // namespace tandem::apps
