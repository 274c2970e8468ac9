#include "compute/graph/passes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compute/graph/check_graph.h"
#include "compute/graph/dump.h"
#include "compute/graph/fuse.h"
#include "compute/graph/graphs_for_test.h"

namespace tandem::graph {
namespace {

using tensor::DType;

void check_valid(const Graph& graph) {
  const Status valid = check_graph(graph);
  CHECK_MESSAGE(static_cast<bool>(valid), (valid ? "" : valid.error().message) << "\n" << dump_text(graph));
}

std::string after(void (*pass)(Graph&), Graph graph) {
  check_valid(graph);
  pass(graph);
  check_valid(graph);
  return dump_text(graph);
}

// Ops of one kind in a dump.
int count_ops(const std::string& dump, const std::string& op) {
  int count = 0;
  for (size_t at = 0; (at = dump.find("= " + op + " ", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_CASE("three neighbouring linears of one input become one over stacked rows") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId q = m.linear("q", x, 64), k = m.linear("k", x, 32), v = m.linear("v", x, 32);
  m.sink({q}, 1), m.sink({k, v}, 2);
  CHECK(after(fuse_qkv, m.graph) ==
        "%q+k+v@qkv.0[0:128]: f32[tokens,128] = linear %x w_q+w_k+w_v:Q4_0[128x64]\n"
        "%end: f32[tokens,64] = add %q@qkv.0[0:64] %q@qkv.0[0:64]\n"
        "%end: f32[tokens,32] = add %k@qkv.0[64:96] %v@qkv.0[96:128]\n");
}

TEST_CASE("of three linears with two weight types those of one type become one, the other writes its slice") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId q = m.linear("q", x, 64), k = m.linear("k", x, 32), v = m.linear("v", x, 32, DType::kQ6_K);
  m.sink({q}, 1), m.sink({k, v}, 2);
  const std::string dump = after(fuse_qkv, m.graph);
  CHECK(dump.find("%q+k@qkv.0[0:96]: f32[tokens,96] = linear %x w_q+w_k:Q4_0[96x64]\n") == 0);
  CHECK(dump.find("%v@qkv.0[96:128]: f32[tokens,32] = linear %x w_v:Q6_K[32x64]\n") != std::string::npos);
}

TEST_CASE("linears of different inputs, or whose output lives outside, stay apart") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0), y = m.outside("y", 64, 2);
  const ValueId q = m.linear("q", x, 32), k = m.linear("k", x, 32), v = m.linear("v", y, 32);
  m.sink({q}, 1), m.sink({k, v}, 3);
  CHECK(after(fuse_qkv, m.graph) == dump_text(m.graph));
  GraphMaker outside;
  const ValueId x2 = outside.outside("x", 64, 0);
  const ValueId a = outside.linear("a", x2, 32), b = outside.linear("b", x2, 32), c = outside.linear("c", x2, 32);
  outside.graph.values[c].external_slot = 2;
  outside.sink({a, b}, 1);
  CHECK(after(fuse_qkv, outside.graph) == dump_text(outside.graph));
}

Graph gated(uint32_t columns, DType up_type, bool is_gate_read_twice) {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId gate = m.linear("gate", x, columns), up = m.linear("up", x, columns, up_type);
  m.sink({m.op(TD_OP_SILU_MUL, "gated", {gate, up}, columns)}, 1);
  if (is_gate_read_twice) m.sink({gate}, 2);
  return std::move(m.graph);
}

TEST_CASE("gate and up become one gated linear when nothing is in the way") {
  CHECK(after(fuse_gate_up, gated(96, DType::kQ4_0, false)) ==
        "%gated: f32[tokens,96] = linear %x w_gate+w_up:Q4_0[192x64]/interleaved gated\n"
        "%end: f32[tokens,96] = add %gated %gated\n");
  for (const Graph& graph :
       {gated(80, DType::kQ4_0, false), gated(96, DType::kQ8_0, false), gated(96, DType::kQ4_0, true)}) {
    CHECK(after(fuse_gate_up, graph) == dump_text(graph));
  }
}

TEST_CASE("an add goes into the linear whose output it takes, unless the other summand comes later or both are read") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  m.sink({m.op(TD_OP_ADD, "sum", {x, m.linear("o", x, 64)}, 64)});
  CHECK(after(fuse_residual, m.graph) ==
        "%sum: f32[tokens,64] = linear %x %x w_o:Q4_0[64x64]\n%end: f32[tokens,64] = add %sum %sum\n");

