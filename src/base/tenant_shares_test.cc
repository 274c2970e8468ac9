#include "base/tenant_shares.h"

#include <doctest/doctest.h>

namespace tandem {
namespace {

TEST_CASE("whoever got least by its weight goes next, and a newcomer starts level, ahead of those it is level with") {
  TenantShares shares({{"gold", 2}, {"odd", -1}}, 0);
  shares.enter("a");
  shares.enter("gold");
  shares.charge("a", 10);
  shares.charge("gold", 10);
  CHECK(shares.of("gold").goes_before(shares.of("a")));
  CHECK(!shares.of("a").goes_before(shares.of("gold")));
  shares.enter("late");
  CHECK(shares.of("late").served == 5);
  CHECK(shares.of("late").goes_before(shares.of("gold")));
  CHECK(!shares.of("gold").goes_before(shares.of("late")));
  shares.enter("odd");
  CHECK(shares.of("odd").weight == 1);
  CHECK(shares.num_present() == 4);
}

TEST_CASE("being away is no claim, and leaving clears no debt") {
  TenantShares shares({}, 20);
  for (const char* name : {"a", "b"}) shares.enter(name);
  shares.charge("a", 100);
  shares.leave("a");
  CHECK(shares.num_present() == 1);
  shares.enter("a");
  CHECK(shares.of("a").served == 100);
  shares.leave("a");
  shares.charge("b", 500);
  shares.enter("a");
  CHECK(shares.of("a").served == 480);  // the start, and no more
  shares.charge("a", 15);
  shares.leave("a");
  shares.enter("a");
  CHECK(shares.of("a").served == 495);  // what is left of it
}

TEST_CASE("of thousands that come and go those with the largest debts are remembered, and no more than a thousand") {
  TenantShares shares({}, 0);
  for (int i = 0; i < 5000; ++i) {
    const std::string name = "t" + std::to_string(i);
    shares.enter(name);
    shares.charge(name, i == 7 ? 1e6 : 1);
    shares.leave(name);
  }
  CHECK(shares.all().size() <= 1025);
  CHECK(shares.of("t7").served >= 1e6);
}

}  // namespace
}  // namespace tandem
