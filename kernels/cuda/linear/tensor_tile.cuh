// A block of the fused layer's tensor product: the shape of its tile, its ring of stages, and its
// place. Internal to tensor_product.cu.

#ifndef NORMD_KERNELS_CUDA_LINEAR_TENSOR_TILE_CUH_
#define NORMD_KERNELS_CUDA_LINEAR_TENSOR_TILE_CUH_

#include "kernels/cuda/linear/linear_launch.h"

namespace normd::norm::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kProductAlignment = 1024;  // Operands in shared memory.
inline constexpr int kMostSharedBytes = 227 << 10;

// kColumns: samples of a tile. kGroups: warpgroups, of 64 features each. kCluster: blocks with
// neighbouring features of the same samples.
template <bool kBFloatOperands, int kXPartCount, int kWeightPartCount, int kColumnCount, bool kWide>
struct Shape {
  static constexpr bool kBFloat = kBFloatOperands;
  static constexpr int kXParts = kXPartCount;
  static constexpr int kWeightParts = kWeightPartCount;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kGroups = kWide ? 2 : 1;
  static constexpr int kCluster = kWide ? 2 : 1;

  static constexpr bool kScaled = !kBFloat;  // Rows were multiplied with powers of two.
  static constexpr bool kSums = kXParts * kWeightParts > 1;  // Moves sums to float32 registers.
  static constexpr int kFeatures = kGroups * kWeightBlockRows;
  static constexpr int kRegisters = kColumns / 2;
  static constexpr int kThreads = kGroups * kWarpgroup + 32;
  static constexpr int kWeightPartBytes = kWeightBlockRows * kStepBytes;
  static constexpr int kWeightGroupBytes = kWeightParts * kWeightPartBytes;
  static constexpr int kXPartBytes = kColumns * kStepBytes;
  static constexpr int kStageBytes = kGroups * kWeightGroupBytes + kXParts * kXPartBytes;
  static constexpr int kScaleCount = kScaled ? kGroups * kColumns : 1;
  // Barriers and scales lie in static shared memory.
  static constexpr int kStaticBytes = 1024 + kScaleCount * 8;
  static constexpr int kStages =
      (kMostSharedBytes - kStaticBytes - kProductAlignment) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kProductAlignment;
};

// A position in the ring: the next stage, and the parity of that stage's phase.
template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

struct Tile {
  std::int32_t features;  // The block's first feature.
  std::int32_t samples;   // The block's first sample.
};

// The tiles of a cluster, samples first, so that concurrent blocks share weights.
template <typename S>
class Tiles {
 public:
  __device__ Tiles(const ProductTask& task, int rank)
      : columns_(Count(task.samples, S::kColumns)),
        rank_(rank),
        count_(columns_ * Count(task.features, S::kFeatures * S::kCluster)) {}
  __device__ int first() const { return static_cast<int>(blockIdx.x) / S::kCluster; }
  __device__ int step() const { return static_cast<int>(gridDim.x) / S::kCluster; }
  __device__ int count() const { return count_; }
  __device__ Tile operator[](int index) const {
    return {(index / columns_ * S::kCluster + rank_) * S::kFeatures,
            index % columns_ * S::kColumns};
  }

 private:
  static __device__ int Count(int whole, int part) { return (whole + part - 1) / part; }

  int columns_;
  int rank_;
  int count_;
};

template <typename S>
struct Shared {
  std::uint32_t ring;   // Stages: weights of each group, part by part, then x, part by part.
  std::uint32_t full;   // Barriers of 8 bytes, one to a stage.
  std::uint32_t empty;  // Barriers of 8 bytes, one to a stage.
  float2* scales;       // For each group and sample: see tensor_store.cuh.
  int rank;             // The block's rank in its cluster.

  __device__ std::uint32_t Weight(int stage, int group) const {
    return ring + stage * S::kStageBytes + group * S::kWeightGroupBytes;
  }
  __device__ std::uint32_t X(int stage) const { return Weight(stage, S::kGroups); }
  __device__ std::uint32_t Full(int stage) const { return full + stage * 8; }
  __device__ std::uint32_t Empty(int stage) const { return empty + stage * 8; }
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_LINEAR_TENSOR_TILE_CUH_
