// The fused layer's matrix product on the tensor cores of compute capability 9.0.
//
// Features are the rows of every product and samples its columns, so a warpgroup computes 64
// features of a tile's samples whatever their number is. One warp asks for operands (bulk copies
// into a ring of stages, one step of 64 elements each); one or two warpgroups multiply. Two blocks
// of a cluster take neighbouring features of the same samples, and each copies a half of the
// samples' step into both; in a cluster of four, pairs likewise share features.
//
// A step's parts are loaded once and multiplied two or three times: small parts first, then the
// large ones. The order of all products of a sample and a feature is that of the plan, and the
// same in every tile.
//
// Tensor cores cut off low bits whenever they add to a sum. After steps_per_sum steps a warpgroup
// adds its sums to float32 registers, rounded to nearest, and begins again from zero. The tensor
// cores would wait meanwhile, if both warpgroups did so at once: every other one begins with half
// as many steps. Which one does depends on the feature, so no bit depends on the block.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/linear_launch.h"

namespace normd::norm::cuda {
namespace {

using namespace hopper;  // NOLINT(build/namespaces)

constexpr int kWarpgroup = 128;
constexpr int kLanes = 32;
constexpr int kStepProducts = 4;  // Of 16 elements.
constexpr int kProductBytes = kStepBytes / kStepProducts;
constexpr int kMostSharedBytes = 226 << 10;  // Of 227 KiB; static shared memory takes some.
constexpr int kAlignment = 1024;             // Of operands in shared memory.

// kColumns: samples of a tile. kGroups: warpgroups, of 64 features each.
template <bool kBFloatOperands, int kXPartCount, int kWeightPartCount, int kColumnCount,
          int kGroupCount, int kClusterSize>
struct Shape {
  static constexpr bool kBFloat = kBFloatOperands;
  static constexpr int kXParts = kXPartCount;
  static constexpr int kWeightParts = kWeightPartCount;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kGroups = kGroupCount;
  static constexpr int kCluster = kClusterSize;

  static constexpr int kFeatureBlocks = kCluster > 1 ? 2 : 1;  // Of a cluster; they share samples.
  static constexpr int kSampleBlocks = kCluster / kFeatureBlocks;  // Likewise, features.
  // Blocks that copy into one block, or that one block copies into: with the same samples or with
  // the same features.
  static constexpr int kPeers = kFeatureBlocks + kSampleBlocks - 1;

