#pragma once
// One function a subcommand: wires the parts and runs them. Each returns the exit status, or an Error, which main()
// prints and turns into 1.

#include "apps/cli/command_line.h"

namespace tandem::apps {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

Result<int> run_answer(const cli::Invocation& invocation);
Result<int> run_serve(const cli::Invocation& invocation);
Result<int> run_up(const cli::Invocation& invocation);
Result<int> run_node(const cli::Invocation& invocation);
Result<int> run_gateway(const cli::Invocation& invocation);
Result<int> run_status(const cli::Invocation& invocation);
Result<int> run_drain(const cli::Invocation& invocation);
Result<int> run_role(const cli::Invocation& invocation);
Result<int> run_pull(const cli::Invocation& invocation);
Result<int> run_list(const cli::Invocation& invocation);
Result<int> run_inspect_model(const cli::Invocation& invocation);
Result<int> run_inspect_graph(const cli::Invocation& invocation);
Result<int> run_inspect_kv(const cli::Invocation& invocation);
Result<int> run_bench_engine(const cli::Invocation& invocation);
Result<int> run_bench_limits(const cli::Invocation& invocation);
Result<int> run_bench_transport(const cli::Invocation& invocation);
Result<int> run_options(const cli::Invocation& invocation);

}  // namespace tandem::apps
