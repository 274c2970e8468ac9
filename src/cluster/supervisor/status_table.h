#pragma once
// What a gateway says of its cluster, as rows, and the table that people see of it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::supervisor {

struct NodeRow {
  std::string id, role, state;
  std::optional<uint64_t> pid, running, waiting;                // requests
  std::optional<uint64_t> kv_total, kv_free;                    // blocks, both parts together
  std::optional<uint64_t> restarts;                             // only its supervisor knows
};

// From the gateway's status text. Numbers that it does not say stay absent. kCorrupt: no such text.
Result<std::vector<NodeRow>> rows_of_status(const std::string& json);

// Whether prefill and decode are in processes of their own, and who serves what, in one line, ended. Counts nodes that
// are ready; names the others but for those that have left.
std::string status_sentence(const std::vector<NodeRow>& rows);

// Lines of equal columns with a head, each ended; absent numbers are a dash. A column that nobody fills is left out.
std::string status_table(const std::vector<NodeRow>& rows);

}  // namespace tandem::supervisor
