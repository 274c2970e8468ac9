#include "serve/text/tool_call_reader.h"

#include <algorithm>
#include <utility>

namespace tandem::text {

ToolCallReader::ToolCallReader(std::shared_ptr<const ToolCallRules> rules, bool skip_special)
    : rules_(std::move(rules)), skip_special_(skip_special), parser_(rules_) {}

void ToolCallReader::note_token(TokenId id, uint64_t num_decoded_bytes) {
  for (const ToolMarker& marker : rules_->markers) {
    if (marker.id != id) continue;
    const bool is_hidden = marker.is_hidden && skip_special_;
    const uint64_t size_bytes = is_hidden ? 0 : std::min<uint64_t>(marker.text.size(), num_decoded_bytes);
    found_.push_back({&marker, num_decoded_bytes - size_bytes, size_bytes});
  }
}

void ToolCallReader::push(std::string_view text, std::vector<AnswerPiece>& out) {
  while (true) {
    const Found* next = found_.empty() ? nullptr : &found_.front();
    const uint64_t before = next && next->begin > num_pushed_bytes_ ? next->begin - num_pushed_bytes_ : 0;
    const size_t num_plain = next ? std::min<uint64_t>(text.size(), before) : text.size();
    parser_.push(text.substr(0, num_plain), false, out);
    text.remove_prefix(num_plain);
    num_pushed_bytes_ += num_plain;
    if (!next || num_pushed_bytes_ < next->begin) return;
    // A stop string can end the text inside a marker's: so much of it counts as the marker's beginning, which is text.
    const uint64_t end = next->begin + next->size_bytes;
    const size_t num_of_marker = std::min<uint64_t>(text.size(), end - num_pushed_bytes_);
    if (num_pushed_bytes_ + num_of_marker < end && num_of_marker == 0) return;
    const std::string_view shown =
        next->size_bytes == 0 ? std::string_view(next->marker->text) : text.substr(0, num_of_marker);
    parser_.push(shown, true, out);
    text.remove_prefix(num_of_marker);
    num_pushed_bytes_ += num_of_marker;
    if (num_pushed_bytes_ < end) return;
    found_.pop_front();
  }
}

void ToolCallReader::finish(std::vector<AnswerPiece>& out) { parser_.finish(out); }

}  // namespace tandem::text
