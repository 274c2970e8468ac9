#pragma once
// download: a file over http or https to a path, whole or not at all.
//
// The bytes go to PATH.part, and its entity tag to PATH.part.tag; a broken download is taken up where it ended when the
// server still has the same entity, by whichever process tries next. PATH itself appears by a rename, synced and
// checked. Blocks; any thread. Two processes that fetch the same PATH: the second is refused (kUnavailable).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"

namespace tandem::fetch {

// Called on the calling thread as bytes come. `total_bytes` is absent when the server does not say. False stops:
// kCancelled.
using Progress = std::function<bool(uint64_t done_bytes, std::optional<uint64_t> total_bytes)>;

struct DownloadRequest {
  std::string url;
  std::string path;          // its folder exists
  std::string bearer_token;  // sent to the URL's own host only
  std::string sha256;        // expected, 64 hex digits; empty: not checked
  Progress progress;         // may be empty
  int num_retries = 5;       // after a failure that can pass: broken line, stall, 429, 5xx
  int stall_timeout_s = 30;
  std::function<void(int64_t wait_ms)> sleep;  // between tries; empty: really sleeps
};

struct Downloaded {
  uint64_t size_bytes = 0;
  uint64_t resumed_at_byte = 0;  // where the first try began: > 0 when an earlier download was taken up
  int num_tries = 0;
};

// Errors: kNotFound (404), kInvalidArgument (other 4xx, bad URL, untrusted certificate), kExhausted (429 to the end),
// kUnavailable and kDeadline (line or server, to the end of the tries), kCorrupt (checksum, with both values),
// kCancelled.
Result<Downloaded> download(const DownloadRequest& request);

// A small text at once, for APIs: one try, no file. kExhausted when it is longer than `max_bytes`.
Result<std::string> fetch_text(const std::string& url, const std::string& bearer_token, size_t max_bytes);

}  // namespace tandem::fetch
