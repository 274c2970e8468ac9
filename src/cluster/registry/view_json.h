#pragma once
// A registry as JSON: a view whole, for a file; its head and each record apart, for a store of keys. What comes back is
// input like any other: kCorrupt names what is wrong and where.

#include <set>
#include <string>

#include "cluster/registry/registry.h"

namespace tandem::registry {

std::string to_json(const View& view);
Result<View> view_from_json(const std::string& text);

std::string node_to_json(const NodeRecord& node);
// `where`: for the error.
Result<NodeRecord> node_from_json(const std::string& text, const std::string& where);

// All of a view but its records, of which it has the names.
struct Head {
  View view;  // without nodes
  std::set<std::string> members;
};
std::string head_to_json(const View& view);
Result<Head> head_from_json(const std::string& text);

}  // namespace tandem::registry
