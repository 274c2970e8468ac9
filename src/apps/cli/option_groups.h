#pragma once
// The option declarations, in the groups that commands share.

#include "apps/cli/command.h"

namespace tandem::cli {

OptionGroup general_options();     // every command
OptionGroup model_options();       // every command that opens a model for work
OptionGroup kv_options();
OptionGroup scheduling_options();
OptionGroup queue_options();
OptionGroup server_options();
OptionGroup embedding_options();
OptionGroup up_options();          // of a cluster on this machine
OptionGroup node_options();
OptionGroup transfer_options();
OptionGroup gateway_options();
OptionGroup trace_options();       // where the timelines of requests go
OptionGroup cluster_security_options();
OptionGroup operator_options();    // how status, drain and role reach the gateway
OptionGroup length_options();      // --max-model-len alone
OptionGroup text_options();        // chat template and tokens
OptionGroup answer_options();      // how `run` samples
OptionGroup bench_engine_options();
OptionGroup random_model_options();
OptionGroup bench_limits_options();
OptionGroup bench_transport_options();
OptionGroup inspect_graph_options();
OptionGroup json_options();        // --json alone
OptionGroup option_table_options();

}  // namespace tandem::cli
