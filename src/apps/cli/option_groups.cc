#include "apps/cli/option_groups.h"

namespace tandem::cli {

using enum OptionType;

namespace {

OptionSpec batched_tokens() {
  return {.name = "max-num-batched-tokens", .type = kInteger, .default_text = "512", .min = 16, .max = 1 << 20,
          .help = "Tokens in one step; longer prompts are computed in chunks"};
}

OptionSpec max_model_len() {
  return {.name = "max-model-len", .type = kInteger, .default_note = "the model's", .min = 1, .max = 1 << 24,
          .help = "Longest prompt plus answer, in tokens; more than the model's is refused"};
}

OptionSpec drain_timeout() {
  return {.name = "drain-timeout", .type = kNumber, .default_text = "30", .min = 0, .max = 86400,
          .help = "Seconds that running requests get to end after SIGINT or SIGTERM; a second signal ends at once"};
}

OptionSpec cluster_name() {
  return {.name = "cluster", .default_text = "default",
          .help = "Name of the cluster. Its folder, with registry, sockets and logs, is of that name in "
                  "$XDG_STATE_HOME/tandem (~/.local/state/tandem)"};
}

OptionSpec registry_path() {
  return {.name = "registry", .default_note = "registry.json in the cluster's folder",
          .help = "What says who is a member and in which role: a file, or an etcd store, "
                  "etcd://HOST:PORT[,HOST:PORT...]/PREFIX (etcd+https:// with TLS)"};
}

OptionSpec router_policy() {
  return {.name = "router-policy", .type = kChoice, .default_text = "least-ttft",
          .choices = {"least-ttft", "round-robin", "power-of-two"},
          .help = "How the nodes of a new request are chosen: by the earliest predicted first token, counting what "
                  "they have of the prompt's beginning; in turns; the less busy of two that are drawn"};
}

OptionSpec metrics_port(std::string_view help) {
  return {.name = "metrics-port", .type = kInteger, .default_note = "none", .min = 0, .max = 65535, .help = help};
}

OptionSpec metrics_host() {
  return {.name = "metrics-host", .default_text = "127.0.0.1", .help = "Address of a node's metrics"};
}

OptionSpec admin_key_file(std::string_view help) {
  return {.name = "admin-key-file", .default_note = "no key", .help = help};
}

}  // namespace

OptionGroup general_options() {
  return {"General",
          {
              {.name = "config", .help = "Read options from this TOML file; keys are the names of the flags"},
              {.name = "log-format", .type = kChoice, .default_text = "text", .choices = {"text", "json"},
               .help = "How lines on stderr look"},
              {.name = "log-level", .type = kChoice, .default_text = "info",
               .choices = {"debug", "info", "warning", "error"},
               .help = "Leave out log lines below this level; unset, only servers say more than warnings"},
              {.name = "cache-limit", .type = kBytes, .default_text = "50GB", .min = 0,
               .help = "Size of the cache of pulled models and packed weights; above it the longest unused go first"},
          }};
}

OptionGroup model_options() {
  return {"Model",
          {
              max_model_len(),
              {.name = "activations", .type = kChoice, .default_text = "auto",
               .choices = {"auto", "f32", "int8", "bf16"},
               .help = "Type of activations inside linears. auto: int8 for block-quantised weights and with "
                       "--quantization, bf16 for BF16, f32 for F16 and F32"},
              {.name = "quantization", .type = kChoice, .default_text = "none", .choices = {"none", "w8", "w4"},
               .help = "Pack float weights to 8 or 4 bits while loading"},
              {.name = "kv-cache-dtype", .type = kChoice, .default_text = "auto",
               .choices = {"auto", "bf16", "f32", "int8"},
               .help = "Type of stored keys and values. auto: bf16, but f32 with --activations f32"},
              {.name = "pack-cache", .type = kSwitch, .default_text = "true",
               .help = "Keep packed weights in the cache directory and map them shared"},
              {.name = "device", .type = kChoice, .default_text = "cpu", .choices = {"cpu"},
               .help = "Where the model runs"},
              {.name = "threads", .type = kInteger, .default_note = "the cores this process may use", .min = 1,
               .max = 1024, .help = "Threads of the CPU device", .letter = 't'},
              {.name = "isa", .type = kChoice, .default_text = "auto",
               .choices = {"auto", "scalar", "avx2", "avx512", "avx512bf16"},
               .help = "Instruction set of the CPU device. All give the same answers; auto: the fastest here"},
          }};
}

OptionGroup kv_options() {
  return {"KV pool",
          {
              {.name = "block-size", .type = kInteger, .default_text = "16", .min = 16, .max = 256,
               .help = "Tokens a block; a multiple of 16"},
              {.name = "kv-blocks", .type = kInteger, .default_note = "from --kv-memory", .min = 1, .max = 1 << 30,
               .help = "Exact number of blocks"},
              {.name = "kv-memory", .type = kBytes,
               .default_note = "40 % of the memory available once the weights are loaded", .min = 1,
               .help = "Memory for the pool"},
              {.name = "enable-prefix-caching", .type = kSwitch, .default_text = "true",
               .help = "Reuse the blocks of prompts that begin alike"},
          }};
}

OptionGroup scheduling_options() {
  return {"Scheduling",
          {
              {.name = "max-num-seqs", .type = kInteger, .default_text = "64", .min = 1, .max = 4096,
               .help = "Sequences in one step"},
              batched_tokens(),
              {.name = "batch-window-ms", .type = kNumber, .default_text = "10", .min = 0, .max = 1000,
               .help = "How long prompts are gathered while others run"},
              {.name = "tpot-target-ms", .type = kNumber, .default_text = "200", .min = 0, .max = 10000,
               .help = "Prefill chunks shrink so that a step with running sequences stays inside this; 0: off"},
          }};
}

OptionGroup queue_options() {
  return {"Queue",
          {
              {.name = "max-queue-length", .type = kInteger, .default_text = "256", .min = 0, .max = 1 << 20,
               .help = "Requests that may wait; more are answered 503. 0: no limit"},
              {.name = "max-queue-tokens", .type = kInteger, .default_text = "0", .min = 0, .max = 1 << 30,
               .help = "Prompt tokens that may wait; a request beyond is answered 503. 0: no limit"},
              {.name = "max-queue-time", .type = kNumber, .default_text = "0", .min = 0, .max = 86400,
               .help = "Seconds that the last in the queue would wait for its first step, as predicted; while it is "
                       "more, requests are answered 503, or 429 where it is the key's own queue. 0: no limit"},
              {.name = "max-queue-per-key", .type = kInteger, .default_text = "0", .min = 0, .max = 1 << 20,
               .help = "Requests of one API key that may wait; more are answered 429. 0: no limit"},
          }};
}

OptionGroup server_options() {
  return {"Server",
          {
              {.name = "host", .default_text = "127.0.0.1", .help = "Address to listen on"},
              {.name = "port", .type = kInteger, .default_text = "8000", .min = 0, .max = 65535,
               .help = "Port to listen on; 0: any free one, which is printed"},
              {.name = "served-model-name", .type = kTextList, .default_note = "MODEL as typed",
               .help = "Names that clients may use as `model`; the first is the one in answers"},
              {.name = "api-key", .type = kTextList, .default_note = "none: open to all",
               .help = "Keys of which a client must send one as its bearer token. Better given as TANDEM_API_KEY: "
                       "other users of the machine can read a command line"},
              {.name = "api-key-file", .default_note = "none",
               .help = "File with keys, each with a name: lines of NAME KEY [weight=NUMBER] [max-concurrent=NUMBER]. "
                       "When there is not enough for all, each key gets tokens by its weight (1 unless it says so)"},
              {.name = "tls-cert", .default_note = "plain HTTP",
               .help = "PEM file with the server's certificate, and those between it and its authority: clients come "
                       "by https, TLS 1.2 or later"},
              {.name = "tls-key", .default_note = "plain HTTP", .help = "PEM file with the certificate's key"},
              {.name = "cors-origin", .type = kTextList, .default_note = "none",
               .help = "Origins, such as https://chat.example, whose web pages may use the API in a browser; *: all"},
              {.name = "max-logprobs", .type = kInteger, .default_text = "64", .min = 0, .max = 1 << 20,
               .help = "Most log-probabilities a request may ask for per token"},
              {.name = "ping-interval", .type = kNumber, .default_text = "15", .min = 0, .max = 3600,
               .help = "Seconds after which a silent stream sends a comment, which keeps proxies from cutting it; 0: "
                       "never"},
              {.name = "tool-call-parser", .type = kChoice, .default_text = "auto",
               .choices = {"auto", "hermes", "llama3", "mistral", "none"},
               .help = "How the model writes tool calls; auto: as its chat template does"},
              {.name = "seed", .type = kInteger, .default_note = "another one each start", .min = 0,
               .help = "Where the seeds of requests without one come from"},
              {.name = "generation-config", .type = kChoice, .default_text = "auto", .choices = {"auto", "none"},
               .help = "Sampling of requests that leave it open. auto: as the model's generation_config.json says, "
                       "where there is one; none: temperature 1, all tokens"},
              drain_timeout(),
          }};
}

OptionGroup embedding_options() {
  return {"Embeddings",
          {
              {.name = "pooling", .type = kChoice, .default_text = "last", .choices = {"last", "mean"},
               .help = "What embeddings are made of where a request does not say: the last token's hidden state, or "
                       "the mean of all"},
          }};
}

OptionSpec mirror_tokens() {
  return {.name = "mirror-tokens", .type = kInteger, .default_note = "a quarter of the pool", .min = 0,
          .max = 1 << 30,
          .help = "Tokens whose KV a node keeps as copies for decodes of other nodes, in case these are lost; requests "
                  "beyond go without one, and are computed anew then. 0: no copies"};
}

OptionGroup up_options() {
  return {"Cluster",
          {
              {.name = "topology", .default_text = "1P1D",
               .help = "Numbers of prefill, decode and mixed nodes: 2P1D, 3M, 1P1D1M"},
              cluster_name(),
              registry_path(),
              router_policy(),
              mirror_tokens(),
              metrics_port("Port on which the first node serves GET /metrics and /health, each further one on the "
                           "next; 0: any free ones. `tandem status --json` says which"),
              metrics_host(),
              admin_key_file("File with the key that operators on other machines send to the gateway"),
          }};
}

OptionGroup node_options() {
  return {"Node",
          {
              {.name = "role", .type = kChoice, .default_text = "mixed", .choices = {"prefill", "decode", "mixed"},
               .help = "What the node is asked for first; once the registry knows the node, its role there counts"},
              {.name = "name", .default_note = "the role and the process's number",
               .help = "Name of the node, which no other node of the cluster has"},
              cluster_name(),
              registry_path(),
              {.name = "control-host", .default_text = "127.0.0.1", .help = "Address on which gateways reach it"},
              {.name = "control-port", .type = kInteger, .default_text = "0", .min = 0, .max = 65535,
               .help = "Port on which gateways reach it; 0: any free one"},
              mirror_tokens(),
              metrics_port("Port on which the node serves GET /metrics, /health and /steps (how long each took); 0: "
                           "any free one. `tandem status --json` says which"),
              metrics_host(),
              drain_timeout(),
          }};
}

OptionGroup transfer_options() {
  return {"KV between nodes",
          {
              {.name = "data-address", .default_note = "shm: a socket in the cluster's folder",
               .help = "Where other nodes send KV: shm:PATH on one machine, tcp:HOST:PORT or ucx:HOST:PORT between "
                       "machines; many nodes that share one: tcp:HOST:0"},
              {.name = "push", .type = kChoice, .default_text = "layer", .choices = {"layer", "step"},
               .help = "When a prompt's KV goes to the decode node: as layers are computed, or step by step"},
              {.name = "kv-rate", .type = kBytes, .default_text = "0", .min = 0,
               .help = "Bytes a second of KV to one other node at most; 0: no limit"},
          }};
}

OptionGroup cluster_security_options() {
  return {"Security of the cluster",
          {
              {.name = "cluster-cert", .default_note = "plain text",
               .help = "PEM file with this process's certificate, for mutual TLS between gateways and nodes. It names "
                       "the address by which the process is reached"},
              {.name = "cluster-key", .default_note = "plain text", .help = "PEM file with the certificate's key"},
              {.name = "cluster-ca", .default_note = "plain text",
               .help = "PEM file with the authorities whose certificates may join; also for a registry over TLS"},
          }};
}

OptionGroup gateway_options() {
  return {"Cluster",
          {
              cluster_name(),
              registry_path(),
              router_policy(),
              admin_key_file("File with the key that operators on other machines send"),
          }};
}

OptionGroup trace_options() {
  return {"Traces",
          {
              {.name = "otlp-endpoint", .default_note = "nowhere",
               .help = "URL of a collector that takes traces by OTLP over HTTP, as http://127.0.0.1:4318; spans that "
                       "it does not take are dropped and counted"},
              {.name = "trace-file", .default_note = "none",
               .help = "File for the newest requests' timelines, for ui.perfetto.dev, written at the end; a gateway's "
                       "has its nodes' parts too, and so has its GET /cluster/trace"},
          }};
}

OptionGroup operator_options() {
  return {"Gateway",
          {
              {.name = "gateway", .default_note = "what `tandem up` of the cluster says",
               .help = "URL of the gateway, such as http://127.0.0.1:8000"},
              {.name = "gateway-ca", .default_note = "the system's authorities",
               .help = "PEM file with the authority of a gateway's certificate that is reached by https"},
              cluster_name(),
              admin_key_file("File with the gateway's admin key; on the gateway's machine none is needed"),
          }};
}

OptionGroup length_options() {
  return {"Model",
          {
              max_model_len(),
          }};
}

OptionGroup text_options() {
  return {"Text",
          {
              {.name = "chat-template", .default_note = "the model's",
               .help = "File with a Jinja chat template to use in place of the model's"},
              {.name = "parse-special", .type = kSwitch, .default_text = "true",
               .help = "Control tokens written out in the raw prompt of /v1/completions and /tokenize are parsed; "
                       "text in chat messages never is"},
          }};
}

OptionGroup answer_options() {
  return {"Answer",
          {
              {.name = "system", .default_note = "the template's", .help = "System message"},
              {.name = "raw", .type = kSwitch, .default_text = "false",
               .help = "Continue the prompt as plain text, without the chat template"},
              {.name = "max-tokens", .type = kInteger, .default_note = "the room left", .min = 1, .max = 1 << 24,
               .help = "Longest answer, in tokens", .letter = 'n'},
              {.name = "temperature", .type = kNumber, .default_text = "0.7", .min = 0, .max = 100,
               .help = "0: always the likeliest token"},
              {.name = "top-k", .type = kInteger, .default_text = "0", .min = -1,
               .help = "Only the k likeliest tokens; 0: off"},
              {.name = "top-p", .type = kNumber, .default_text = "0.95", .min = 0, .max = 1,
               .help = "Only the likeliest tokens that together have this probability"},
              {.name = "min-p", .type = kNumber, .default_text = "0", .min = 0, .max = 1,
               .help = "Only tokens at least this likely, relative to the likeliest"},
              {.name = "repetition-penalty", .type = kNumber, .default_text = "1", .min = 0.01, .max = 100,
               .help = "Above 1: tokens that were there already become less likely"},
              {.name = "seed", .type = kInteger, .default_note = "another one each start", .min = 0,
               .help = "The same seed gives the same answer"},
          }};
}

OptionGroup bench_engine_options() {
  return {"Measurement",
          {
              {.name = "n-prompt", .type = kIntegerList, .default_text = "512", .min = 0, .max = 1 << 20,
               .help = "Prompt lengths; 0: no prefill measurement", .letter = 'p'},
              {.name = "n-gen", .type = kIntegerList, .default_text = "64", .min = 0, .max = 1 << 20,
               .help = "Tokens to generate per sequence; 0: no decode measurement", .letter = 'n'},
              {.name = "n-depth", .type = kIntegerList, .default_text = "0", .min = 0, .max = 1 << 20,
               .help = "Tokens in the KV cache before the measurement begins", .letter = 'd'},
              {.name = "batch-size", .type = kIntegerList, .default_text = "1", .min = 1, .max = 4096,
               .help = "Sequences decoded together", .letter = 'b'},
              {.name = "repetitions", .type = kInteger, .default_text = "5", .min = 1, .max = 1000,
               .help = "Measurements of each point; the median is printed", .letter = 'r'},
              batched_tokens(),
              {.name = "limits", .type = kSwitch, .default_text = "true",
               .help = "Measure the machine's peaks, and reads beside each repetition, to print which part of the "
                       "limit was reached"},
              {.name = "passes", .default_text = "all",
               .help = "Passes over the graph: all, none, or names separated by commas"},
              {.name = "json", .type = kSwitch, .default_text = "false", .help = "Print JSON in place of a table"},
          }};
}

OptionGroup random_model_options() {
  return {"Random model",
          {
              {.name = "random", .type = kChoice, .default_note = "MODEL is measured",
               .choices = {"llama-1b", "smol", "qwen-0.5b"},
               .help = "In place of MODEL: random weights in the shape of Llama-3.2-1B, SmolLM2-135M or "
                       "Qwen2.5-0.5B, made in memory"},
              {.name = "type", .type = kChoice, .default_text = "q8_0", .choices = {"q8_0", "q4_0", "q4_1", "bf16"},
               .help = "Of its matrices, embedding and head among them"},
              {.name = "write-gguf", .default_note = "not written",
               .help = "Also write it to this file, for another program to run"},
          }};
}

OptionGroup bench_limits_options() {
  return {"Measurement",
          {
              {.name = "threads", .type = kInteger, .default_note = "the cores this process may use", .min = 1,
               .max = 1024, .help = "Threads of the all-threads columns", .letter = 't'},
              {.name = "repetitions", .type = kInteger, .default_text = "40", .min = 3, .max = 10000,
               .help = "Measurements of each limit; best and median are printed", .letter = 'r'},
              {.name = "read-memory", .type = kBytes, .default_text = "256MiB", .min = 1 << 20,
               .help = "Largest working set of each thread; should be far larger than the caches"},
              {.name = "json", .type = kSwitch, .default_text = "false", .help = "Print JSON in place of a table"},
          }};
}

OptionGroup bench_transport_options() {
  return {"Measurement",
          {
              {.name = "frame-sizes", .type = kIntegerList, .default_text = "4096,65536,368640,1048576,16777216",
               .min = 1, .max = 64 << 20, .help = "Payload bytes of a frame", .letter = 'f'},
              {.name = "volume", .type = kBytes, .default_text = "256MiB", .min = 1,
               .help = "Bytes moved for each figure, in at most 20000 frames"},
              {.name = "repetitions", .type = kInteger, .default_text = "5", .min = 1, .max = 1000,
               .help = "Measurements of each figure, in turns; medians are printed", .letter = 'r'},
              {.name = "json", .type = kSwitch, .default_text = "false", .help = "Print JSON in place of a table"},
          }};
}

OptionGroup inspect_graph_options() {
  return {"Graph",
          {
              {.name = "passes", .default_text = "all",
               .help = "Passes to run: all, none, or names separated by commas"},
              {.name = "dot", .default_note = "not written", .help = "Also write the graph to this file, for Graphviz"},
              {.name = "json", .type = kSwitch, .default_text = "false", .help = "Print JSON in place of text"},
          }};
}

OptionGroup json_options() {
  return {"Output",
          {{.name = "json", .type = kSwitch, .default_text = "false", .help = "Print JSON in place of text"}}};
}

OptionGroup option_table_options() {
  return {"Output",
          {{.name = "markdown", .type = kSwitch, .default_text = "false",
            .help = "Print docs/configuration.md: every option with range and default"}}};
}

}  // namespace tandem::cli
