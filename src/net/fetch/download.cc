#include "net/fetch/download.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <thread>
#include <utility>

#include "net/fetch/http_get.h"
#include "net/fetch/part_file.h"
#include "net/fetch/sha256.h"

namespace tandem::fetch {
namespace {

constexpr int64_t kFirstWaitMs = 500;
constexpr int64_t kMaxWaitMs = 60'000;

// How one try ended, when not well.
struct TryFailure {
  Error error;
  bool is_retriable;
  std::optional<int64_t> retry_after_s;
};

// Takes the bytes of one try into the part file, after a look at whether they are the ones that were asked for.
class BodyWriter {
 public:
  BodyWriter(const DownloadRequest& request, PartFile& file) : request_(request), file_(file) {}

  Status take(const HttpHead& head, std::string_view bytes) {
    if (!has_begun_) TRY(begin(head));
    TRY(file_.append(bytes));
    if (request_.progress && !request_.progress(file_.size_bytes(), total_bytes_))
      return Error{ErrorCode::kCancelled, "download of " + printable_url(request_.url) + " was stopped"};
    return Done{};
  }

  // Also for an empty body, which is never given to take().
  Status begin(const HttpHead& head) {
    has_begun_ = true;
    if (head.status == 206) {
      if (head.range_first_byte != file_.size_bytes() ||
          (!head.entity_tag.empty() && head.entity_tag != file_.entity_tag())) {
        is_wrong_range_ = true;
        return Error{ErrorCode::kCorrupt,
                     "GET " + printable_url(request_.url) + ": the server sent another range than asked"};
      }
      total_bytes_ = head.range_total_bytes;
      return Done{};
    }
    total_bytes_ = head.content_length;
    return file_.restart(head.entity_tag);
  }

  bool has_begun() const { return has_begun_; }
  bool is_wrong_range() const { return is_wrong_range_; }
  std::optional<uint64_t> total_bytes() const { return total_bytes_; }

 private:
  const DownloadRequest& request_;
  PartFile& file_;
  bool has_begun_ = false;
  bool is_wrong_range_ = false;
  std::optional<uint64_t> total_bytes_;
};

bool is_retriable_status(int status) { return status == 408 || status == 429 || status >= 500; }

// The bytes so far are of no use: drops them, so that the next try asks for all.
TryFailure start_again(PartFile& file, Error why) {
  if (Status restarted = file.restart(""); !restarted) return TryFailure{std::move(restarted).error(), false, {}};
  return TryFailure{std::move(why), true, 0};
}

// One GET into the part file. Nothing: the whole entity is there.
std::optional<TryFailure> try_once(const DownloadRequest& request, PartFile& file) {
  if (file.entity_tag().empty() && file.size_bytes() > 0) {
    if (Status status = file.restart(""); !status) return TryFailure{std::move(status).error(), false, {}};
  }
  HttpGet get;
  get.url = request.url;
  get.bearer_token = request.bearer_token;
  get.first_byte = file.size_bytes();
  get.if_range = file.entity_tag();
  get.stall_timeout_s = request.stall_timeout_s;

  BodyWriter writer(request, file);
  HttpReply reply =
      http_get(get, [&](const HttpHead& head, std::string_view bytes) { return writer.take(head, bytes); });
  if (writer.is_wrong_range()) return start_again(file, std::move(reply.failure->error));
  if (reply.failure) return TryFailure{std::move(reply.failure->error), reply.failure->is_retriable, {}};
  const int status = reply.head.status;
  // What we have is no beginning of what is there: it is all of it, or a part of something else.
  if (status == 416 && get.first_byte > 0) return start_again(file, http_status_error(request.url, reply));
  if (status / 100 != 2)
    return TryFailure{http_status_error(request.url, reply), is_retriable_status(status), reply.head.retry_after_s};
  if (!writer.has_begun()) {
    if (Status begun = writer.begin(reply.head); !begun) return TryFailure{std::move(begun).error(), false, {}};
  }
  if (writer.total_bytes() && *writer.total_bytes() != file.size_bytes()) {
    return TryFailure{
        Error{ErrorCode::kUnavailable, "GET " + printable_url(request.url) + ": " + std::to_string(file.size_bytes()) +
                                           " bytes of " + std::to_string(*writer.total_bytes())},
        true,
        {}};
  }
  return std::nullopt;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Status check_sha256(const DownloadRequest& request) {
  if (request.sha256.empty()) return Done{};
  TRY_ASSIGN(const std::string actual, sha256_of_file(request.path + ".part"));
  if (actual == lower(request.sha256)) return Done{};
  return Error{ErrorCode::kCorrupt,
               printable_url(request.url) + ": SHA-256 is " + actual + ", expected " + lower(request.sha256)};
}

void wait_before_retry(const DownloadRequest& request, int num_tries, std::optional<int64_t> retry_after_s) {
  int64_t wait_ms = std::min(kFirstWaitMs << std::min(num_tries - 1, 10), kMaxWaitMs);
  if (retry_after_s) wait_ms = std::clamp<int64_t>(*retry_after_s, 0, kMaxWaitMs / 1000) * 1000;
  if (request.sleep)
    request.sleep(wait_ms);
  else
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
}

}  // namespace

Result<Downloaded> download(const DownloadRequest& request) {
  TRY_ASSIGN(PartFile file, PartFile::open(request.path, request.url));
  Downloaded done;
  if (!file.entity_tag().empty()) done.resumed_at_byte = file.size_bytes();
  bool was_resumed = done.resumed_at_byte > 0;
  for (int num_failures = 0;;) {
    ++done.num_tries;
    std::optional<TryFailure> failure = try_once(request, file);
    if (failure) {
      if (!failure->is_retriable || ++num_failures > request.num_retries) {
        if (file.size_bytes() == 0) file.remove();
        return std::move(failure->error);
      }
      wait_before_retry(request, num_failures, failure->retry_after_s);
      was_resumed = was_resumed || file.size_bytes() > 0;
      continue;
    }
    Status checked = check_sha256(request);
    if (checked) break;
    // A wrong sum of pieces may come from one bad piece: the whole is fetched once more, in one.
    if (!was_resumed) {
      file.remove();
      return std::move(checked).error();
    }
    was_resumed = false;
    TRY(file.restart(""));
  }
  done.size_bytes = file.size_bytes();
  TRY(file.commit());
  return done;
}

Result<std::string> fetch_text(const std::string& url, const std::string& bearer_token, size_t max_bytes) {
  HttpGet get;
  get.url = url;
  get.bearer_token = bearer_token;
  std::string text;
  HttpReply reply = http_get(get, [&](const HttpHead&, std::string_view bytes) -> Status {
    if (text.size() + bytes.size() > max_bytes)
      return Error{ErrorCode::kExhausted,
                   "GET " + printable_url(url) + ": the answer is longer than " + std::to_string(max_bytes) + " bytes"};
    text.append(bytes);
    return Done{};
  });
  if (reply.failure) return std::move(reply.failure->error);
  if (reply.head.status / 100 != 2) return http_status_error(url, reply);
  return text;
}

}  // namespace tandem::fetch
