#include "cluster/supervisor/status_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace tandem::supervisor {
namespace {

std::string text_of(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  const std::string* text = value != nullptr ? value->if_string() : nullptr;
  return text != nullptr ? *text : std::string("?");
}

std::optional<uint64_t> number_of(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  uint64_t number = 0;
  if (value == nullptr || !value->as_uint64(number)) return std::nullopt;
  return number;
}

std::optional<uint64_t> sum(std::optional<uint64_t> a, std::optional<uint64_t> b) {
  if (!a || !b) return std::nullopt;
  return *a + *b;
}

using Column = std::vector<std::string>;

std::string cell(const std::optional<uint64_t>& number) { return number ? std::to_string(*number) : "-"; }

std::string kv_cell(const NodeRow& row) {
  if (!row.kv_total || !row.kv_free || *row.kv_total == 0) return "-";
  const uint64_t used = *row.kv_total - std::min(*row.kv_free, *row.kv_total);
  return fmt::format("{} % of {}", (used * 100 + *row.kv_total / 2) / *row.kv_total, *row.kv_total);
}

// "p1, p2 and p3"
std::string listed(const std::vector<std::string>& names) {
  if (names.size() < 2) return fmt::format("{}", fmt::join(names, ""));
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

}  // namespace

std::string status_sentence(const std::vector<NodeRow>& rows) {
  std::vector<std::string> prefill, decode, mixed, others;
  for (const NodeRow& row : rows) {
    if (row.role == "gateway" || row.state == "left") continue;
    if (row.state != "ready") others.push_back(fmt::format("{} ({})", row.id, row.state));
    else if (row.role == "prefill") prefill.push_back(row.id);
    else if (row.role == "decode") decode.push_back(row.id);
    else mixed.push_back(row.id);
  }
  std::vector<std::string> parts;
  const auto add = [&](const std::vector<std::string>& names, const char* one, const char* many) {
    if (!names.empty()) parts.push_back(listed(names) + (names.size() == 1 ? one : many));
  };
  add(prefill, " prefills", " prefill");
  add(decode, " decodes", " decode");
  add(mixed, " does both", " do both");
  const bool has_prefill = !prefill.empty() || !mixed.empty(), has_decode = !decode.empty() || !mixed.empty();
  std::string text = "Prefill and decode are in the same processes: ";
  if (!has_prefill || !has_decode) {
    text = fmt::format("Nothing is served, as no node that {} is ready",
                       has_prefill ? "decodes" : has_decode ? "prefills" : "prefills or decodes");
    if (!parts.empty()) text += ": ";
  } else if (!prefill.empty() || !decode.empty()) {
    text = "Prefill and decode are in processes of their own: ";
  }
  text += fmt::format("{}.", fmt::join(parts, ", "));
  if (!others.empty()) text += fmt::format(" Not ready: {}.", fmt::join(others, ", "));
  return text + "\n";
}

Result<std::vector<NodeRow>> rows_of_status(const std::string& json) {
  auto parsed = JsonValue::parse(json);
  if (!parsed) return Error{ErrorCode::kCorrupt, "the gateway's status: " + parsed.error().message};
  const JsonValue* nodes = parsed->find("nodes");
  if (nodes == nullptr || nodes->if_array() == nullptr) {
    return Error{ErrorCode::kCorrupt, "the gateway's status names no nodes"};
  }
  std::vector<NodeRow> rows;
  for (const JsonValue& node : *nodes->if_array()) {
    NodeRow row;
    row.id = text_of(node, "id");
    row.role = text_of(node, "role");
    row.state = text_of(node, "state");
    row.pid = number_of(node, "pid");
    row.running = number_of(node, "running");
    row.waiting = number_of(node, "waiting");
    if (const JsonValue* kv = node.find("kv"); kv != nullptr) {
      row.kv_total = sum(number_of(*kv, "private_total"), number_of(*kv, "shared_total"));
      row.kv_free = sum(number_of(*kv, "private_free"), number_of(*kv, "shared_free"));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string status_table(const std::vector<NodeRow>& rows) {
  std::vector<Column> columns = {{"NODE"}, {"ROLE"}, {"STATE"}, {"PID"}, {"RUNNING"}, {"WAITING"}, {"KV BLOCKS"},
                                 {"RESTARTS"}};
  constexpr size_t kNumTexts = 3;
  for (const NodeRow& row : rows) {
    const std::string cells[] = {row.id,           row.role,          row.state,    cell(row.pid),
                                 cell(row.running), cell(row.waiting), kv_cell(row), cell(row.restarts)};
    for (size_t i = 0; i < columns.size(); ++i) columns[i].push_back(cells[i]);
  }
  const auto is_empty = [](const Column& column) {
    return std::all_of(column.begin() + 1, column.end(), [](const std::string& text) { return text == "-"; });
  };
  std::string text;
  for (size_t line = 0; line <= rows.size(); ++line) {
    std::string words;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (i >= kNumTexts && is_empty(columns[i])) continue;
      size_t width = 0;
      for (const std::string& word : columns[i]) width = std::max(width, word.size());
      words += i < kNumTexts ? fmt::format("{:<{}}  ", columns[i][line], width)
                             : fmt::format("{:>{}}  ", columns[i][line], width);
    }
    words.erase(words.find_last_not_of(' ') + 1);
    text += words + "\n";
  }
  return text;
}

}  // namespace tandem::supervisor