  static constexpr bool kSums = kXParts * kWeightParts > 1;  // Moves sums to float32 registers.
  static constexpr int kFeatures = kGroups * kWeightBlockRows;
  static constexpr int kRegisters = kColumns / 2;
  static constexpr int kThreads = kGroups * kWarpgroup + kLanes;
  static constexpr int kWeightPartBytes = kWeightBlockRows * kStepBytes;
  static constexpr int kWeightGroupBytes = kWeightParts * kWeightPartBytes;
  static constexpr int kXPartBytes = kColumns * kStepBytes;
  static constexpr int kStageBytes = kGroups * kWeightGroupBytes + kXParts * kXPartBytes;
  static constexpr int kStages = (kMostSharedBytes - kAlignment) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kAlignment;
};

// Where a ring is: its next stage, and the parity of that stage's phase.
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
  std::int32_t features;  // The first of the block.
  std::int32_t samples;   // Likewise.
};

// The tiles of a cluster, samples first, so that the blocks at work share weights.
template <typename S>
class Tiles {
 public:
  __device__ Tiles(const ProductTask& task, int rank)
      : columns_(Count(task.samples, S::kColumns * S::kSampleBlocks)),
        rank_(rank),
        count_(columns_ * Count(task.features, S::kFeatures * S::kFeatureBlocks)) {}
  __device__ int first() const { return static_cast<int>(blockIdx.x) / S::kCluster; }
  __device__ int step() const { return static_cast<int>(gridDim.x) / S::kCluster; }
  __device__ int count() const { return count_; }
  __device__ Tile operator[](int index) const {
    return {(index / columns_ * S::kFeatureBlocks + rank_ % S::kFeatureBlocks) * S::kFeatures,
            (index % columns_ * S::kSampleBlocks + rank_ / S::kFeatureBlocks) * S::kColumns};
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
  std::uint32_t empty;  // Likewise.
  int rank;             // Of the block in its cluster.

  __device__ std::uint32_t Weight(int stage, int group) const {
    return ring + stage * S::kStageBytes + group * S::kWeightGroupBytes;
  }
  __device__ std::uint32_t X(int stage) const { return Weight(stage, S::kGroups); }
  __device__ std::uint32_t Full(int stage) const { return full + stage * 8; }
  __device__ std::uint32_t Empty(int stage) const { return empty + stage * 8; }
};

// Copies this block's share of a run that lies in the same place of several blocks into all of
// them. Ranks count by `stride`.
template <int kBlocks>
__device__ inline void CopyShared(std::uint32_t to, const char* from, int bytes, int share,
                                  int first_rank, int stride, std::uint32_t barrier) {
  const int part = bytes / kBlocks;
  if constexpr (kBlocks == 1) {
    CopyBulk(to, from, bytes, barrier);
  } else {
    const int blocks = 1 << first_rank | 1 << (first_rank + stride);
    CopyBulkToAll(to + share * part, from + share * part, part, barrier,
                  static_cast<std::uint16_t>(blocks));
  }
}

// One thread: asks for all operands of the block's tiles, as stages become free in every block that
// receives them.
template <typename S>
__device__ void Produce(const ProductTask& task, const Tiles<S>& tiles, const Shared<S>& shared) {
  const std::int64_t steps = task.k / kStepElements;
  const int feature_block = shared.rank % S::kFeatureBlocks;
  const int sample_block = shared.rank / S::kFeatureBlocks;
  RingPosition<S::kStages> at;
  for (int index = tiles.first(); index < tiles.count(); index += tiles.step()) {
    const Tile tile = tiles[index];
    // Rows of x behind the last sample are not asked for, which may be all. What lies in their
    // place only meets columns that are not stored.
    const int rows = max(0, min((task.samples - tile.samples + 7) / 8 * 8, S::kColumns));
    const char* weight =
        task.weight + tile.features / kWeightBlockRows * steps * S::kWeightGroupBytes;
    const char* x = task.x + tile.samples / S::kColumns * steps * (S::kXParts * S::kXPartBytes);
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::uint32_t full = shared.Full(at.stage);
      AwaitPhase(shared.Empty(at.stage), at.parity ^ 1);
      ArriveExpecting(full, S::kGroups * S::kWeightGroupBytes + S::kXParts * rows * kStepBytes);
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) {
        CopyShared<S::kSampleBlocks>(
            shared.Weight(at.stage, group), weight + group * steps * S::kWeightGroupBytes,
            S::kWeightGroupBytes, sample_block, feature_block, S::kFeatureBlocks, full);
      }
#pragma unroll
      for (int part = 0; part < S::kXParts; ++part) {
        if (rows == 0) break;
        CopyShared<S::kFeatureBlocks>(shared.X(at.stage) + part * S::kXPartBytes,
                                      x + part * S::kXPartBytes, rows * kStepBytes, feature_block,
                                      sample_block * S::kFeatureBlocks, 1, full);
      }
      weight += S::kWeightGroupBytes;
      x += S::kXParts * S::kXPartBytes;
      at.Advance();
    }
  }
}

// The products of one stage: the small parts first.
template <typename S>
__device__ inline void MultiplyStep(float (&d)[S::kRegisters], std::uint32_t weight,
                                    std::uint32_t x, bool add) {
#pragma unroll
  for (int parts = S::kXParts + S::kWeightParts - 2; parts >= 0; --parts) {
#pragma unroll
    for (int x_part = 0; x_part < S::kXParts; ++x_part) {
      const int weight_part = parts - x_part;
      // What remains of both is too small to matter.
      if (weight_part < 0 || weight_part >= S::kWeightParts || parts == 2) continue;
      const std::uint64_t a = OperandAt(weight + weight_part * S::kWeightPartBytes);
      const std::uint64_t b = OperandAt(x + x_part * S::kXPartBytes);
#pragma unroll
      for (int i = 0; i < kStepProducts; ++i) {
        constexpr std::uint64_t kNext = kProductBytes >> 4;
        Multiply<S::kBFloat>(d, a + i * kNext, b + i * kNext, add);
        add = true;
      }
    }
  }
}