  GraphMaker late;  // the residual is made after the linear
  const ValueId in = late.outside("x", 64, 0);
  const ValueId o = late.linear("o", in, 64);
  const ValueId other = late.op(TD_OP_RMS_NORM, "n", {in}, 64, {late.vector("w", 64)});
  late.sink({late.op(TD_OP_ADD, "sum", {other, o}, 64)});
  CHECK(after(fuse_residual, late.graph) == dump_text(late.graph));

  GraphMaker kept;  // the caller reads the linear's output
  const ValueId kept_x = kept.outside("x", 64, 0);
  const ValueId kept_o = kept.linear("o", kept_x, 64);
  kept.graph.values[kept_o].external_slot = 2;
  kept.sink({kept.op(TD_OP_ADD, "sum", {kept_x, kept_o}, 64)});
  CHECK(after(fuse_residual, kept.graph) == dump_text(kept.graph));
}

TEST_CASE("a norm quantises by itself when only the quantisation reads it; an add does not") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId norm = m.op(TD_OP_RMS_NORM, "norm", {x}, 64, {m.vector("w", 64)});
  m.sink({m.linear("o", m.op(TD_OP_QUANTIZE, "norm.q8", {norm}, 64, {}, TD_Q8), 64)});
  const std::string dump = after(fuse_quantize, m.graph);
  CHECK(dump.find("%norm.q8: q8[tokens,64] = rms_norm %x w:F32[64x1]\n") == 0);
  CHECK(count_ops(dump, "quantize") == 0);

  GraphMaker twice;
  const ValueId y = twice.outside("x", 64, 0);
  const ValueId read_twice = twice.op(TD_OP_RMS_NORM, "norm", {y}, 64, {twice.vector("w", 64)});
  twice.sink({twice.linear("o", twice.op(TD_OP_QUANTIZE, "q8", {read_twice}, 64, {}, TD_Q8), 64), read_twice});
  CHECK(after(fuse_quantize, twice.graph) == dump_text(twice.graph));

  GraphMaker add;
  const ValueId z = add.outside("x", 64, 0);
  const ValueId sum = add.op(TD_OP_ADD, "sum", {z, z}, 64);
  add.sink({add.linear("o", add.op(TD_OP_QUANTIZE, "q8", {sum}, 64, {}, TD_Q8), 64)});
  CHECK(after(fuse_quantize, add.graph) == dump_text(add.graph));
}

TEST_CASE("pieces of rows that are no whole blocks are not quantised where they are made") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId narrow = m.linear("narrow", x, 40);
  m.sink({m.linear("o", m.op(TD_OP_QUANTIZE, "narrow.bf16", {narrow}, 40, {}, TD_BF16), 64)});
  CHECK(after(fuse_quantize, m.graph) == dump_text(m.graph));
}

// Attention over rope(q), rope(k), with head norms before when asked.
Graph attention_graph(bool has_norms, bool is_q_read_twice) {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  ValueId q = m.linear("q", x, 64), k = m.linear("k", x, 32);
  const ValueId v = m.linear("v", x, 32);
  if (is_q_read_twice) m.sink({q}, 2);
  const auto head_op = [&](td_op_kind kind, const char* name, ValueId in, uint32_t heads, WeightId weight) {
    const ValueId out = m.op(kind, name, {in}, heads * 16, {weight});
    OpAttributes& attributes = m.graph.nodes.back().attributes;
    attributes.num_heads = heads, attributes.head_dim = 16, attributes.eps = 1e-5f;
    return out;
  };
  if (has_norms) {
    q = head_op(TD_OP_HEAD_NORM, "qn", q, 4, m.vector("wq", 16));
    k = head_op(TD_OP_HEAD_NORM, "kn", k, 2, m.vector("wk", 16));
  }
  const WeightId table = m.vector("table", 64);
  q = head_op(TD_OP_ROPE, "qr", q, 4, table);
  k = head_op(TD_OP_ROPE, "kr", k, 2, table);
  m.graph.nodes.push_back({TD_OP_KV_WRITE, {k, v}, kNone, {}, {}});
  m.sink({m.op(TD_OP_ATTENTION, "context", {q}, 64)});
  return std::move(m.graph);
}

TEST_CASE("head norms, rope and KV write become one op that turns the queries in place") {
  const std::string plain = after(fuse_rope_kv, attention_graph(false, false));
  CHECK(count_ops(plain, "rope") == 0);
  CHECK(plain.find("%q: f32[tokens,64] = rope_kv_write %q %k %v table:F32[64x1] heads=4 kv_heads=2") !=
        std::string::npos);
  CHECK(plain.find("attention %q") != std::string::npos);
  const std::string normed = after(fuse_rope_kv, attention_graph(true, false));
  CHECK(count_ops(normed, "head_norm") == 0);
  CHECK(normed.find("rope_kv_write %q %k %v table:F32[64x1] wq:F32[16x1] wk:F32[16x1]") != std::string::npos);
  const Graph read_twice = attention_graph(false, true);
  CHECK(after(fuse_rope_kv, read_twice) == dump_text(read_twice));
}

