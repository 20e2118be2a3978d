// The arrays of a segment and of parameters, as a list, for backends of the kernels' tests that
// move them to another kind of memory.

#ifndef NORMD_TESTS_SUPPORT_SEGMENT_TENSORS_H_
#define NORMD_TESTS_SUPPORT_SEGMENT_TENSORS_H_

#include <cstddef>
#include <vector>

#include "kernels/norm.h"

namespace normd::norm::testing {

// One of the arrays of a segment; inputs are never written. The pointer at `address` may be set to
// a copy.
struct SegmentTensor {
  void** address;
  std::size_t bytes;
  bool is_output = false;
};

// The tensors of a segment that ValidateSegments accepts, absent ones as null pointers.
std::vector<SegmentTensor> TensorsOf(const NormSpec& spec, Segment* segment);

struct ParamTensor {
  ParamVector* vector;
  std::size_t bytes;
};

// The tensors of parameters that ValidateSpec accepts.
std::vector<ParamTensor> TensorsOf(const NormSpec& spec, NormParams* params);

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_SEGMENT_TENSORS_H_
