#include "cluster/handoff/shape.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::handoff {
namespace {

// The inverse of place_of; nothing when the shape has no such block.
bool find_number(const HandoffShape& shape, const BlockPlace& place, uint32_t& number) {
  if (place.is_shared) {
    number = place.index;
    return place.index < shape.num_shared();
  }
  if (place.choice >= shape.num_choices() || place.index >= shape.num_own(place.choice)) return false;
  number = shape.first_own(place.choice) + place.index;
  return true;
}

}  // namespace

BlockPlace place_of(const HandoffShape& shape, uint32_t number) {
  const uint32_t num_shared = shape.num_shared();
  if (number < num_shared) return {true, 0, number, shape.block_size};
  uint32_t first = num_shared;
  for (uint32_t c = 0; c < shape.num_choices(); ++c) {
    const uint32_t num_own = shape.num_own(c);
    if (number < first + num_own) {
      const uint32_t index = number - first;
      const uint32_t begin = (num_shared + index) * shape.block_size;
      return {false, c, index, std::min(shape.block_size, shape.num_positions(c) - begin)};
    }
    first += num_own;
  }
  TANDEM_CHECK(!"a block number beyond the shape");
}

PartSet carried_over(const PartSet& had, const HandoffShape& old_shape, const HandoffShape& shape) {
  PartSet kept(shape.num_parts());
  if (old_shape.block_size != shape.block_size || old_shape.num_layer_groups != shape.num_layer_groups ||
      old_shape.prompt_tokens != shape.prompt_tokens) {
    return kept;
  }
  for (uint32_t number = 0; number < old_shape.num_blocks(); ++number) {
    const BlockPlace place = place_of(old_shape, number);
    uint32_t now = 0;
    if (!find_number(shape, place, now) || place_of(shape, now) != place) continue;
    for (uint32_t group = 0; group < shape.num_layer_groups; ++group) {
      if (had.has(number * shape.num_layer_groups + group)) kept.add(now * shape.num_layer_groups + group);
    }
  }
  return kept;
}

}  // namespace tandem::handoff
