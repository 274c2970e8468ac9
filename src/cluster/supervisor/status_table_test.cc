#include "cluster/supervisor/status_table.h"

#include <doctest/doctest.h>

namespace tandem::supervisor {
namespace {

constexpr const char* kStatus =
    R"({"nodes":[{"id":"gateway","role":"gateway","state":"ready","pid":7,"incarnation":1,"role_epoch":0,"running":3,
    "waiting":1,"kv":{"private_total":null,"private_free":null,"shared_total":null,"shared_free":null}},
    {"id":"d1","role":"decode","state":"suspect","pid":8,"incarnation":2,"role_epoch":4,"running":3,"waiting":0,
    "kv":{"private_total":30,"private_free":10,"shared_total":30,"shared_free":25}}],"view":9})";

TEST_CASE("a gateway's status becomes rows, and what it does not say stays absent") {
  const auto rows = rows_of_status(kStatus);
  REQUIRE(rows);
  REQUIRE(rows.value().size() == 2);
  CHECK(rows.value()[0].pid == 7);
  CHECK_FALSE(rows.value()[0].kv_total);
  CHECK(rows.value()[1].kv_total == 60);
  CHECK(rows.value()[1].kv_free == 35);
}

TEST_CASE("the table has columns of equal width, and none that is empty") {
  auto rows = rows_of_status(kStatus);
  REQUIRE(rows);
  CHECK(status_table(rows.value()) ==
        "NODE     ROLE     STATE    PID  RUNNING  WAITING   KV BLOCKS\n"
        "gateway  gateway  ready      7        3        1           -\n"
        "d1       decode   suspect    8        3        0  42 % of 60\n");
  rows->at(1).restarts = 2;
  CHECK(status_table({rows->at(1)}) ==
        "NODE  ROLE    STATE    PID  RUNNING  WAITING   KV BLOCKS  RESTARTS\n"
        "d1    decode  suspect    8        3        0  42 % of 60         2\n");
  CHECK(status_table({}) == "NODE  ROLE  STATE\n");
}

TEST_CASE("a text that is no status is refused") {
  for (const char* text : {"", "{}", "[]", R"({"nodes":1})", R"({"nodes":[)"}) CHECK_FALSE(rows_of_status(text));
}

}  // namespace
}  // namespace tandem::supervisor
