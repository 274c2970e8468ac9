#include "serve/text/stop_matcher.h"

#include <algorithm>

namespace tandem::text {

namespace {

std::vector<uint32_t> borders(const std::string& text) {
  std::vector<uint32_t> fallback(text.size() + 1, 0);
  uint32_t border = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (border > 0 && text[i] != text[border]) border = fallback[border];
    if (text[i] == text[border]) ++border;
    fallback[i + 1] = border;
  }
  return fallback;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop) : include_stop_(include_stop) {
  for (const std::string& stop : stops)
    if (!stop.empty()) patterns_.push_back({stop, borders(stop)});
}

const StopMatcher::Pattern* StopMatcher::advance(unsigned char byte) {
  const char c = static_cast<char>(byte);
  const Pattern* complete = nullptr;
  for (Pattern& p : patterns_) {
    if (p.depth == p.text.size()) p.depth = p.fallback[p.depth];
    while (p.depth > 0 && p.text[p.depth] != c) p.depth = p.fallback[p.depth];
    if (p.text[p.depth] == c) ++p.depth;
    if (p.depth == p.text.size() && (!complete || p.text.size() > complete->text.size())) complete = &p;
  }
  return complete;
}

size_t StopMatcher::held_bytes() const {
  size_t held = 0;
  for (const Pattern& p : patterns_) {
    const uint32_t depth = p.depth == p.text.size() ? p.fallback[p.depth] : p.depth;
    held = std::max<size_t>(held, depth);
  }
  return held;
}

std::string_view StopMatcher::push(std::string_view text, bool may_stop) {
  shown_.clear();
  if (has_matched()) return shown_;
  for (size_t i = 0; i < text.size(); ++i) {
    const Pattern* complete = advance(static_cast<unsigned char>(text[i]));
    if (!complete || !may_stop) continue;
    matched_ = complete->text;
    shown_ = held_;
    shown_.append(text.substr(0, i + 1));
    if (!include_stop_) shown_.resize(shown_.size() - matched_.size());
    held_.clear();
    return shown_;
  }
  held_.append(text);
  const size_t safe = held_.size() - held_bytes();
  shown_.assign(held_, 0, safe);
  held_.erase(0, safe);
  return shown_;
}

std::string_view StopMatcher::finish() {
  shown_ = std::move(held_);
  held_.clear();
  return shown_;
}

}  // namespace tandem::text
