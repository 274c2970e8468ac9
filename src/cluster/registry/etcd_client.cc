#include "cluster/registry/etcd_client.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/base64.h"

namespace tandem::registry {
namespace {

constexpr size_t kMaxAnswerBytes = 16 << 20;
constexpr size_t kMaxErrorBytes = 200;
constexpr int kConnectTimeout_s = 1;
constexpr const char* kDefaultPort = ":2379";
constexpr const char* kDefaultPrefix = "tandem";

Error corrupt(const std::string& what) { return {ErrorCode::kCorrupt, "etcd's answer " + what}; }

// The gateway writes 64-bit numbers as texts, and leaves out zeros.
Result<uint64_t> number_in(const JsonValue& object, const char* key) {
  const JsonValue* value = object.find(key);
  uint64_t number = 0;
  if (value == nullptr || value->as_uint64(number)) return number;
  if (const std::string* text = value->if_string()) {
    const char* end = text->data() + text->size();
    const auto [stop, code] = std::from_chars(text->data(), end, number);
    if (code == std::errc() && stop == end && !text->empty()) return number;
  }
  return corrupt(std::string("has no number ") + key);
}

Result<std::string> bytes_in(const JsonValue& object, const char* key) {
  const JsonValue* value = object.find(key);
  if (value == nullptr) return std::string();
  auto bytes = value->if_string() != nullptr ? from_base64(*value->if_string()) : std::nullopt;
  if (!bytes) return corrupt(std::string("has no Base64 ") + key);
  return std::move(*bytes);
}

// Empty when the member is left out.
Result<JsonValue::Array> list_in(const JsonValue& object, const char* key) {
  const JsonValue* value = object.find(key);
  if (value == nullptr) return JsonValue::Array();
  if (value->if_array() == nullptr) return corrupt(std::string("has no list ") + key);
  return *value->if_array();
}

std::string end_of(std::string prefix) {
  ++prefix.back();  // a slash
  return prefix;
}

void write_range(JsonWriter& json, const std::string& prefix) {
  json.key("key").string(to_base64(prefix)).key("range_end").string(to_base64(end_of(prefix)));
}

void write_lease(JsonWriter& json, const char* key, uint64_t lease) { json.key(key).string(std::to_string(lease)); }

void write_transaction(JsonWriter& json, const EtcdClient::Transaction& transaction) {
  json.begin_object().key("compare").begin_array();
  for (const auto& [key, revision] : transaction.expected) {
    json.begin_object().key("key").string(to_base64(key)).key("target").string("MOD").key("result").string("EQUAL");
    json.key("mod_revision").string(std::to_string(revision)).end_object();
  }
  json.end_array().key("success").begin_array();
  for (const EtcdClient::Put& put : transaction.puts) {
    json.begin_object().key("request_put").begin_object();
    json.key("key").string(to_base64(put.key)).key("value").string(to_base64(put.value));
    if (put.keeps_lease) json.key("ignore_lease").boolean(true);
    else if (put.lease != 0) write_lease(json, "lease", put.lease);
    json.end_object().end_object();
  }
  for (const std::string& key : transaction.keys_to_delete) {
    json.begin_object().key("request_delete_range").begin_object().key("key").string(to_base64(key));
    json.end_object().end_object();
  }
  json.end_array().end_object();
}

// What an answer that is not 200 says: {"error": "...", "code": 14}.
std::string complaint_of(const fetch::HttpAnswer& answer) {
  std::string text = "HTTP " + std::to_string(answer.status);
  const auto json = JsonValue::parse(answer.body);
  const JsonValue* error = json ? json.value().find("error") : nullptr;
  if (error != nullptr && error->if_string() != nullptr) text += ": " + error->if_string()->substr(0, kMaxErrorBytes);
  return text;
}

Error bad_url(const std::string& url, const std::string& why) {
  return {ErrorCode::kInvalidArgument, "registry " + fetch::printable_url(url) + ": " + why +
                                           "; it is etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX], or etcd+https:// "
                                           "for TLS"};
}

bool has_port(const std::string& host) {
  const size_t colon = host.rfind(':');
  return colon != std::string::npos && (host.front() != '[' || host[colon - 1] == ']');
}

}  // namespace

Result<EtcdAddress> EtcdAddress::parse(const std::string& url) {
  const bool is_secret = url.starts_with("etcd+https://");
  if (!is_secret && !url.starts_with("etcd://")) return bad_url(url, "not of etcd");
  const std::string rest = url.substr(url.find("://") + 3);
  if (rest.find_first_of("@?# ") != std::string::npos) return bad_url(url, "an address has none of @, ?, # and space");
  const size_t slash = std::min(rest.find('/'), rest.size());
  EtcdAddress address;
  address.prefix = rest.substr(std::min(slash + 1, rest.size()));
  while (!address.prefix.empty() && address.prefix.back() == '/') address.prefix.pop_back();
  if (address.prefix.empty()) address.prefix = kDefaultPrefix;
  const std::string hosts = rest.substr(0, slash);
  for (size_t begin = 0; begin <= hosts.size();) {
    const size_t end = std::min(hosts.find(',', begin), hosts.size());
    std::string host = hosts.substr(begin, end - begin);
    if (host.empty() || host.front() == ':') return bad_url(url, "an empty host");
    if (!has_port(host)) host += kDefaultPort;
    address.endpoints.push_back((is_secret ? "https://" : "http://") + host);
    begin = end + 1;
  }
  return address;
}

EtcdClient::EtcdClient(std::vector<std::string> endpoints, fetch::HttpTls tls, int timeout_ms)
    : endpoints_(std::move(endpoints)), tls_(std::move(tls)), timeout_ms_(timeout_ms) {}

// A transaction may have been carried out although its answer was lost. It is safe to send again: what it expects is no
// longer so.
Result<JsonValue> EtcdClient::call(const std::string& path, std::string json) {
  fetch::HttpCall call;
  call.json = std::move(json);
  call.connect_timeout_s = kConnectTimeout_s;
  call.timeout_ms = timeout_ms_;
  call.max_answer_bytes = kMaxAnswerBytes;
  call.tls = tls_;
  std::string why = "no endpoint";
  for (size_t i = 0, first = newest_; i < endpoints_.size(); ++i) {
    newest_ = (first + i) % endpoints_.size();
    call.url = endpoints_[newest_] + "/v3/" + path;
    const auto answer = http_.call(call);
    if (!answer) {
      why = answer.error().message;
      // A server that refuses our certificate only breaks the line.
      if (call.url.starts_with("https")) why += " (with TLS each side must trust the other's certificate)";
      continue;
    }
    if (answer.value().status != 200) {
      why = call.url + ": " + complaint_of(answer.value());
      continue;
    }
    auto parsed = JsonValue::parse(answer.value().body);
    if (!parsed) return corrupt("is no JSON: " + parsed.error().message);
    if (parsed->if_object() == nullptr) return corrupt("is not an object");
    return parsed;
  }
  newest_ = (newest_ + 1) % endpoints_.size();
  return Error{ErrorCode::kUnavailable, why};
}

Result<std::map<std::string, EtcdClient::Value>> EtcdClient::read(const std::string& prefix) {
  JsonWriter json;
  json.begin_object();
  write_range(json, prefix);
  TRY_ASSIGN(const JsonValue answer, call("kv/range", json.end_object().take()));
  TRY_ASSIGN(const JsonValue::Array list, list_in(answer, "kvs"));
  std::map<std::string, Value> values;
  for (const JsonValue& item : list) {
    if (item.if_object() == nullptr) return corrupt("has no object in kvs");
    TRY_ASSIGN(std::string key, bytes_in(item, "key"));
    Value value;
    TRY_ASSIGN(value.bytes, bytes_in(item, "value"));
    TRY_ASSIGN(value.mod_revision, number_in(item, "mod_revision"));
    if (!key.starts_with(prefix) || value.mod_revision == 0) return corrupt("has a key that was not asked for");
    values.insert_or_assign(std::move(key), std::move(value));
  }
  return values;
}

Result<EtcdClient::Look> EtcdClient::look(const std::string& key, const std::string& prefix) {
  JsonWriter json;
  json.begin_object().key("success").begin_array();
  json.begin_object().key("request_range").begin_object().key("key").string(to_base64(key)).key("keys_only");
  json.boolean(true).end_object().end_object();
  json.begin_object().key("request_range").begin_object();
  write_range(json, prefix);
  json.key("count_only").boolean(true).end_object().end_object().end_array();
  TRY_ASSIGN(const JsonValue answer, call("kv/txn", json.end_object().take()));
  TRY_ASSIGN(const JsonValue::Array parts, list_in(answer, "responses"));
  const JsonValue* head = parts.size() == 2 ? parts[0].find("response_range") : nullptr;
  const JsonValue* keys = parts.size() == 2 ? parts[1].find("response_range") : nullptr;
  if (head == nullptr || keys == nullptr) return corrupt("has not the two ranges that were asked for");
  Look found;
  TRY_ASSIGN(const JsonValue::Array list, list_in(*head, "kvs"));
  if (!list.empty()) {
    TRY_ASSIGN(found.mod_revision, number_in(list[0], "mod_revision"));
  }
  TRY_ASSIGN(found.num_keys, number_in(*keys, "count"));
  return found;
}

Result<bool> EtcdClient::commit(const Transaction& transaction) {
  JsonWriter json;
  write_transaction(json, transaction);
  TRY_ASSIGN(const JsonValue answer, call("kv/txn", json.take()));
  const JsonValue* succeeded = answer.find("succeeded");
  if (succeeded == nullptr) return false;
  if (succeeded->if_bool() == nullptr) return corrupt("does not say whether it succeeded");
  return *succeeded->if_bool();
}

Result<uint64_t> EtcdClient::grant_lease(uint32_t ttl_s) {
  JsonWriter json;
  json.begin_object().key("TTL").string(std::to_string(ttl_s)).end_object();
  TRY_ASSIGN(const JsonValue answer, call("lease/grant", json.take()));
  TRY_ASSIGN(const uint64_t lease, number_in(answer, "ID"));
  if (lease == 0) return corrupt("has no lease");
  return lease;
}

Result<bool> EtcdClient::keep_alive(uint64_t lease) {
  JsonWriter json;
  json.begin_object();
  write_lease(json, "ID", lease);
  TRY_ASSIGN(const JsonValue answer, call("lease/keepalive", json.end_object().take()));
  const JsonValue* result = answer.find("result");
  if (result == nullptr || result->if_object() == nullptr) return corrupt("has no result");
  TRY_ASSIGN(const uint64_t ttl, number_in(*result, "TTL"));
  return ttl > 0;
}

Status EtcdClient::revoke_lease(uint64_t lease) {
  JsonWriter json;
  json.begin_object();
  write_lease(json, "ID", lease);
  TRY(call("lease/revoke", json.end_object().take()));
  return Done{};
}

}  // namespace tandem::registry
