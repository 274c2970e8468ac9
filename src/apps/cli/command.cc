#include "apps/cli/command.h"

#include "apps/cli/option_groups.h"

namespace tandem::cli {
namespace {

constexpr Positional kModel = {
    "MODEL", "a GGUF file, a directory in Hugging Face form, or a name: smollm2, or one that `tandem list` shows"};

CommandSpec run_command() {
  return {
      .name = "run",
      .summary = "Ask a model in the terminal",
      .details = "With a prompt: prints the answer and ends. Without: a chat; end it with Ctrl-D, break an answer "
                 "off with Ctrl-C.",
      .positionals = {kModel, {"PROMPT", "what to ask; absent: chat (or the prompt comes from a pipe)", false}},
      .examples = {{"tandem run smollm2 \"Why is the sky blue?\"", "one question"},
                   {"tandem run smollm2", "a chat"},
                   {"tandem run smollm2 --temperature 0 --raw \"Once upon a time\"", "continue a text"},
                   {"cat notes.txt | tandem run ./model.gguf --system \"Summarise.\"", "the prompt from a pipe"}},
      .groups = {answer_options(), text_options(), model_options(), kv_options(), general_options()},
  };
}

CommandSpec serve_command() {
  return {
      .name = "serve",
      .summary = "Serve a model over the OpenAI API",
      .details = "Prints one line when it listens. SIGINT or SIGTERM lets running requests end (--drain-timeout); a "
                 "second one ends at once.",
      .positionals = {kModel},
      .examples = {{"tandem serve smollm2", "on http://127.0.0.1:8000"},
                   {"tandem serve ./llama --port 0 --served-model-name llama", "any free port, under another name"},
                   {"tandem serve ./m.gguf --kv-memory 8GiB --max-num-seqs 128", "room for more at once"},
                   {"TANDEM_API_KEY=secret tandem serve smollm2 --host 0.0.0.0", "for others, with a key"}},
      .groups = {server_options(), embedding_options(), scheduling_options(), queue_options(), text_options(),
                 model_options(), kv_options(), general_options()},
  };
}

CommandSpec up_command() {
  return {
      .name = "up",
      .summary = "Serve a model with a cluster of processes on this machine",
      .details = "Starts a gateway and nodes for prefill and decode, and looks after them: what dies is started again, "
                 "what is silent for 5 seconds is killed first. Each node gets cores of its own where there are "
                 "enough. In a terminal it shows the nodes' state. SIGINT or SIGTERM lets running requests end "
                 "(--drain-timeout) and stops all; a second one ends at once. Takes the options of serve; memory and "
                 "threads are those of one node.",
      .positionals = {kModel},
      .examples = {{"tandem up smollm2 --topology 2P1D", "two nodes for prefill, one for decode"},
                   {"tandem up smollm2 --topology 3M --cluster test --port 8001", "three mixed nodes, as a second one"},
                   {"tandem status --cluster test", "its state, from elsewhere on this machine"}},
      .groups = {up_options(), transfer_options(), cluster_security_options(), server_options(), scheduling_options(),
                 queue_options(), text_options(), model_options(), kv_options(), trace_options(), general_options()},
  };
}

std::vector<CommandSpec> cluster_commands() {
  constexpr Positional kNode = {"NODE", "name of a node, as `tandem status` shows it"};
  return {
      {.name = "node",
       .summary = "Run one node of a cluster",
       .details = "Computes prefills and decodes for the gateways of its cluster, which find it in the registry. "
                  "SIGINT or SIGTERM moves its requests to other nodes (--drain-timeout), then it leaves.",
       .positionals = {kModel},
       .examples = {{"tandem node smollm2 --role decode --name d1", "in the cluster `default`"},
                    {"tandem node smollm2 --control-host 10.0.0.5 --data-address tcp:10.0.0.5:0",
                     "reached from other machines"}},
       .groups = {node_options(), transfer_options(), cluster_security_options(), scheduling_options(), model_options(),
                  kv_options(), trace_options(), general_options()}},
      {.name = "gateway",
       .summary = "Serve a cluster's nodes over the OpenAI API",
       .details = "Serves as soon as a node has joined. Loads no weights. Its operator asks it with status, drain and "
                  "role.",
       .positionals = {kModel},
       .examples = {{"tandem gateway smollm2 --port 8000", "of the cluster `default`"}},
       .groups = {gateway_options(), cluster_security_options(), server_options(), queue_options(), text_options(),
                  length_options(), trace_options(), general_options()}},
      {.name = "status",
       .summary = "Show the nodes of a cluster",
       .examples = {{"tandem status", "of the cluster `default` on this machine"},
                    {"tandem status --json --gateway http://10.0.0.1:8000 --admin-key-file admin.key", "of another"}},
       .groups = {json_options(), operator_options(), general_options()}},
      {.name = "drain",
       .summary = "Take a node out of a cluster",
       .details = "It gets no new work, its requests move to other nodes, and it ends when none is left. `tandem up` "
                  "does not start it again.",
       .positionals = {kNode},
       .examples = {{"tandem drain d1", "by the name that status shows"}},
       .groups = {operator_options(), general_options()}},
      {.name = "role",
       .summary = "Give a node another role",
       .details = "Refused for the last ready node of its role. What it may not keep moves to other nodes; weights "
                  "stay.",
       .positionals = {kNode, {"ROLE", "prefill, decode or mixed"}},
       .examples = {{"tandem role p2 decode", "one more node for decode"}},
       .groups = {operator_options(), general_options()}},
  };
}

CommandSpec pull_command() {
  return {
      .name = "pull",
      .summary = "Fetch a model into the cache",
      .details = "Goes on where a broken download stopped, and checks what it fetched. HF_ENDPOINT and HF_TOKEN are "
                 "honoured for hf: sources.",
      .positionals = {{"SOURCE", "smollm2, a URL, or hf:ORG/REPO[/FILE]"}},
      .examples = {{"tandem pull smollm2", "the demo model, 98 MB"},
                   {"tandem pull hf:ORG/REPO/model-Q4_K_M.gguf", "one file of a repository"},
                   {"tandem pull https://HOST/model.gguf", "any address"}},
      .groups = {general_options()},
  };
}

std::vector<CommandSpec> inspect_commands() {
  return {
      {.name = "inspect model",
       .summary = "Show a model's configuration and tensors",
       .positionals = {kModel},
       .examples = {{"tandem inspect model smollm2", "architecture, sizes, types"}},
       .groups = {json_options(), general_options()}},
      {.name = "inspect graph",
       .summary = "Show the graph of a model before and after its passes",
       .positionals = {kModel},
       .examples = {{"tandem inspect graph smollm2 --passes none", "as the builder makes it"},
                    {"tandem inspect graph smollm2 --passes fuse --dot graph.dot", "also for Graphviz"}},
       .groups = {inspect_graph_options(), model_options(), general_options()}},
      {.name = "inspect kv",
       .summary = "Show how large the KV pool of a model would be",
       .positionals = {kModel},
       .examples = {{"tandem inspect kv smollm2 --kv-memory 1GiB", "blocks and tokens that fit"}},
       .groups = {json_options(), model_options(), kv_options(), general_options()}},
  };
}

std::vector<CommandSpec> bench_commands() {
  return {
      {.name = "bench engine",
       .summary = "Measure prefill and decode of a model",
       .details = "Prefill: a prompt of p tokens computed at depth d. Decode: b sequences generate n tokens each at "
                  "depth d. Printed: median, spread between repetitions, the part of the limit, and how fast the "
                  "weights could be read then. The limit sums over the ops of a step: reading the op's weights and "
                  "KV, or its arithmetic at the peak, whichever takes longer.",
       .positionals = {{kModel.name, kModel.help, false}},
       .examples = {{"tandem bench engine smollm2", "one prompt of 512, 64 tokens"},
                    {"tandem bench engine smollm2 -p 512,4096 -n 64 -d 0,512,4096 -b 1,8,32 -t 2 -r 5 --json",
                     "every combination"},
                    {"tandem bench engine --random llama-1b --type q4_0", "a shape, without its file"}},
       .groups = {bench_engine_options(), random_model_options(), model_options(), kv_options(), general_options()}},
      {.name = "bench limits",
       .summary = "Measure what this machine can do at most",
       .details = "Plain reads by working set, and the peaks of int8, bf16 and f32 arithmetic, of one thread and of "
                  "all; then what a barrier and a wake cost. Run it on a quiet machine.",
       .examples = {{"tandem bench limits", "a table"}, {"tandem bench limits --json -t 8", "for scripts"}},
       .groups = {bench_limits_options(), general_options()}},
      {.name = "bench transport",
       .summary = "Measure how fast KV moves between nodes on this machine",
       .details = "Round trips of 88 bytes, and bandwidth by frame size, of each transport between two threads; then "
                  "its ratio to a plain TCP copy of the same size in the same run.",
       .examples = {{"tandem bench transport", "a table"},
                    {"tandem bench transport -f 368640 -r 20 --json", "one block of KV at a time"}},
       .groups = {bench_transport_options(), general_options()}},
  };
}

std::vector<CommandSpec> all_commands() {
  std::vector<CommandSpec> all = {run_command(), serve_command(), up_command()};
  for (CommandSpec& command : cluster_commands()) all.push_back(std::move(command));
  all.push_back(pull_command());
  all.push_back({.name = "list",
                 .summary = "List the models in the cache",
                 .examples = {{"tandem list", "name, size, last use"}},
                 .groups = {json_options(), general_options()}});
  for (CommandSpec& command : inspect_commands()) all.push_back(std::move(command));
  for (CommandSpec& command : bench_commands()) all.push_back(std::move(command));
  all.push_back({.name = "options",
                 .summary = "List every option with range and default",
                 .examples = {{"tandem options --markdown > docs/configuration.md", "the documentation"}},
                 .groups = {option_table_options(), general_options()}});
  return all;
}

}  // namespace

std::vector<OptionSpec> CommandSpec::all_options() const {
  std::vector<OptionSpec> all;
  for (const OptionGroup& group : groups) all.insert(all.end(), group.options.begin(), group.options.end());
  return all;
}

const std::vector<CommandSpec>& commands() {
  static const std::vector<CommandSpec> kCommands = all_commands();
  return kCommands;
}

const CommandSpec* find_command(std::string_view name) {
  for (const CommandSpec& command : commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

}  // namespace tandem::cli
