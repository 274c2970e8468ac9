#include "apps/cluster_screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "cluster/supervisor/status_table.h"

namespace tandem::apps {
namespace {

using supervisor::Child;
using supervisor::ChildPhase;
using supervisor::NodeRow;

constexpr int64_t kRedraw_ns = 1'000'000'000;

std::vector<NodeRow> told_rows(const std::vector<Child>& children) {
  for (const Child& child : children) {
    const auto status = child.said.find("status");
    if (status == child.said.end()) continue;
    auto rows = supervisor::rows_of_status(status->second);
    if (rows) return std::move(rows).value();
  }
  return {};
}

}  // namespace

bool has_met_all(const std::vector<Child>& children) {
  const std::vector<NodeRow> told = told_rows(children);
  return std::all_of(children.begin(), children.end(), [&](const Child& child) {
    if (child.phase != ChildPhase::kReady) return true;
    return std::any_of(told.begin(), told.end(),
                       [&](const NodeRow& row) { return row.id == child.spec.name && row.state == "ready"; });
  });
}

std::string cluster_table(const std::vector<Child>& children) {
  const std::vector<NodeRow> told = told_rows(children);
  std::vector<NodeRow> rows;
  for (const Child& child : children) {
    NodeRow row{child.spec.name, "-", supervisor::phase_name(child.phase), {}, {}, {}, {}, {}, {}};
    const auto known =
        std::find_if(told.begin(), told.end(), [&](const NodeRow& other) { return other.id == row.id; });
    if (known != told.end() && child.phase == ChildPhase::kReady) row = *known;
    else if (known != told.end()) row.role = known->role;
    if (child.process) row.pid = static_cast<uint64_t>(child.pid);
    row.restarts = child.num_restarts;
    rows.push_back(std::move(row));
  }
  return supervisor::status_table(rows);
}

ClusterScreen::ClusterScreen() : is_terminal_(isatty(STDOUT_FILENO) != 0) {}

void ClusterScreen::clear() {
  if (num_lines_ > 0) fmt::print("\033[{}A\033[J", num_lines_);
  num_lines_ = 0;
  drawn_ns_ = INT64_MIN / 2;
}

void ClusterScreen::say(const std::string& line) {
  clear();
  fmt::print("tandem: {}\n", line);
  std::fflush(stdout);
}

void ClusterScreen::draw(const supervisor::Supervisor& supervisor, int64_t now_ns) {
  if (!is_terminal_ || now_ns - drawn_ns_ < kRedraw_ns) return;
  winsize size{};
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  // A line that wraps, or a table that scrolls, could not be drawn over.
  const size_t width = size.ws_col > 0 ? size.ws_col : 80;
  const uint32_t height = size.ws_row > 1 ? size.ws_row - 1u : 23u;
  clear();
  const std::string table = cluster_table(supervisor.children());
  for (size_t begin = 0; begin < table.size() && num_lines_ < height; ++num_lines_) {
    const size_t end = table.find('\n', begin);
    fmt::print("{}\n", table.substr(begin, std::min(end - begin, width)));
    begin = end + 1;
  }
  std::fflush(stdout);
  drawn_ns_ = now_ns;
}

}  // namespace tandem::apps
