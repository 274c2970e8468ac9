#include "cluster/supervisor/status_table.h"

#include <doctest/doctest.h>

#include <array>

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

TEST_CASE("a sentence says whether prefill and decode are apart, and who serves what") {
  const auto sentence = [](std::initializer_list<std::array<const char*, 3>> nodes) {
    std::vector<NodeRow> rows(1);
    rows[0].role = "gateway";
    rows[0].state = "ready";
    for (const auto& [id, role, state] : nodes) {
      rows.emplace_back();
      rows.back().id = id;
      rows.back().role = role;
      rows.back().state = state;
    }
    return status_sentence(rows);
  };
  CHECK(sentence({{"p1", "prefill", "ready"}, {"p2", "prefill", "ready"}, {"d1", "decode", "ready"}}) ==
        "Prefill and decode are in processes of their own: p1 and p2 prefill, d1 decodes.\n");
  CHECK(sentence({{"m1", "mixed", "ready"}, {"m2", "mixed", "ready"}, {"m3", "mixed", "ready"}}) ==
        "Prefill and decode are in the same processes: m1, m2 and m3 do both.\n");
  CHECK(sentence({{"m1", "mixed", "ready"}, {"d1", "decode", "ready"}, {"d2", "decode", "left"}}) ==
        "Prefill and decode are in processes of their own: d1 decodes, m1 does both.\n");
  CHECK(sentence({{"p1", "prefill", "ready"}, {"d1", "decode", "suspect"}}) ==
        "Nothing is served, as no node that decodes is ready: p1 prefills. Not ready: d1 (suspect).\n");
  CHECK(sentence({}) == "Nothing is served, as no node that prefills or decodes is ready.\n");
}

TEST_CASE("a text that is no status is refused") {
  for (const char* text : {"", "{}", "[]", R"({"nodes":1})", R"({"nodes":[)"}) CHECK_FALSE(rows_of_status(text));
}

}  // namespace
}  // namespace tandem::supervisor
