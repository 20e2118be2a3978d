// Nodes of standard containers, kept while their elements are outside.

#ifndef NORMD_SERVER_BATCHING_NODE_H_
#define NORMD_SERVER_BATCHING_NODE_H_

namespace normd {

// A node for a std::set or std::map, with an element still to be assigned: an element keeps its
// node while it is outside, so that moving it allocates nothing and cannot fail. May throw
// std::bad_alloc.
template <typename Set>
typename Set::node_type NewNode() {
  Set one;
  one.emplace();
  return one.extract(one.begin());
}

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_NODE_H_
