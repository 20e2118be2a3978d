#include "client/verify/reference_axes.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd::client {
namespace {

// The axis, counted from the front.
int AxisIn(const Shape& x, int axis) { return axis < 0 ? x.rank() + axis : axis; }

// Which run of adjacent axes each axis belongs to.
std::vector<std::size_t> RunsOf(const std::vector<int>& axes) {
  std::vector<std::size_t> runs;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const bool next = i > 0 && axes[i] != axes[i - 1] + 1;
    runs.push_back(i == 0 ? 0 : runs.back() + (next ? 1 : 0));
  }
  return runs;
}

}  // namespace

absl::Status SetAxes(const std::vector<int>& axes, absl::Span<const std::int64_t> normalized,
                     norm::NormSpec& spec) {
  if (axes.empty()) return absl::OkStatus();
  const std::vector<std::size_t> runs = RunsOf(axes);
  if (axes.size() != normalized.size() || runs.back() >= norm::kMostRuns) {
    return absl::InvalidArgumentError(absl::StrCat("axes: [", absl::StrJoin(axes, ", "),
                                                   "], wanted one for each dimension, in at most ",
                                                   norm::kMostRuns, " runs"));
  }
  spec.rows = norm::Rows::kPosition;
  if (runs.back() == 0) return absl::OkStatus();
  spec.layout = norm::Layout::kInterleaved;
  spec.channel_runs.fill(1);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    spec.channel_runs[runs[i]] *= normalized[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<norm::Segment> SegmentOverAxes(const std::vector<int>& axes,
                                              absl::Span<const std::int64_t> normalized,
                                              const Shape& x) {
  norm::Segment segment;
  norm::RunSizes sizes;
  sizes.fill(1);
  const std::vector<std::size_t> runs = RunsOf(axes);
  int end = -1;  // Behind the last axis so far.
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const int axis = AxisIn(x, axes[i]);
    if (axis < 0 || axis >= x.rank() || x.dim(axis) != normalized[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shape: ", x.ToString(), ", wanted the normalized dimensions [",
          absl::StrJoin(normalized, ", "), "] at the axes [", absl::StrJoin(axes, ", "), "]"));
    }
    if (i == 0) {
      segment.samples = x.Product(0, axis);
    } else if (runs[i] != runs[i - 1]) {
      sizes[runs[i - 1]] = x.Product(end, axis);
    }
    end = axis + 1;
  }
  sizes[runs.back()] = x.Product(end, x.rank());
  for (const std::int64_t size : sizes) segment.spatial *= size;
  if (runs.back() > 0) segment.spatial_runs = sizes;
  return segment;
}

std::vector<std::int64_t> RowDimsOverAxes(const std::vector<int>& axes, const Shape& x) {
  std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  for (const int axis : axes) {
    const int at = AxisIn(x, axis);
    if (at >= 0 && at < x.rank()) dims[static_cast<std::size_t>(at)] = 1;
  }
  return dims;
}

}  // namespace normd::client
