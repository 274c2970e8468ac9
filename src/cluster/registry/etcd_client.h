#pragma once
// EtcdClient: the few calls of an etcd store that a registry needs, over its JSON gateway (etcd 3.4 and newer): one
// read of a whole folder of keys, a look at whether anything changed, a transaction, and a lease.
// docs/adr/0015-etcd.md.
//
// Blocks the caller, each call for at most `timeout_ms` an endpoint; a call goes to the endpoint that answered last,
// then to the others. Answers are input like any other: too long, no JSON or of wrong types gives kCorrupt, an endpoint
// that says no or nothing kUnavailable. One thread at a time.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "net/fetch/http_get.h"

namespace tandem::registry {

struct EtcdAddress {
  std::vector<std::string> endpoints;  // "http://HOST:PORT"
  std::string prefix;                  // of all keys; without a slash at its end

  // etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX], or etcd+https:// for TLS. The port is 2379 and the prefix "tandem"
  // unless they are said.
  static Result<EtcdAddress> parse(const std::string& url);
};

class EtcdClient {
 public:
  struct Value {
    std::string bytes;
    uint64_t mod_revision = 0;
  };
  struct Put {
    std::string key, value;
    uint64_t lease = 0;        // 0: none
    bool keeps_lease = false;  // the one that the key has
  };
  // All of it or nothing. `expected`: keys and the mod_revisions that they must have; 0: the key must not be there.
  struct Transaction {
    std::map<std::string, uint64_t> expected;
    std::vector<Put> puts;
    std::vector<std::string> keys_to_delete;
  };
  struct Look {
    uint64_t mod_revision = 0;  // of the key; 0: it is not there
    uint64_t num_keys = 0;      // that begin with the prefix
  };

  EtcdClient(std::vector<std::string> endpoints, fetch::HttpTls tls, int timeout_ms);

  Result<std::map<std::string, Value>> read(const std::string& prefix);
  Result<Look> look(const std::string& key, const std::string& prefix);
  Result<bool> commit(const Transaction& transaction);  // false: something was not as expected
  Result<uint64_t> grant_lease(uint32_t ttl_s);
  Result<bool> keep_alive(uint64_t lease);              // false: it has run out
  Status revoke_lease(uint64_t lease);

 private:
  Result<JsonValue> call(const std::string& path, std::string json);

  const std::vector<std::string> endpoints_;
  const fetch::HttpTls tls_;
  const int timeout_ms_;
  size_t newest_ = 0;  // the endpoint that answered last
  fetch::HttpClient http_;
};

}  // namespace tandem::registry
