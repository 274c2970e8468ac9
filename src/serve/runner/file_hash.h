#pragma once
// The hash of a model's files, remembered in the cache directory beside their size and time of change, since computing
// it reads every byte.

#include <string>

#include "compute/model/weight_file.h"

namespace tandem::runner {

// WeightFiles::content_hash(), from the note in `cache_directory` (made when absent) while no file has changed since.
std::string cached_file_hash(const model::WeightFiles& files, const std::string& cache_directory);

}  // namespace tandem::runner
