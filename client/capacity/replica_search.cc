#include "client/capacity/replica_search.h"

#include <algorithm>

namespace normd::capacity {

std::optional<std::size_t> FewestReplicas(std::size_t least, std::size_t most, const Holds& holds) {
  if (least > most) return std::nullopt;
  std::size_t fails_below = least;  // All fewer than this do not hold, or are not asked for.
  std::size_t asked = least;
  // A first stride of a fiftieth: near the capacity a few percent decide.
  std::size_t stride = std::max<std::size_t>(1, least / 50);
  while (!holds(asked)) {
    if (asked == most) return std::nullopt;
    fails_below = asked + 1;
    asked = stride < most - asked ? asked + stride : most;
    stride *= 2;
  }
  std::size_t fewest = asked;
  while (fails_below < fewest) {
    const std::size_t middle = fails_below + (fewest - fails_below) / 2;
    if (holds(middle)) {
      fewest = middle;
    } else {
      fails_below = middle + 1;
    }
  }
  return fewest;
}

}  // namespace normd::capacity
