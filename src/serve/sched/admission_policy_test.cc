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

// The fault: a prompt that fills the model's length is taken.
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

// The faults: nothing is clamped; the pool's size is not looked at.
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

TEST_CASE("an idle server tries what it predicts to be late, but not what is late already") {
  // The fault: what is predicted is learned from what is admitted, so one slow spell shut the door for ever.
  const AdmissionPolicy policy(small_config());
  QueueView view{0, 0, 0, 0.001, 0.05};
  view.mean_output_tokens = 1000;
  Request request = request_of(100, 5000);
  request.deadline_ns = 1'500'000'000;
  CHECK(policy.check_load(request, view, 1'000'000'000).error().code == ErrorCode::kExhausted);
  view.is_idle = true;
  CHECK(policy.check_load(request, view, 1'000'000'000));
  CHECK(policy.check_load(request, view, 1'500'000'000).error().code == ErrorCode::kExhausted);
}

// How many requests of the tenant an empty queue takes.
uint32_t taken_of(const AdmissionPolicy& policy, const std::string& tenant) {
  uint32_t count = 0;
  for (QueueView view; policy.check_room(view, 0, tenant); view.tenant_queued = view.num_queued = count) ++count;
  return count;
}

TEST_CASE("weights are relative: the same share of the queue whatever all of them are multiplied by") {
  // The faults: with weights of 0.1 a key got a quarter of the queue, with 100 all of it; a list as long as the queue
  // passed the limits and was refused each time it came.
  SchedulerConfig config;
  config.max_queue_length = 100;
  for (const double scale : {0.01, 1.0, 37.5}) {
    config.tenant_weights = {{"a", scale}, {"b", scale}, {"c", scale}};
    CHECK(taken_of(AdmissionPolicy(config), "a") == 80);
    config.tenant_weights = {{"a", scale}, {"b", 3 * scale}};
    const AdmissionPolicy policy(config);
    CHECK(taken_of(policy, "a") == 67);
    CHECK(taken_of(policy, "b") == 86);
    CHECK(policy.max_waiting() <= 67);
    CHECK(policy.max_waiting() >= 66);
  }
  config.max_queued_tokens = 1000;
  CHECK(AdmissionPolicy(config).max_waiting_tokens() == 666);
  config.tenant_weights = {{"a", 1}};
  CHECK(AdmissionPolicy(config).max_waiting_tokens() == 1000);
  config.max_queued_tokens = 0;
  CHECK(AdmissionPolicy(config).max_waiting_tokens() == 0);
  CHECK(AdmissionPolicy(config).max_waiting() == 100);
  config.max_queued_per_tenant = 7;
  CHECK(AdmissionPolicy(config).max_waiting() == 7);
  config.max_queue_length = config.max_queued_per_tenant = 0;
  CHECK(AdmissionPolicy(config).max_waiting() == 0);
}

}  // namespace
}  // namespace tandem::sched
