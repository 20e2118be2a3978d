#include "kernels/cuda/channels_last/channels_last.h"

#include <algorithm>
#include <vector>

namespace normd::norm::cuda {
namespace {

// Segments in the form of one launch.
struct StripSegments {
  StripPlan plan;
  std::vector<Segment> segments;
  std::int64_t samples = 0;
};

bool SameCut(const StripPlan& a, const StripPlan& b) {
  return a.groups == b.groups && a.columns == b.columns && a.rows == b.rows &&
         a.blocks == b.blocks && a.held == b.held && a.threads == b.threads;
}

std::vector<StripSegments> PlanSegments(const NormSpec& spec, const DeviceLimits& limits,
                                        const Plan& plan, const Segment* segments,
                                        std::size_t count) {
  std::vector<StripSegments> parts;
  for (std::size_t i = 0; i < count; ++i) {
    StripPlan strips;
    if (plan.strips == Strategy::kCluster) {
      PlanClusterStrips(spec, segments[i].spatial, limits, &strips);
    } else {
      PlanGridStrips(spec, segments[i].spatial, limits, &strips);
    }
    auto part = std::find_if(parts.begin(), parts.end(), [&](const StripSegments& other) {
      return SameCut(other.plan, strips);
    });
    if (part == parts.end()) part = parts.insert(part, {strips, {}, 0});
    part->segments.push_back(segments[i]);
    part->samples += segments[i].samples;
    part->plan.vectors = std::max(part->plan.vectors, strips.vectors);
    part->plan.shared_bytes = std::max(part->plan.shared_bytes, strips.shared_bytes);
  }
  return parts;
}

}  // namespace

Status LaunchChannelsLast(const Launch& launch) {
  if (launch.plan.strips == Strategy::kSplit) return LaunchChannelsLastSplit(launch);
  for (const StripSegments& part :
       PlanSegments(launch.spec, launch.limits, launch.plan, launch.segments, launch.count)) {
    Launch part_launch = launch;
    part_launch.segments = part.segments.data();
    part_launch.count = part.segments.size();
    Status status = launch.plan.strips == Strategy::kCluster
                        ? LaunchChannelsLastCluster(part_launch, part.plan)
                        : LaunchChannelsLastGrid(part_launch, part.plan);
    if (!status.ok()) return status;
  }
  return Status();
}

std::size_t ChannelsLastScratchBytes(const NormSpec& spec, const DeviceLimits& limits,
                                     const Plan& plan, const Segment* segments, std::size_t count) {
  if (plan.strips == Strategy::kCluster) return 0;
  if (plan.strips == Strategy::kSplit) return ChannelsLastSplitScratchBytes(spec, segments, count);
  std::size_t bytes = 0;
  for (const StripSegments& part : PlanSegments(spec, limits, plan, segments, count)) {
    bytes = std::max(bytes, ChannelsLastGridScratchBytes(spec, limits, part.plan, part.samples));
  }
  return bytes;
}

}  // namespace normd::norm::cuda
