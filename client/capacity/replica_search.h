// How many replicas does it take?

#ifndef NORMD_CLIENT_CAPACITY_REPLICA_SEARCH_H_
#define NORMD_CLIENT_CAPACITY_REPLICA_SEARCH_H_

#include <cstddef>
#include <functional>
#include <optional>

namespace normd::capacity {

// Whether a fleet of so many meets the objective; more of them never do worse.
using Holds = std::function<bool(std::size_t replicas)>;

// The fewest in [least, most] that hold; nullopt: not even `most`. Asks about each number once, in
// strides that double, and bisects what the last one left: about 2 log2(answer - least) times.
std::optional<std::size_t> FewestReplicas(std::size_t least, std::size_t most, const Holds& holds);

}  // namespace normd::capacity

#endif  // NORMD_CLIENT_CAPACITY_REPLICA_SEARCH_H_