TEST_CASE("on random graphs every subset of the passes leaves a valid graph with the same outside values") {
  std::mt19937 random(7);
  int num_fused = 0;
  for (int round = 0; round < 60; ++round) {
    const Graph graph = random_graph(random, 4 + round % 12);
    check_valid(graph);
    for (uint32_t subset = 0; subset < 32; ++subset) {
      Graph changed = graph;
      for (size_t i = 0; i < all_passes().size(); ++i) {
        if ((subset >> i & 1) != 0) all_passes()[i].run(changed);
      }
      CAPTURE(round);
      CAPTURE(subset);
      check_valid(changed);
      num_fused += changed.nodes.size() < graph.nodes.size() ? 1 : 0;
      CHECK(std::count_if(changed.nodes.begin(), changed.nodes.end(), [&](const Node& node) {
              return node.out != kNone && changed.values[node.out].external_slot == 1;
            }) == 1);
    }
  }
  CHECK(num_fused > 500);
}

TEST_CASE("the checker sees what is wrong") {
  const auto complaint = [](const Graph& graph) {
    const Status status = check_graph(graph);
    return status ? std::string() : status.error().message;
  };
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId a = m.linear("a", x, 64), b = m.linear("b", a, 64);
  m.sink({b});
  CHECK(complaint(m.graph).empty());
  Graph broken = m.graph;
  std::swap(broken.nodes[0], broken.nodes[1]);
  CHECK(complaint(broken).find("reads a before it is written") != std::string::npos);
  broken = m.graph;
  broken.nodes[2].in = {a, a};
  CHECK(complaint(broken).find("nothing reads b") != std::string::npos);
  broken = m.graph;
  broken.nodes[1].out = a;
  CHECK(complaint(broken).find("writes a a second time") != std::string::npos);
  broken = m.graph;
  broken.weights[0].n = 32;
  CHECK(!complaint(broken).empty());
  broken = m.graph;
  broken.values[a].base = x, broken.values[a].column_begin = 32;
  CHECK(complaint(broken).find("reaches beyond its base") != std::string::npos);
  broken = attention_graph(false, false);
  std::erase_if(broken.nodes, [](const Node& node) { return node.op == TD_OP_KV_WRITE; });
  CHECK(!complaint(broken).empty());
}

TEST_CASE("a choice of passes is read from text") {
  const auto names = [](const char* text) {
    auto choice = parse_passes(text);
    REQUIRE(static_cast<bool>(choice));
    return choice->names;
  };
  const std::vector<std::string> fuse = {"fuse_qkv", "fuse_gate_up", "fuse_residual", "fuse_quantize", "fuse_rope_kv"};
  std::vector<std::string> all = fuse;
  all.emplace_back("plan_memory");
  CHECK(names("all") == all);
  CHECK(names("none").empty());
  CHECK(names("").empty());
  CHECK(names("fuse") == fuse);
  CHECK(names("fuse,plan_memory") == all);
  // In running order, whatever the order of the text; names twice count once.
  CHECK(names("plan_memory,fuse_residual,fuse_qkv,fuse_qkv") ==
        std::vector<std::string>{"fuse_qkv", "fuse_residual", "plan_memory"});
  for (const char* wrong : {"fused", "all,fuse_moe", "ALL", "fuse_qkv fuse_residual"}) {
    const auto choice = parse_passes(wrong);
    REQUIRE(!choice);
    CHECK(choice.error().code == ErrorCode::kInvalidArgument);
    CHECK(choice.error().message.find("there are all, none, fuse, fuse_qkv") != std::string::npos);
  }
}

TEST_CASE("the graph for Graphviz has balanced braces and an edge for each read") {
  const std::string dot = dump_dot(attention_graph(true, false));
  CHECK(dot.starts_with("digraph "));
  CHECK(std::count(dot.begin(), dot.end(), '{') == std::count(dot.begin(), dot.end(), '}'));
  CHECK(std::count(dot.begin(), dot.end(), '"') % 2 == 0);
  size_t num_edges = 0, num_nodes = 0;
  for (size_t at = 0; (at = dot.find(" -> ", at)) != std::string::npos; ++at) ++num_edges;
  for (size_t at = 0; (at = dot.find("];\n", at)) != std::string::npos; ++at) ++num_nodes;
  CHECK(num_edges == 9);  // head norms 2, ropes 2, write 2, attention 1, the end's add 2
  CHECK(num_nodes - num_edges == attention_graph(true, false).nodes.size() + 1);  // and the default style
}

}  // namespace
}  // namespace tandem::graph
