#pragma once
// ClusterScreen: what `tandem up` shows: news as lines, and on a terminal below them a table of the nodes that is drawn
// anew each second.

#include <cstdint>
#include <string>

#include "cluster/supervisor/supervisor.h"

namespace tandem::apps {

// On stdout. One thread.
class ClusterScreen {
 public:
  ClusterScreen();

  void say(const std::string& line);  // above the table
  void clear();                       // the table goes, until the next draw()
  void draw(const supervisor::Supervisor& supervisor, int64_t now_ns);

 private:
  const bool is_terminal_;
  uint32_t num_lines_ = 0;  // of the table on the screen
  int64_t drawn_ns_ = INT64_MIN / 2;
};

// Whether every node that serves is in the gateway's newest word as ready.
bool has_met_all(const std::vector<supervisor::Child>& children);

// The table's text: the gateway's newest word on each node, and the supervisor's on those that do not serve.
std::string cluster_table(const std::vector<supervisor::Child>& children);

}  // namespace tandem::apps
