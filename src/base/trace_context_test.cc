#include "base/trace_context.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

namespace tandem {
namespace {

const std::string kGiven = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST_CASE("a traceparent is read and written back") {
  const auto context = parse_traceparent(kGiven);
  REQUIRE(context);
  CHECK(trace_id_hex(*context) == "0af7651916cd43dd8448eb211c80319c");
  CHECK(span_id_hex(context->span) == "b7ad6b7169203331");
  CHECK(context->is_sampled);
  CHECK(traceparent_of(*context) == kGiven);
  const TraceContext child = child_of(*context);
  CHECK(child.parent == context->span);
  CHECK(child.span != context->span);
  CHECK(trace_id_hex(child) == trace_id_hex(*context));
  CHECK(!parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")->is_sampled);
  CHECK(traceparent_of({}).empty());
}

TEST_CASE("what the specification does not let in is ignored") {
  const std::vector<std::string> bad = {
      "",
      "00",
      "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",   // no version
      "0G-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",   // capitals
      "00-00000000000000000000000000000000-b7ad6b7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",  // version 00 ends there
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
      "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01",
      "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
  };
  for (const std::string& header : bad) CHECK_MESSAGE(!parse_traceparent(header), header);
  // A later version's own fields come behind; ours are read.
  CHECK(parse_traceparent("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"));
  CHECK(parse_traceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff"));
}

TEST_CASE("new traces and spans are all different, and can be read") {
  std::set<std::string> traces;
  for (int i = 0; i < 1000; ++i) {
    const TraceContext made = new_trace();
    CHECK(made.parent == 0);
    CHECK(parse_traceparent(traceparent_of(made)));
    traces.insert(trace_id_hex(made));
  }
  CHECK(traces.size() == 1000);
}

}  // namespace
}  // namespace tandem
