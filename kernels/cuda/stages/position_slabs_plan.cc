#include "kernels/cuda/stages/position_slabs_plan.h"

#include <algorithm>

namespace normd::norm::cuda {
namespace {

// Slabs are cut until they are short, so that a batch of few samples fills the device.
constexpr std::int64_t kShortSlabBytes = 24 << 10;
// Two blocks share a multiprocessor.
constexpr std::int64_t kMostSharedBytes = 104 << 10;
// Tiles are faster with more positions, even where they move element by element.
constexpr std::int64_t kMostRowBytes = 256;
// Groups with fewer bytes would leave most threads of a block idle.
constexpr std::int64_t kLeastBytes = 4 << 10;

}  // namespace

bool TilesPositions(const NormSpec& spec) {
  return spec.dtype != DType::kFloat64 && spec.style == Style::kNone &&
         spec.statistics != Statistics::kSumOfAbsolutes &&
         spec.statistics != Statistics::kLargestAbsolute &&
         spec.quantization == Quantization::kNone && spec.activation == Activation::kNone &&
         spec.combine_input == Combine::kNone && spec.combine_output <= Combine::kMultiply &&
         !spec.gate;
}

int SlabsOf(const NormSpec& spec, std::int64_t spatial, const DeviceLimits& limits) {
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t channels = spec.channels / spec.groups;
  const bool small = spatial <= kMostSharedBytes && channels <= kMostSharedBytes * kMostSlabs;
  const std::int64_t row_bytes = spatial * element;
  const bool words = row_bytes % (element == 2 ? 8 : 16) == 0;
  const bool tiles = words || row_bytes > kMostRowBytes;
  if (tiles && channels <= kMostTileChannels) return 0;
  if (!TilesPositions(spec) || limits.resident_clusters[kMostSlabs] == 0 || !small) return 0;
  const std::int64_t bytes = channels * spatial * element;
  if (bytes < kLeastBytes || bytes > kMostSharedBytes * kMostSlabs) return 0;
  int slabs = 1;
  while (slabs < kMostSlabs && bytes > kShortSlabBytes * slabs) slabs *= 2;
  const SlabShape shape = SlabShape::Of(static_cast<int>(channels), static_cast<int>(spatial),
                                        static_cast<int>(element), slabs);
  const int shared = shape.shared_bytes(static_cast<int>(spatial));
  const auto room = static_cast<std::int64_t>(limits.shared_bytes_per_block);
  return shared <= std::min(kMostSharedBytes, room) ? slabs : 0;
}

}  // namespace normd::norm::cuda
