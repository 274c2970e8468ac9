#pragma once
// Words for errors about weight files: names from a hostile file are quoted, shortened and made printable.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::model {

// "name" in quotes; other than printable ASCII becomes \xNN, beyond 80 bytes "...".
std::string quote_name(std::string_view name);

// "[2, 3]"
std::string shape_text(const std::vector<uint64_t>& shape);

// The first `limit` names quoted, then how many more.
std::string list_names(const std::vector<std::string>& names, size_t limit = 8);

// kCorrupt, "FILE: REASON" and "FILE: tensor "NAME": REASON".
Error file_fault(const std::string& file, const std::string& reason);
Error tensor_fault(const std::string& file, std::string_view tensor, const std::string& reason);

}  // namespace tandem::model
