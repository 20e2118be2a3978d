// Rows of positions, channels first, of which neighbours do not fill words together, as those of
// 7 x 7 positions do not: each block of a cluster holds a slab of the group, the same number of
// channels at all positions.
//
// Phases: a slab is one run of memory, so it moves in vectors whatever the number of positions is.
// From shared memory a thread sums some of the slab's channels at one position, adjacent threads at
// adjacent positions. The threads of a position merge, then every block merges all slabs' sums,
// scales its elements in place and stores them.
// Bytes: each element is read once and written once.
// Occupancy: up to 64 registers; four blocks of 256 threads on a multiprocessor.
// Determinism: the plan has the number of slabs. Which thread sums a channel, and the order of
// merges, follow from it and from the numbers of channels and positions alone.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/position_factors.cuh"
#include "kernels/cuda/stages/position_slabs_plan.h"
#include "kernels/cuda/stages/ragged_run.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"
#include "kernels/cuda/stages/stage_sums.cuh"

namespace normd::norm::cuda {
namespace {

// A block's slab.
struct SlabPlace {
  const StageSegment* segment;
  std::uint32_t sample;
  std::int64_t first_channel;  // The first of the slab, in the sample.
  std::int64_t first_row;      // The group's first position, counted in the segment's rows.
  std::int64_t begin;          // The byte in x where it begins.
  std::int64_t left;           // Bytes from there to the end of the segment's x.
  int channels;                // May be none.
  int spatial;

  SlabShape shape;

  // The slab of block `rank` of the cluster with this number.
  __device__ SlabPlace(const StageBatch& batch, int element_bytes, std::uint32_t cluster, int slabs,
                       int rank) {
    int found = 0;
    while (cluster >= batch.segments[found].end_row) ++found;
    segment = &batch.segments[found];
    const std::uint32_t group = cluster - (found == 0 ? 0 : batch.segments[found - 1].end_row);
    const auto of_group = static_cast<int>(batch.channels_per_group);
    spatial = static_cast<int>(segment->spatial);
    shape = SlabShape::Of(of_group, spatial, element_bytes, slabs);
    const int first = min(rank * shape.channels, of_group);
    channels = min(shape.channels, of_group - first);
    sample = batch.groups.Divide(group);
    first_channel = std::int64_t{group - sample * batch.groups.value()} * of_group + first;
    first_row = std::int64_t{group} * spatial;
    const int row_bytes = spatial * element_bytes;
    const std::int64_t group_bytes = std::int64_t{of_group} * row_bytes;
    begin = group * group_bytes + first * row_bytes;
    left = segment->groups * group_bytes - begin;
  }
};

// A block's shared memory.
struct SlabMemory {
  char* slab;
  PositionSlot* partials;  // For each split and position; then for each position.
  PositionSlot* scales;    // The normalization of all positions.
  ChannelFactors<float>* factors;

  __device__ SlabMemory(Vector* memory, const SlabShape& shape, int spatial)
      : slab(reinterpret_cast<char*>(memory)),
        partials(reinterpret_cast<PositionSlot*>(slab + shape.bytes)),
        scales(partials + shape.splits * spatial),
        factors(reinterpret_cast<ChannelFactors<float>*>(scales + spatial)) {}
};
static_assert(sizeof(PositionSlot) == kPartialBytes && sizeof(PositionSlot) == kScaleBytes);
static_assert(sizeof(ChannelFactors<float>) == kFactorBytes);

// A block's slab, from the loads to the results.
template <typename T>
class Slab {
 public:
  __device__ Slab(const StageBatch& batch, const SlabPlace& place, const SlabMemory& memory)
      : batch_(batch),
        place_(place),
        memory_(memory),
        slab_(reinterpret_cast<T*>(memory.slab)),
        thread_(static_cast<int>(threadIdx.x)),
        bytes_(place.channels * place.spatial * static_cast<int>(sizeof(T))) {}

  // Loads the slab, with the residual added, and stores these sums.
  __device__ void Load() const {
    const char* const x = place_.segment->x + place_.begin;
    const RaggedRun<T> run(x, place_.left);
    const int whole = Misalignment(x) == 0 ? bytes_ / kVectorBytes : 0;
    ForOwnVectors([&](int i, std::uint32_t to) {
      if (i < whole) {
        CopyToShared(to, x + std::int64_t{i} * kVectorBytes);
      } else {
        WriteShared(to, run.Load(i));
      }
    });
    AwaitCopies();
    if (batch_.residual) {
      const RaggedRun<T> residual(place_.segment->residual + place_.begin, place_.left);
      ForOwnVectors([&](int i, std::uint32_t at) {
        float values[kPerVector<T>], others[kPerVector<T>];
        Unpack<T>(ReadShared(at), values);
        Unpack<T>(residual.Load(i), others);
#pragma unroll
        for (int j = 0; j < kPerVector<T>; ++j) values[j] += others[j];
        WriteShared(at, Pack<T>(values));
      });
    }
    __syncthreads();
    if (batch_.residual_out) Store(place_.segment->residual_out);
  }

