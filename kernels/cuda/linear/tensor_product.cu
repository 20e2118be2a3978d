// The fused layer's matrix product on the tensor cores of compute capability 9.0.
//
// Features are the rows of every product and samples its columns, so a warpgroup computes 64
// features of any number of samples in a tile. One warp issues the loads of operands (bulk copies
// into a ring of stages, one step of 64 elements each); one or two warpgroups multiply. Two blocks
// of a cluster take neighbouring features of the same samples, and each copies half of the samples'
// step into both.
//
// A step's parts are loaded once and multiplied two or three times: small parts first, then the
// large ones. The order of all products of a sample and a feature follows the plan, and is the same
// in every tile.
//
// Tensor cores cut off low bits whenever they add to a sum. After steps_per_sum steps a warpgroup
// adds its sums to float32 registers, rounded to nearest, and restarts from zero. The tensor cores
// would idle if both warpgroups did so at once: every other one begins with half as many steps.
// Which one does depends on the feature, so no bit depends on the block.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/linear/tensor_store.cuh"
#include "kernels/cuda/linear/tensor_tile.cuh"

namespace normd::norm::cuda {
namespace {

constexpr std::uint16_t kBothBlocks = 3;  // The mask of a cluster.
constexpr int kStepProducts = 4;          // Each takes 16 elements.
constexpr int kProductBytes = kStepBytes / kStepProducts;

// The operands of a tile, and their loads.
template <typename S>
class Operands {
 public:
  __device__ Operands(const ProductTask& task, const Tile& tile, const Shared<S>& shared)
      : task_(task),
        tile_(tile),
        shared_(shared),
        steps_(task.k / kStepElements),
        // Rows of the operand after the last sample are not loaded. Whatever lies in their place
        // only reaches columns that are not stored.
        rows_(task.x == nullptr ? S::kColumns
                                : min((task.samples - tile.samples + 7) / 8 * 8, S::kColumns)),
        weight_(task.weight + tile.features / kWeightBlockRows * steps_ * S::kWeightGroupBytes),
        x_(task.x + tile.samples / S::kColumns * steps_ * (S::kXParts * S::kXPartBytes)) {}

  __device__ void CopyWeights(std::int64_t step, int stage) const {
    ArriveExpecting(shared_.Full(stage),
                    S::kGroups * S::kWeightGroupBytes + S::kXParts * rows_ * kStepBytes);
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
      CopyBulk(shared_.Weight(stage, group),
               weight_ + (group * steps_ + step) * S::kWeightGroupBytes, S::kWeightGroupBytes,
               shared_.Full(stage));
    }
  }

  // In a cluster: half of the rows into both blocks.
  __device__ void CopyX(std::int64_t step, int stage) const {
    const int rows = rows_ / S::kCluster;
    const int skipped = shared_.rank * rows;
    if (S::kXParts == 1 && task_.x == nullptr) {
      CopyRows(static_cast<int>(step) * kStepElements, tile_.samples + skipped,
               shared_.X(stage) + skipped * kStepBytes, shared_.Full(stage));
      return;
    }
#pragma unroll
    for (int part = 0; part < S::kXParts; ++part) {
      const char* const from =
          x_ + (step * S::kXParts + part) * S::kXPartBytes + skipped * kStepBytes;
      const std::uint32_t to = shared_.X(stage) + part * S::kXPartBytes + skipped * kStepBytes;
      if constexpr (S::kCluster == 1) {
        CopyBulk(to, from, rows * kStepBytes, shared_.Full(stage));
      } else {
        CopyBulkToAll(to, from, rows * kStepBytes, shared_.Full(stage), kBothBlocks);
      }
    }
  }

 private:
  __device__ void CopyRows(int column, int row, std::uint32_t to, std::uint32_t full) const {
    if constexpr (S::kCluster == 1) {
      CopyBox(to, &task_.x_map, column, row, full);
    } else {
      CopyBoxToAll(to, &task_.x_map, column, row, full, kBothBlocks);
    }
  }

