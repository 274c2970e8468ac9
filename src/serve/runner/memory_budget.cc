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

uint64_t meminfo_available_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
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
std::string own_group(const char* controller) {
  std::FILE* file = std::fopen("/proc/self/cgroup", "re");
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

uint64_t room(const std::string& folder, const char* limit_name, const char* usage_name) {
  const uint64_t limit = read_number(folder + "/" + limit_name);
  const uint64_t usage = read_number(folder + "/" + usage_name);
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  return limit > usage ? limit - usage : 0;
}

}  // namespace

uint64_t available_memory_bytes() {
  uint64_t available = meminfo_available_bytes();
  // Inside a container the own group is often mounted as the root, so both places are looked at.
  for (const std::string& group : {std::string(), own_group("")}) {
    available = std::min(available, room("/sys/fs/cgroup" + group, "memory.max", "memory.current"));
  }
  for (const std::string& group : {std::string(), own_group("memory")}) {
    available = std::min(available, room("/sys/fs/cgroup/memory" + group, "memory.limit_in_bytes", "memory.usage_in_bytes"));
  }
  return available == kUnlimited ? 0 : available;
}

}  // namespace tandem::runner