  // Leaves the slab's share of each position's statistics in memory.partials.
  __device__ void Sum() const {
    ForOwnPositions([&](int split, int position) {
      const bool centered = batch_.statistics == Statistics::kMeanVariance;
      const int count = (place_.channels - split + splits() - 1) / splits();
      const float reference = centered && count > 0 ? Reference(split, position, count) : 0;
      float sum = 0, squares = 0;
      ForChannels(split, position, [&](int, float value) {
        const float deviation = value - reference;
        sum += deviation;
        squares = Fma(deviation, deviation, squares);
      });
      memory_.partials[split * place_.spatial + position] =
          PositionSlot::Of(MomentsOfSums(reference, sum, squares, count, centered));
    });
    if (splits() == 1) return;
    __syncthreads();
    for (int p = thread_; p < place_.spatial; p += kSlabThreads) {
      Moments<float> all = memory_.partials[p].moments();
      for (int split = 1; split < splits(); ++split) {
        all = MergeStatistics(batch_.statistics, all,
                              memory_.partials[split * place_.spatial + p].moments());
      }
      memory_.partials[p] = PositionSlot::Of(all);
    }
  }

  // Scales all elements as memory.scales says.
  __device__ void Write() const {
    const bool centered = batch_.statistics == Statistics::kMeanVariance;
    const auto* const other = reinterpret_cast<const T*>(place_.segment->other + place_.begin);
    ForOwnPositions([&](int split, int position) {
      const PositionSlot scale = memory_.scales[position];
      ForChannels(split, position, [&](int channel, float value) {
        value = centered ? Fma(value - scale.reference, scale.mean, scale.m2) : value * scale.mean;
        if (batch_.affine) {
          const ChannelFactors<float> own = memory_.factors[channel];
          value = Fma(value, own.factor, own.offset);
        }
        const int at = channel * place_.spatial + position;
        if (batch_.combine_output == Combine::kAdd) {
          value += Widen(other[at]);
        } else if (batch_.combine_output == Combine::kMultiply) {
          value *= Widen(other[at]);
        }
        slab_[at] = Narrow<T>(value);
      });
    });
    __syncthreads();
    Store(place_.segment->y);
  }

 private:
  __device__ int splits() const { return place_.shape.splits; }

  __device__ void Store(char* tensor) const {
    StoreRagged<T>(tensor + place_.begin, SharedAddress(slab_), bytes_, thread_, kSlabThreads);
  }

  // visit(vector, address) for the slab's vectors that the thread moves.
  template <typename Visit>
  __device__ void ForOwnVectors(Visit visit) const {
    for (int i = thread_; i * kVectorBytes < bytes_; i += kSlabThreads) {
      visit(i, SharedAddress(slab_) + static_cast<std::uint32_t>(i) * kVectorBytes);
    }
  }

  // visit(split, position) for the thread's share of positions: one, or several whole ones.
  template <typename Visit>
  __device__ void ForOwnPositions(Visit visit) const {
    for (int at = thread_; at < splits() * place_.spatial; at += kSlabThreads) {
      visit(at / place_.spatial, at % place_.spatial);
    }
  }

  // visit(channel, value) for every splits()-th channel. Some are read before the first is visited:
  // a visit may write, which the compiler does not move a read across.
  template <typename Visit>
  __device__ void ForChannels(int split, int position, Visit visit) const {
    constexpr int kAhead = 8;
#pragma unroll 1
    for (int first = split; first < place_.channels; first += kAhead * splits()) {
      T values[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int channel = first + i * splits();
        if (channel < place_.channels) values[i] = slab_[channel * place_.spatial + position];
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int channel = first + i * splits();
        if (channel < place_.channels) visit(channel, Widen(values[i]));
      }
    }
  }

