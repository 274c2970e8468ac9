#include "serve/sched/admission_policy.h"

#include <doctest/doctest.h>

namespace tandem::sched {
namespace {

SchedulerConfig small_config() {
  SchedulerConfig config;
  config.num_blocks = 20;
  config.num_private_blocks = 2;
  config.max_model_len = 1000;
  config.max_queue_length = 10;
  config.max_queued_tokens = 500;
  config.max_queued_per_tenant = 4;
  return config;
}

Request request_of(size_t num_prompt, uint32_t max_tokens = 1) {
  Request request;
  request.prompt.assign(num_prompt, 5);
  request.max_tokens = max_tokens;
  return request;
}

TEST_CASE("KVC-06, KVC-07: what can never run is refused with both numbers") {
  const AdmissionPolicy policy(small_config());
  CHECK(policy.check_fits(request_of(1)));
  CHECK(policy.check_fits(request_of(288)));
  const Status too_long = policy.check_fits(request_of(289));
  REQUIRE(!too_long);
  CHECK(too_long.error().code == ErrorCode::kInvalidArgument);
  CHECK(too_long.error().message.find("289") != std::string::npos);
  CHECK(too_long.error().message.find("288") != std::string::npos);
  SchedulerConfig short_model = small_config();
  short_model.max_model_len = 100;
  const AdmissionPolicy shorter(short_model);
  CHECK(shorter.check_fits(request_of(99)));
  const Status no_room = shorter.check_fits(request_of(100));
  REQUIRE(!no_room);
  CHECK(no_room.error().message.find("100") != std::string::npos);
  Request scoring = request_of(100, 0);
  scoring.prompt_logprobs = 0;
  CHECK(shorter.check_fits(scoring));
  CHECK(!policy.check_fits(request_of(0)));
  CHECK(!policy.check_fits(request_of(5, 0)));
  Request none = request_of(5);
  none.num_choices = 0;
  CHECK(!policy.check_fits(none));
}

TEST_CASE("KVC-06, KVC-07: output is clamped to what model and pool hold, whatever is asked for") {
  const AdmissionPolicy policy(small_config());
  CHECK(policy.max_output(request_of(21, UINT32_MAX)) == 300);
  CHECK(policy.max_output(request_of(21, 7)) == 7);
  CHECK(policy.max_sequence_tokens() == 321);
}

TEST_CASE("queue limits") {
  const AdmissionPolicy policy(small_config());
  CHECK(policy.check_load(request_of(100), {9, 400, 3, 0, 0}, 0));
  const Status full = policy.check_load(request_of(100), {10, 100, 0, 0, 0}, 0);
  REQUIRE(!full);
  CHECK(full.error().code == ErrorCode::kUnavailable);
  const Status tokens = policy.check_load(request_of(101), {3, 400, 0, 0, 0}, 0);
  REQUIRE(!tokens);
  CHECK(tokens.error().code == ErrorCode::kUnavailable);
  CHECK(policy.check_load(request_of(600), {0, 0, 0, 0, 0}, 0));
  const Status tenant = policy.check_load(request_of(1), {4, 10, 4, 0, 0}, 0);
  REQUIRE(!tenant);
  CHECK(tenant.error().code == ErrorCode::kExhausted);
  CHECK(AdmissionPolicy(SchedulerConfig{}).check_load(request_of(1), {200, 1u << 30, 200, 0, 0}, 0));
}

TEST_CASE("a deadline that the predicted time does not meet is refused") {
  const AdmissionPolicy policy(small_config());
  Request request = request_of(100);
  const QueueView view{2, 300, 0, 0.001, 0.05};  // 0.45 s to the first token, and a tenth more
  request.deadline_ns = 1'000'000'000 + 500'000'000;
  CHECK(policy.check_load(request, view, 1'000'000'000));
  request.deadline_ns = 1'000'000'000 + 400'000'000;
  const Status late = policy.check_load(request, view, 1'000'000'000);
  REQUIRE(!late);
  CHECK(late.error().code == ErrorCode::kExhausted);
  request.deadline_ns = 900'000'000;  // passed, with nothing known of the pace
  CHECK(!policy.check_load(request, {0, 0, 0, 0, 0}, 1'000'000'000));
}

}  // namespace
}  // namespace tandem::sched