// Tells all blocks that copy into this one that a warp has read the stage: the lanes 0, 1 and 2
// tell the block itself, the one with the same samples and the one with the same features.
template <typename S>
__device__ inline void Release(const Shared<S>& shared, int stage) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (lane < S::kPeers) ArriveAt(shared.Empty(stage), shared.rank ^ lane);
}

// Multiplies `steps` stages, at least one, into d, which it overwrites.
template <typename S>
__device__ inline void MultiplySteps(const Shared<S>& shared, int group, std::int64_t steps,
                                     RingPosition<S::kStages>* at, float (&d)[S::kRegisters]) {
  int previous = -1;
  Pin(d);
#pragma unroll 1
  for (std::int64_t step = 0; step < steps; ++step) {
    AwaitPhase(shared.Full(at->stage), at->parity);
    BeginProducts();
    MultiplyStep<S>(d, shared.Weight(at->stage, group), shared.X(at->stage), step > 0);
    EndProducts();
    AwaitProducts<1>();
    if (previous >= 0) Release<S>(shared, previous);
    previous = at->stage;
    at->Advance();
  }
  AwaitProducts<0>();
  Pin(d);
  Release<S>(shared, previous);
}

// 2^exponent for exponents of normal numbers.
__device__ inline float PowerOfTwo(int exponent) { return __int_as_float((exponent + 127) << 23); }

// value * 2^-exponent for |exponent| <= 252, rounded once at most.
__device__ inline float Unscale(float value, int exponent) {
  const int half = exponent / 2;
  return value * PowerOfTwo(-half) * PowerOfTwo(half - exponent);
}

template <typename S>
__device__ inline void Store(const ProductTask& task, const Tile& tile, int group,
                             const float (&d)[S::kRegisters]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes % 4;
  const int feature = tile.features + group * kWeightBlockRows + warp * 16 + lane / 4;
  int exponents[2];
  float bias[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // Prepared weights have rows of zeros behind the features.
    exponents[i] = __ldg(task.weight_exponents + feature + 8 * i);
    bias[i] = __ldg(task.bias + feature + 8 * i);
  }
#pragma unroll
  for (int j = 0; j < S::kColumns / 4; ++j) {
    const int sample = tile.samples + j / 2 * 8 + lane % 4 * 2 + j % 2;
    if (sample >= task.samples) continue;
    const int x_exponent = __ldg(task.x_exponents + sample);
    float* const z = task.z + sample * task.z_pitch + feature;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float product = Unscale(d[j / 2 * 4 + i * 2 + j % 2], x_exponent + exponents[i]);
      if (feature + 8 * i < task.features) z[8 * i] = product + bias[i];
    }
  }
}

// One warpgroup: multiplies and stores its features of the block's tiles.
template <typename S>
__device__ void Consume(const ProductTask& task, const Tiles<S>& tiles, const Shared<S>& shared,
                        int steps_per_sum) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const std::int64_t steps = task.k / kStepElements;
  RingPosition<S::kStages> at;
  for (int index = tiles.first(); index < tiles.count(); index += tiles.step()) {
    const Tile tile = tiles[index];
    float d[S::kRegisters];
    if constexpr (!S::kSums) {
      MultiplySteps<S>(shared, group, steps, &at, d);
      Store<S>(task, tile, group, d);
    } else {
      const bool odd = (tile.features / kWeightBlockRows + group) % 2 != 0;
      std::int64_t count = odd ? (steps_per_sum + 1) / 2 : steps_per_sum;
      float sums[S::kRegisters] = {};
#pragma unroll 1
      for (std::int64_t done = 0; done < steps; done += count, count = steps_per_sum) {
        count = min(count, steps - done);
        MultiplySteps<S>(shared, group, count, &at, d);
#pragma unroll
        for (int i = 0; i < S::kRegisters; ++i) sums[i] += d[i];
      }
      Store<S>(task, tile, group, sums);
    }
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    TensorProductKernel(const __grid_constant__ ProductTask task, int steps_per_sum) {
  extern __shared__ char dynamic_shared[];
  __shared__ std::uint64_t barriers[2 * S::kStages];
  Shared<S> shared;
  shared.ring = (SharedAddress(dynamic_shared) + kAlignment - 1) / kAlignment * kAlignment;
  shared.full = SharedAddress(barriers);
  shared.empty = shared.full + S::kStages * 8;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      InitBarrier(shared.Full(stage), 1);
      InitBarrier(shared.Empty(stage), S::kPeers * S::kGroups * (kWarpgroup / kLanes));
    }
    PublishBarriers();
  }
  __syncthreads();
  // No block sends before all barriers of its cluster are there, and none ends before its cluster
  // has stopped sending.
  if constexpr (S::kCluster > 1) ClusterSync();
  shared.rank = S::kCluster > 1 ? ClusterRank() : 0;
  const Tiles<S> tiles(task, shared.rank);
  if (threadIdx.x < S::kGroups * kWarpgroup) {
    Consume<S>(task, tiles, shared, steps_per_sum);
  } else if (threadIdx.x == S::kGroups * kWarpgroup) {
    Produce<S>(task, tiles, shared);
  }
  if constexpr (S::kCluster > 1) {
    __syncwarp();
    ClusterSync();
  }
}

