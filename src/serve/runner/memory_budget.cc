#include "serve/runner/memory_budget.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

namespace tandem::runner {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The first number of a small file; "max" and absence are kUnlimited.
uint64_t read_number(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return kUnlimited;
  char text[64] = {};
  const size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  return length == 0 || end == text ? kUnlimited : value;
}

uint64_t meminfo_available_bytes(const std::string& root) {
  std::FILE* file = std::fopen((root + "/proc/meminfo").c_str(), "re");
  if (file == nullptr) return kUnlimited;
  char line[256];
  uint64_t available = kUnlimited;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    unsigned long long kib = 0;
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) available = kib * 1024;
  }
  std::fclose(file);
  return available;
}

// This process's folder below a hierarchy: "" for v2, "memory" for v1.
std::string own_group(const std::string& root, const char* controller) {
  std::FILE* file = std::fopen((root + "/proc/self/cgroup").c_str(), "re");
  if (file == nullptr) return {};
  char line[1024];
  std::string group;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    char* first = std::strchr(line, ':');
    char* second = first != nullptr ? std::strchr(first + 1, ':') : nullptr;
    if (second == nullptr) continue;
    if (std::string(first + 1, second) == controller) group = std::string(second + 1, std::strcspn(second + 1, "\n"));
  }
  std::fclose(file);
  return group;
}

// The number after `key` at the start of a line of memory.stat; 0 when there is none.
uint64_t read_statistic(const std::string& path, const std::string& key) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return 0;
  char line[256];
  uint64_t value = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, (key + " ").c_str(), key.size() + 1) == 0) {
      value = std::strtoull(line + key.size(), nullptr, 10);
    }
  }
  std::fclose(file);
  return value;
}

// What the files of one version of cgroups are called.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

uint64_t room(const std::string& folder, const GroupFiles& files) {
  const uint64_t limit = read_number(folder + "/" + files.limit);
  uint64_t usage = read_number(folder + "/" + files.usage);
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  // Cached file pages count as used, but the kernel gives them back first: packing weights leaves many of them.
  usage -= std::min(usage, read_statistic(folder + "/memory.stat", files.reclaimable));
  return limit > usage ? limit - usage : 0;
}

// The least room that a group and the groups above it leave. Inside a container the own group is often mounted as the
// root, so a path that is not there is no limit.
uint64_t least_room(const std::string& hierarchy, std::string group, const GroupFiles& files) {
  uint64_t least = room(hierarchy, files);
  while (group.size() > 1 && group.front() == '/') {
    least = std::min(least, room(hierarchy + group, files));
    group.resize(group.rfind('/'));
  }
  return least;
}

}  // namespace

uint64_t available_memory_bytes(const std::string& root) {
  uint64_t available = meminfo_available_bytes(root);
  const std::string groups = root + "/sys/fs/cgroup";
  available = std::min(available, least_room(groups, own_group(root, ""), kVersion2));
  available = std::min(available, least_room(groups + "/memory", own_group(root, "memory"), kVersion1));
  return available == kUnlimited ? 0 : available;
}

}  // namespace tandem::runner
