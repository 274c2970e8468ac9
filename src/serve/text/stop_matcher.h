#pragma once
// StopMatcher: finds the first of several stop strings in a text that comes in pieces, and says what of the
// text may be shown already. It holds back only a suffix that begins some stop string, so that a long stop
// string that never comes delays nothing. The result does not depend on how the text is cut into pieces.
//
// "First" is the stop string that ends first; of several that end there, the longest. One thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

class StopMatcher {
 public:
  // Empty strings are ignored. include_stop: the stop string itself belongs to the shown text.
  explicit StopMatcher(const std::vector<std::string>& stops, bool include_stop = false);

  // What may be shown now; valid until the next call. With may_stop false no match ends in this piece, but a
  // match may begin in it. After a match nothing more comes out.
  std::string_view push(std::string_view text, bool may_stop = true);
  // At the end: what was held back; nothing after a match. Valid until the next call.
  std::string_view finish();

  bool has_matched() const { return !matched_.empty(); }
  const std::string& matched() const { return matched_; }  // the stop string; empty before a match

 private:
  // Knuth, Morris and Pratt: `depth` bytes of the text's end are the beginning of `text`.
  struct Pattern {
    std::string text;
    std::vector<uint32_t> fallback;  // [i]: the longest proper border of the first i bytes
    uint32_t depth = 0;
  };

  const Pattern* advance(unsigned char byte);  // the longest pattern that this byte completes, or null
  size_t held_bytes() const;                   // the longest beginning of a stop string that the text ends with

  std::vector<Pattern> patterns_;
  bool include_stop_;
  std::string matched_;
  std::string held_;   // not shown yet
  std::string shown_;  // what the last call returned
};

}  // namespace tandem::text
