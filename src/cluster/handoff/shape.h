#pragma once
// HandoffShape: which KV blocks one hand-off consists of, and their numbers in it. Blocks that the full prompt fills
// are shared by all choices; from the prompt's last, partial block on each choice has its own. Finished choices have
// none.

#include <cstdint>
#include <vector>

namespace tandem::handoff {

struct HandoffShape {
  uint32_t block_size = 16;  // tokens
  uint32_t num_layer_groups = 1;
  uint32_t prompt_tokens = 0;
  std::vector<uint32_t> choice_tokens;  // emitted so far, by choice; their KV goes along
  std::vector<uint8_t> is_finished;     // by choice

  uint32_t num_choices() const { return static_cast<uint32_t>(choice_tokens.size()); }
  uint32_t num_shared() const { return prompt_tokens / block_size; }
  uint32_t num_positions(uint32_t choice) const { return prompt_tokens + choice_tokens[choice]; }
  uint32_t num_own(uint32_t choice) const {
    if (is_finished[choice]) return 0;
    return (num_positions(choice) + block_size - 1) / block_size - num_shared();
  }
  uint32_t num_blocks() const { return first_own(num_choices()); }
  // The number of the choice's first own block; its others follow.
  uint32_t first_own(uint32_t choice) const {
    uint32_t first = num_shared();
    for (uint32_t c = 0; c < choice; ++c) first += num_own(c);
    return first;
  }
  uint32_t num_parts() const { return num_blocks() * num_layer_groups; }

  bool operator==(const HandoffShape&) const = default;
};

// Where block `number` of a shape belongs, and how many of its positions hold KV.
struct BlockPlace {
  bool is_shared = false;
  uint32_t choice = 0;  // of an own block
  uint32_t index = 0;   // among the shared ones, or among the choice's own
  uint32_t num_filled = 0;
  bool operator==(const BlockPlace&) const = default;
};
BlockPlace place_of(const HandoffShape& shape, uint32_t number);

// Parts are (block, layer group). Which of them a node has; a part counts once however often it comes.
class PartSet {
 public:
  PartSet() = default;
  explicit PartSet(uint32_t num_parts) : bits_(num_parts, 0) {}

  bool add(uint32_t part) {  // false: it was there
    if (bits_[part]) return false;
    bits_[part] = 1;
    ++count_;
    return true;
  }
  bool has(uint32_t part) const { return part < bits_.size() && bits_[part] != 0; }
  bool is_full() const { return count_ == bits_.size(); }
  uint32_t size() const { return static_cast<uint32_t>(bits_.size()); }
  uint32_t count() const { return count_; }

 private:
  std::vector<uint8_t> bits_;
  uint32_t count_ = 0;
};

// What of `had`, the parts of `old_shape`, is still right for `shape`: blocks at the same place with as many positions.
PartSet carried_over(const PartSet& had, const HandoffShape& old_shape, const HandoffShape& shape);

}  // namespace tandem::handoff