  // The mean of the thread's elements, for 16 bits of up to four of them: exact if they are equal.
  __device__ float Reference(int split, int position, int count) const {
    float sum = 0;
    if constexpr (kMeanReference<T>) {
      ForChannels(split, position, [&](int, float value) { sum += value; });
      return Quotient(sum, static_cast<float>(count));
    }
    const int taken = count >= 4 ? 4 : count >= 2 ? 2 : 1;
    for (int i = 0; i < taken; ++i) {
      sum += Widen(slab_[(split + i * splits()) * place_.spatial + position]);
    }
    return sum * (1.0f / static_cast<float>(taken));
  }

  const StageBatch& batch_;
  const SlabPlace& place_;
  const SlabMemory& memory_;
  T* const slab_;
  const int thread_;
  const int bytes_;
};

// Merges the statistics that all slabs have of each position: adjacent lanes take one slab's each.
// All threads of all blocks call it together; until AwaitCluster the others read this block's.
__device__ inline void MergeSlabs(const StageBatch& batch, const SlabPlace& place,
                                  const SlabMemory& memory, int slabs, int rank) {
  __syncwarp();
  SyncCluster();
  const int from = static_cast<int>(threadIdx.x) % slabs;
  for (int begin = 0; begin < place.spatial; begin += kSlabThreads / slabs) {
    const int position = begin + static_cast<int>(threadIdx.x) / slabs;
    const bool exists = position < place.spatial;
    PositionSlot slot = {0, 0, 0, 0};
    if (exists) {
      const std::uint32_t own = SharedAddress(memory.partials + position);
      slot = BitCast<PositionSlot>(LoadFromBlock(PlaceInBlock(own, from)));
    }
    const Moments<float> all = MergeStatistics(batch.statistics, slot.moments(),
                                               static_cast<float>(batch.channels_per_group), slabs);
    if (!exists || from != 0) continue;
    const RowScale<float> scale = FinishStatistics(batch.statistics, all, batch.eps);
    memory.scales[position] =
        PositionSlot::Of(scale, batch.statistics == Statistics::kMeanVariance);
    if (rank != 0) continue;
    const std::int64_t row = place.first_row + position;
    if (auto* const mean_out = static_cast<float*>(place.segment->mean_out)) {
      mean_out[row] = scale.mean;
    }
    if (auto* const rstd_out = static_cast<float*>(place.segment->rstd_out)) {
      rstd_out[row] = scale.rstd;
    }
  }
  __syncwarp();
  ArriveAtClusterRelaxed();
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kSlabThreads, 4)
    PositionSlabs(const __grid_constant__ StageBatch batch, const int slabs) {
  extern __shared__ Vector slab_memory[];
  const int rank = ClusterRank();
  const SlabPlace place(batch, static_cast<int>(sizeof(T)),
                        blockIdx.x / static_cast<unsigned>(slabs), slabs, rank);
  const SlabMemory memory(slab_memory, place.shape, place.spatial);
  const Slab<T> slab(batch, place, memory);
  AwaitPreviousKernel();
  if (batch.affine) {
    FillFactors(batch, *place.segment, place.sample, place.first_channel, place.channels,
                memory.factors);
  }
  slab.Load();
  slab.Sum();
  MergeSlabs(batch, place, memory, slabs, rank);
  slab.Write();
  __syncwarp();
  AwaitCluster();
}

}  // namespace

cudaError_t PreparePositionSlabs(const DeviceLimits& limits) {
  for (const auto kernel : {PositionSlabs<Half>, PositionSlabs<BFloat>, PositionSlabs<float>}) {
    if (const cudaError_t error = AllowSharedBytes(kernel, limits); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchPositionSlabs(const Launch& launch, StageBatch batch) {
  const int slabs = launch.plan.slabs;
  const auto element = static_cast<int>(SizeOf(launch.spec.dtype));
  std::uint32_t groups = 0;
  int shared_bytes = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    StageSegment& segment = batch.segments[i];
    const auto spatial = static_cast<int>(segment.spatial);
    const SlabShape shape =
        SlabShape::Of(static_cast<int>(batch.channels_per_group), spatial, element, slabs);
    shared_bytes = std::max(shared_bytes, shape.shared_bytes(spatial));
    groups += segment.groups;
    segment.end_row = groups;
  }
  cudaLaunchAttribute attributes[2] = {OverlapPrevious(true), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(slabs);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(groups * static_cast<unsigned>(slabs));
  config.blockDim = dim3(kSlabThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  const cudaError_t error = WithNarrowType(launch.spec.dtype, [&](auto type) {
    return cudaLaunchKernelEx(&config, PositionSlabs<typename decltype(type)::Type>, batch, slabs);
  });
  // The error is returned here; this clears it.
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace normd::norm::cuda