template <typename T>
struct Type {
  using Shape = T;
};

// Calls function(Type<Shape>()) for the shape of the plan, which MakeLinearPlan made.
template <bool kBFloat, int kXParts, int kWeightParts, int kColumns, typename Function>
cudaError_t WithTile(const LinearPlan& plan, Function function) {
  if (plan.cluster == 4) {
    return function(Type<Shape<kBFloat, kXParts, kWeightParts, kColumns, 2, 4>>());
  }
  if (plan.cluster == 2) {
    return function(Type<Shape<kBFloat, kXParts, kWeightParts, kColumns, 2, 2>>());
  }
  if (plan.tile_samples == kSlimSamples) {
    return function(Type<Shape<kBFloat, kXParts, kWeightParts, kSlimSamples, 1, 1>>());
  }
  return function(Type<Shape<kBFloat, kXParts, kWeightParts, kColumns, 1, 1>>());
}
template <typename Function>
cudaError_t WithShape(const LinearPlan& plan, Function function) {
  if (plan.x_parts == 2) return WithTile<false, 2, 2, 128>(plan, function);
  if (plan.weight_parts == 2) return WithTile<false, 1, 2, 128>(plan, function);
  if (plan.format == OperandFormat::kBFloat16) return WithTile<true, 1, 1, 256>(plan, function);
  return WithTile<false, 1, 1, 256>(plan, function);
}

}  // namespace

cudaError_t PrepareTensorProduct() {
  LinearNormSpec spec;
  spec.in_features = spec.out_features = 1;
  DeviceLimits limits;
  limits.compute_capability = 90;
  for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (Precision precision : {Precision::kFloat32, Precision::kTf32, Precision::kBFloat16}) {
      for (LinearTile tile :
           {LinearTile::kNarrow, LinearTile::kWide, LinearTile::kQuad, LinearTile::kSlim}) {
        spec.dtype = dtype;
        spec.precision = precision;
        const cudaError_t error = WithShape(MakeLinearPlan(spec, limits, 1, tile), [](auto type) {
          using S = typename decltype(type)::Shape;
          return cudaFuncSetAttribute(reinterpret_cast<const void*>(TensorProductKernel<S>),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
        });
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t LaunchTensorProduct(const LinearPlan& plan, const ProductTask& task,
                                cudaStream_t stream) {
  return WithShape(plan, [&](auto type) {
    using S = typename decltype(type)::Shape;
    const auto count = [](int whole, int part) { return (whole + part - 1) / part; };
    const int tiles = count(task.samples, S::kColumns * S::kSampleBlocks) *
                      count(task.features, S::kFeatures * S::kFeatureBlocks);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {S::kCluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = std::min(tiles, task.clusters) * S::kCluster;
    config.blockDim = S::kThreads;
    config.dynamicSmemBytes = S::kSharedBytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, TensorProductKernel<S>, task, plan.steps_per_sum);
  });
}

}  // namespace normd::norm::cuda
