#include "testing/golden.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace tandem::testing {
namespace {

std::string_view line_from(std::string_view text, size_t begin) {
  return text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin);
}

}  // namespace

std::string golden_difference(const std::string& path, std::string_view text) {
  const char* update = std::getenv("UPDATE_GOLDEN");
  if (update != nullptr && *update != '\0') {
    std::ofstream out(path, std::ios::binary);
    out << text;
    return out.good() ? "" : "cannot write " + path;
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return path + " is missing; UPDATE_GOLDEN=1 makes it";
  const std::string expected{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (text == expected) return "";
  const size_t same = static_cast<size_t>(
      std::mismatch(text.begin(), text.end(), expected.begin(), expected.end()).first - text.begin());
  const size_t line_end = std::string_view(expected).substr(0, same).rfind('\n');
  const size_t begin = line_end == std::string::npos ? 0 : line_end + 1;
  return path + " differs (UPDATE_GOLDEN=1 rewrites it); expected, then got:\n" +
         std::string(line_from(expected, begin)) + "\n" + std::string(line_from(text, begin));
}

}  // namespace tandem::testing
