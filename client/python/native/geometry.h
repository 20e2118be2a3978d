// How the kernels see x: its division into samples, channels and positions.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_GEOMETRY_H_
#define NORMD_CLIENT_PYTHON_NATIVE_GEOMETRY_H_

#include <cstdint>

#include "client/python/native/call.h"
#include "client/python/native/order.h"

namespace normd::torch_ops {

struct Geometry {
  Order order;
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  std::int64_t trailing = 0;          // kAxes: the dimensions after the axes.
  std::int64_t spatial_runs[4] = {};  // With NORM_MIXED_RUNS.
  std::int64_t x_pitch = 0;           // As norm_tensors has it: x is read where it lies.
};

// Whether x is normalized over a dimension, with Form::kAxes.
bool IsAxis(const Call& call, std::int64_t dim);

// Divides x, which is checked, and sets the sizes, the layout and the rows of call.spec. Throws
// std::runtime_error for groups that do not divide the channels, and for too many runs of axes.
Geometry Divide(Call& call);

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_GEOMETRY_H_
