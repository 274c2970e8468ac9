#pragma once
// Where a model that the user names is: a path, or a name in the store of pulled models.

#include <string>
#include <vector>

#include "base/result.h"
#include "net/fetch/model_store.h"

namespace tandem::apps {

std::string cache_folder();  // $XDG_CACHE_HOME/tandem, else ~/.cache/tandem

// Fetches `spec` into the store, showing progress on stderr when that is a terminal. HF_ENDPOINT and HF_TOKEN are
// honoured.
Result<std::string> pull_model(const fetch::ModelStore& store, const std::string& spec);

// What to load for MODEL: an existing path as it is, else a pulled model. One that could be pulled is, after a
// question, when stdin and stderr are a terminal; else kNotFound says how to get it.
Result<std::string> locate_model(const std::string& model);

// Deletes what was not used for longest until the cache holds at most `limit_bytes`; never `kept_paths`.
void limit_cache(int64_t limit_bytes, const std::vector<std::string>& kept_paths);

}  // namespace tandem::apps