  const ProductTask& task_;
  const Tile tile_;
  const Shared<S>& shared_;
  const std::int64_t steps_;
  const int rows_;
  const char* const weight_;
  const char* const x_;
};

// Runs on one thread: issues the loads of the block's tiles, as stages become free in every block
// that receives them. The ring's first round of weights does not wait for x to be prepared.
template <typename S>
__device__ void Produce(const ProductTask& task, const Tiles<S>& tiles, const Shared<S>& shared) {
  const std::int64_t steps = task.k / kStepElements;
  int asked = static_cast<int>(min(steps, std::int64_t{S::kStages}));
  {
    const Operands<S> first(task, tiles[tiles.first()], shared);
    for (int step = 0; step < asked; ++step) first.CopyWeights(step, step);
    AwaitPreviousKernel();
  }
  RingPosition<S::kStages> at;
  for (int index = tiles.first(); index < tiles.count(); index += tiles.step()) {
    const Operands<S> operands(task, tiles[index], shared);
    for (std::int64_t step = 0; step < steps; ++step) {
      if (asked > 0) {
        --asked;
      } else {
        AwaitBarrierInline(shared.Empty(at.stage), at.parity ^ 1);
        operands.CopyWeights(step, at.stage);
      }
      operands.CopyX(step, at.stage);
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
      // The product of both errors is too small to matter.
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

// Tells all blocks that copy into this one that a warp has read the stage.
template <typename S>
__device__ inline void Release(const Shared<S>& shared, int stage) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (lane < S::kCluster) ArriveInBlock(shared.Empty(stage), lane);
}

// Multiplies `steps` stages, at least one, into d, which it overwrites.
template <typename S>
__device__ inline void MultiplySteps(const Shared<S>& shared, int group, std::int64_t steps,
                                     RingPosition<S::kStages>* at, float (&d)[S::kRegisters]) {
  int previous = -1;
  Pin(d);
#pragma unroll 1
  for (std::int64_t step = 0; step < steps; ++step) {
    AwaitBarrierInline(shared.Full(at->stage), at->parity);
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

// Runs on one warpgroup: multiplies and stores its features of the block's tiles.
template <typename S>
__device__ void Consume(const ProductTask& task, const Tiles<S>& tiles, const Shared<S>& shared,
                        int steps_per_sum) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const std::int64_t steps = task.k / kStepElements;
  float2* const scales = shared.scales + (S::kScaled ? group * S::kColumns : 0);
  AwaitPreviousKernel();
  RingPosition<S::kStages> at;
  for (int index = tiles.first(); index < tiles.count(); index += tiles.step()) {
    const Tile tile = tiles[index];
    const FeaturePair pair = LoadFeatures<S>(task, tile, group);
    LoadScales<S>(task, tile, group, scales);
    float d[S::kRegisters];
    if constexpr (!S::kSums) {
      MultiplySteps<S>(shared, group, steps, &at, d);
      Store<S>(task, tile, pair, scales, d);
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
      Store<S>(task, tile, pair, scales, sums);
    }
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    TensorProductKernel(const __grid_constant__ ProductTask task, int steps_per_sum) {
  extern __shared__ char dynamic_shared[];
  __shared__ std::uint64_t barriers[2 * S::kStages];
  __shared__ float2 scales[S::kScaleCount];
  LetNextKernelBegin();
  Shared<S> shared;
  shared.ring = (SharedAddress(dynamic_shared) + kProductAlignment - 1) / kProductAlignment *
                kProductAlignment;
  shared.scales = scales;
  shared.full = SharedAddress(barriers);
  shared.empty = shared.full + S::kStages * 8;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      InitBarrier(shared.Full(stage), 1);
      InitBarrier(shared.Empty(stage), S::kCluster * S::kGroups * (kWarpgroup / kLanes));
    }
    PublishBarriers();
  }
  __syncthreads();
  // No block sends before all barriers of its cluster exist, and none ends before its cluster has
  // stopped sending.
  if constexpr (S::kCluster > 1) SyncClusterRelaxed();
  shared.rank = S::kCluster > 1 ? ClusterRank() : 0;
  const Tiles<S> tiles(task, shared.rank);
  if (threadIdx.x < S::kGroups * kWarpgroup) {
    Consume<S>(task, tiles, shared, steps_per_sum);
  } else if (threadIdx.x == S::kGroups * kWarpgroup) {
    Produce<S>(task, tiles, shared);
  }
  if constexpr (S::kCluster > 1) {
    __syncwarp();
    SyncClusterRelaxed();
  }
}

template <typename T>
struct Type {
  using Shape = T;
};

// Calls function(Type<Shape>()) for the shape of a plan of MakeLinearPlan.
template <bool kBFloat, int kXParts, int kWeightParts, int kColumns, typename Function>
cudaError_t WithColumns(const LinearPlan& plan, Function function) {
  if constexpr (kColumns > 32) {
    if (plan.tile_samples < kColumns) {
      return WithColumns<kBFloat, kXParts, kWeightParts, kColumns / 2>(plan, function);
    }
  }
  return function(Type<Shape<kBFloat, kXParts, kWeightParts, kColumns, false>>());
}
template <bool kBFloat, int kXParts, int kWeightParts, int kColumns, typename Function>
cudaError_t WithTile(const LinearPlan& plan, Function function) {
  return plan.tile_features > kWeightBlockRows
             ? function(Type<Shape<kBFloat, kXParts, kWeightParts, kColumns, true>>())
             : WithColumns<kBFloat, kXParts, kWeightParts, kColumns>(plan, function);
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
      for (LinearTile tile : kLinearTiles) {
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
    const int tiles =
        count(task.samples, S::kColumns) * count(task.features, S::kFeatures * S::kCluster);
    cudaLaunchAttribute attributes[2] = {OverlapPrevious(task.x != nullptr), {}};
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {S::kCluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = std::min(tiles, task.clusters) * S::kCluster;
    config.blockDim = S::kThreads;
    config.dynamicSmemBytes = S::kSharedBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, TensorProductKernel<S>, task, plan.steps_per_sum);
  });
}

}  // namespace normd::norm::cuda
