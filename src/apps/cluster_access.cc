#include "apps/cluster_access.h"

#include "apps/secret_file.h"
#include "cluster/registry/etcd_registry.h"
#include "cluster/registry/file_registry.h"
#include "net/rpc/tls_files.h"

namespace tandem::apps {

Result<std::unique_ptr<registry::Registry>> open_registry(const OptionValues& values, const StateFolder& folder) {
  const std::string where = values.has("registry") ? values.text("registry") : folder.registry();
  if (where.find("://") == std::string::npos) {
    return std::unique_ptr<registry::Registry>(std::make_unique<registry::FileRegistry>(where));
  }
  TRY_ASSIGN(registry::EtcdAddress address, registry::EtcdAddress::parse(where));
  registry::EtcdOptions options;
  TRY_ASSIGN(const std::optional<rpc::TlsFiles> tls, cluster_tls(values));
  if (tls) options.tls = {tls->trusted, tls->certificate, tls->private_key};
  return std::unique_ptr<registry::Registry>(
      std::make_unique<registry::EtcdRegistry>(std::move(address), std::move(options)));
}

Result<std::optional<rpc::TlsFiles>> cluster_tls(const OptionValues& values) {
  rpc::TlsFiles files;
  TRY_ASSIGN(files.certificate, path_or_empty(values, "cluster-cert"));
  TRY_ASSIGN(files.private_key, path_or_empty(values, "cluster-key"));
  TRY_ASSIGN(files.trusted, path_or_empty(values, "cluster-ca"));
  const int num_given = !files.certificate.empty() + !files.private_key.empty() + !files.trusted.empty();
  if (num_given == 0) return std::optional<rpc::TlsFiles>();
  if (num_given < 3) {
    return Error{ErrorCode::kInvalidArgument, "--cluster-cert, --cluster-key and --cluster-ca are given together"};
  }
  TRY(rpc::read_tls_files(files));
  warn_if_open_to_others(files.private_key);
  return std::optional<rpc::TlsFiles>(std::move(files));
}

}  // namespace tandem::apps
