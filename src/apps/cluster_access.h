#pragma once
// How a process reaches its cluster, by the options that node, gateway and up share: where the registry is, and how the
// control streams are kept among the cluster's own.

#include <memory>
#include <optional>

#include "apps/state_folder.h"
#include "base/options.h"
#include "base/result.h"
#include "cluster/registry/registry.h"
#include "net/rpc/rpc_options.h"

namespace tandem::apps {

// --registry: a file, by default the folder's, or an etcd store by its URL; over TLS with the files below, where they
// are given. Nothing is asked of it yet. kInvalidArgument: no such URL.
Result<std::unique_ptr<registry::Registry>> open_registry(const OptionValues& values, const StateFolder& folder);

// --cluster-cert, --cluster-key and --cluster-ca, which have been read and checked; absent when none is given.
// kInvalidArgument: not all of them. Else: rpc::read_tls_files().
Result<std::optional<rpc::TlsFiles>> cluster_tls(const OptionValues& values);

}  // namespace tandem::apps
