#include "compute/graph/passes.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "compute/graph/check_graph.h"
#include "compute/graph/fuse.h"

namespace tandem::graph {
namespace {

constexpr Pass kPasses[] = {
    {"fuse_qkv", "q, k and v in one linear", fuse_qkv},
    {"fuse_gate_up", "gate and up in one linear with the gated activation in its epilogue", fuse_gate_up},
    {"fuse_residual", "the residual add in the linear's epilogue", fuse_residual},
    {"fuse_quantize", "quantising in the epilogue of the op that makes the value", fuse_quantize},
    {"fuse_rope_kv", "head norm, rope and KV write in one", fuse_rope_kv},
};
constexpr const char* kPlanMemory = "plan_memory";

}  // namespace

std::span<const Pass> all_passes() { return kPasses; }

bool PassChoice::has(std::string_view name) const { return std::find(names.begin(), names.end(), name) != names.end(); }

Result<PassChoice> parse_passes(std::string_view text) {
  std::vector<std::string> wanted;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) wanted.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto asks = [&](std::string_view name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  PassChoice choice;
  std::string known = "all, none, fuse";
  for (const Pass& pass : kPasses) {
    known += std::string(", ") + pass.name;
    if (asks("all") || asks("fuse") || asks(pass.name)) choice.names.emplace_back(pass.name);
  }
  known += std::string(", ") + kPlanMemory;
  if (asks("all") || asks(kPlanMemory)) choice.names.emplace_back(kPlanMemory);
  for (const std::string& name : wanted) {
    if (name != "all" && name != "none" && name != "fuse" && !choice.has(name)) {
      return Error{ErrorCode::kInvalidArgument, "no pass is called '" + name + "'; there are " + known};
    }
  }
  return choice;
}

void run_passes(Graph& graph, const PassChoice& choice) {
  for (const Pass& pass : kPasses) {
    if (choice.has(pass.name)) pass.run(graph);
  }
  const Status valid = check_graph(graph);
  if (!valid) check_failed(__FILE__, __LINE__, valid.error().message.c_str());
}

}  // namespace tandem::graph
