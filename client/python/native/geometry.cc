#include "client/python/native/geometry.h"

#include <algorithm>
#include <string>

#include "client/python/native/dtypes.h"

namespace normd::torch_ops {
namespace {

// Channels innermost are a layout of their own.
Geometry DivideChannels(Call& call) {
  Geometry geometry;
  const Tensor& x = call.x;
  call.spec.channels = x.size(1);
  geometry.samples = x.size(0);
  geometry.spatial = x.Count(2, x.dims());
  const Order channels_last{1, 1};
  if (x.dims() > 2 && !Order().Has(x) && channels_last.Has(x)) geometry.order = channels_last;
  call.spec.layout = geometry.order.last > 0 ? NORM_CHANNELS_LAST : NORM_CHANNELS_FIRST;
  return geometry;
}

// Rows of positions in which channels and others take turns. Dimensions of 1 do not count.
Geometry DivideAxesApart(Call& call) {
  constexpr int kRuns = 4;
  Geometry geometry;
  const Tensor& x = call.x;
  std::fill_n(call.spec.channel_runs, kRuns, 1);
  std::fill_n(geometry.spatial_runs, kRuns, 1);
  int run = 0;
  bool in_channels = true;
  for (std::int64_t dim = call.axis; dim < x.dims(); ++dim) {
    if (x.size(dim) == 1) continue;
    const bool is_axis = IsAxis(call, dim);
    if (is_axis && !in_channels && ++run == kRuns) {
      Refuse(call.name, "more_axes", std::to_string(call.more_axes),
             "at most " + std::to_string(kRuns) + " runs of normalized dimensions");
    }
    in_channels = is_axis;
    (is_axis ? call.spec.channel_runs : geometry.spatial_runs)[run] *= x.size(dim);
  }
  call.spec.layout = NORM_MIXED_RUNS;
  call.spec.rows = NORM_ROWS_POSITION;
  call.spec.channels = 1;
  for (int i = 0; i < kRuns; ++i) {
    call.spec.channels *= call.spec.channel_runs[i];
    geometry.spatial *= geometry.spatial_runs[i];
  }
  geometry.samples = x.Count(0, call.axis);
  return geometry;
}

bool HasPerSample(const Call& call) {
  return call.gate || call.scale || call.shift || call.style_index || call.style_weights;
}

// Whether one launch of CUDA's kernels takes any number of rows of this length between gaps. Longer
// rows would take a launch for some dozens, so they are copied.
bool LaunchesAtOnce(const Tensor& x, std::int64_t elements) {
  constexpr std::int64_t kMostBytes = 64 << 10;
  return x.device_type() != Torch().device_type_cuda() ||
         elements * ElementBytes(x.dtype()) <= kMostBytes;
}

// Leaves x where it lies if its samples are slices of a wider tensor. Samples that lie together, as
// the heads of a token, become the positions of one. Call it when the axes are innermost.
void TakePitch(Call& call, Geometry* geometry) {
  const Pitched lies(call.x);
  if (lies.pitch == 0 || lies.block_dim > call.axis || call.spec.statistics == NORM_GIVEN ||
      !LaunchesAtOnce(call.x, call.x.Count(call.axis, call.x.dims()))) {
    return;
  }
  const std::int64_t together = call.x.Count(lies.block_dim, call.axis);
  if (together > 1) {
    if (HasPerSample(call) || call.groups != 1) return;
    call.spec.layout = NORM_CHANNELS_LAST;
    call.spec.rows = NORM_ROWS_POSITION;
    geometry->samples = call.x.Count(0, lies.block_dim);
    geometry->spatial = together;
  }
  geometry->x_pitch = lies.pitch;
}

// Rows of consecutive elements if the axes are innermost, else rows of positions.
Geometry DivideAxes(Call& call) {
  if (call.more_axes != 0) return DivideAxesApart(call);
  Geometry geometry;
  const Tensor& x = call.x;
  const std::int64_t end = call.axis + call.axes;
  call.spec.channels = x.Count(call.axis, end);
  geometry.samples = x.Count(0, call.axis);
  geometry.spatial = x.Count(end, x.dims());
  geometry.trailing = x.dims() - end;
  if (geometry.trailing == 0) {
    geometry.spatial = 1;
    TakePitch(call, &geometry);
    return geometry;
  }
  const Order axes_last{call.axis, call.axes};
  if (!Order().Has(x) && axes_last.Has(x)) {
    geometry.order = axes_last;
    if (!HasPerSample(call)) {
      geometry.samples *= geometry.spatial;
      geometry.spatial = 1;
      return geometry;
    }
    // All positions of a sample have the same inputs, so they stay one sample.
    call.spec.layout = NORM_CHANNELS_LAST;
  }
  call.spec.rows = NORM_ROWS_POSITION;
  return geometry;
}

Geometry DivideFeatures(Call& call) {
  Geometry geometry;
  const Tensor& x = call.x;
  call.spec.channels = x.size(x.dims() - 1);
  call.spec.layout = NORM_CHANNELS_LAST;
  call.spec.rows = NORM_ROWS_POSITION;
  geometry.samples = x.size(0);
  geometry.spatial = x.Count(1, x.dims() - 1);
  const Pitched lies(x);
  if (lies.block_dim == 1 && LaunchesAtOnce(x, call.spec.channels)) geometry.x_pitch = lies.pitch;
  return geometry;
}

}  // namespace

bool IsAxis(const Call& call, std::int64_t dim) {
  return (dim >= call.axis && dim < call.axis + call.axes) || (call.more_axes >> dim & 1) != 0;
}

Geometry Divide(Call& call) {
  Geometry geometry = call.form == Form::kChannels ? DivideChannels(call)
                      : call.form == Form::kAxes   ? DivideAxes(call)
                                                   : DivideFeatures(call);
  call.spec.groups = call.groups == 0 ? call.spec.channels : call.groups;
  if (call.spec.groups < 0 ||
      (call.spec.groups > 0 && call.spec.channels % call.spec.groups != 0)) {
    Refuse(call.name, "groups", std::to_string(call.groups),
           "a divisor of " + std::to_string(call.spec.channels));
  }
  return geometry;
}

}  // namespace normd::torch_ops
