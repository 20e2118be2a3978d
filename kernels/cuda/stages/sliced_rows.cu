// Long rows with any stages, and shorter ones with stages that register_rows.cu does not have: a
// row is cut into slices, one for each block of a cluster, or belongs to one block.
//
// Phases: every thread loads its vectors of x and of a residual or second tensor, adds, rounds,
// writes residual_out, sums, and leaves the normalized values in shared memory, in places that it
// alone uses. Warps merge, blocks merge, and every block sends its partial to the others' shared
// memory. Then each thread scales its values and stores them; if a row has a scale of its own, the
// largest result is exchanged in the same way first. Rows at other than 16-byte addresses, and
// their sums, are stored from shared memory by the block together (ragged_run.cuh).
// Bytes: each element of each tensor is read once and written once, as long as a slice fits into
// its block's shared memory (100 KiB, so that two blocks share a multiprocessor). The rest is read
// twice, or three times if a row has a scale.
// Occupancy: up to 64 registers; 4 blocks of 256 threads on a multiprocessor, or 2 of 512 if slices
// are longer than 32 KiB.
// Determinism: the plan cuts rows. Addresses select between kernels that cut them alike and add in
// one order, which is that of register_rows.cu for one-block rows with a second tensor.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/sliced_row.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kMostThreads = kStageWarps * kLanes;
constexpr std::int64_t kMostHeldBytes = 100 << 10;
constexpr std::int64_t kMostTable = 1024;

// The memory through which the blocks of a row communicate.
struct SliceExchange {
  uint4 moments[kMaxClusterBlocks];
  uint4 largest[kMaxClusterBlocks];
};

__device__ inline uint4 WordOfMoments(const Moments<float>& moments) {
  return make_uint4(__float_as_uint(moments.reference), __float_as_uint(moments.mean),
                    __float_as_uint(moments.m2), __float_as_uint(moments.count));
}
__device__ inline Moments<float> MomentsOfWord(const uint4& word) {
  Moments<float> moments;
  moments.reference = __uint_as_float(word.x);
  moments.mean = __uint_as_float(word.y);
  moments.m2 = __uint_as_float(word.z);
  moments.count = __uint_as_float(word.w);
  return moments;
}

// Sends a word to the same place in every block of the cluster; all blocks have all words
// afterwards. All threads of all blocks call it together.
__device__ inline void SendToCluster(const uint4& word, const void* place, int blocks) {
  if (static_cast<int>(threadIdx.x) < blocks) {
    StoreInBlock(PlaceInBlock(SharedAddress(place), static_cast<int>(threadIdx.x)), word);
  }
  __syncwarp();
  SyncCluster();
}

// The statistics of the row, returned to every thread of all its blocks.
__device__ inline Moments<float> MergeSlices(const StageBatch& batch, const StageRow& row,
                                             const Moments<float>& own, int blocks, int rank,
                                             SliceExchange* exchange) {
  if (blocks == 1) return own;
  AwaitCluster();  // Waits until the others have begun.
  SendToCluster(WordOfMoments(own), &exchange->moments[rank], blocks);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const Moments<float> partial =
      MomentsOfWord(lane < blocks ? exchange->moments[lane] : make_uint4(0, 0, 0, 0));
  return MergeStatistics(batch.statistics, partial, static_cast<float>(row.segment->elements),
                         kLanes);
}

__device__ inline std::uint32_t LargestOfSlices(std::uint32_t own, int blocks, int rank,
                                                SliceExchange* exchange) {
  if (blocks == 1) return own;
  SendToCluster(make_uint4(own, 0, 0, 0), &exchange->largest[rank], blocks);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  return LargestOfLanes(lane < blocks ? exchange->largest[lane].x : 0u, kLanes);
}

// Writes the results; if a row has a scale of its own, computes them once before that for their
// largest. One loop, because the code of a result is long.
template <typename Slices>
__device__ inline void WriteSlice(const StageBatch& batch, const StageRow& row,
                                  const StageTeam<>& team, const Slices& slice,
                                  const RowScale<float>& scale, int blocks, int rank,
                                  SliceExchange* exchange) {
  constexpr int kCount = Slices::kCount;
  constexpr int kBlockVectors = static_cast<int>(kQuantizationBlock) / kCount;
  __shared__ WarpPartials<std::uint32_t> partials;
  const bool quantized = batch.quantization != Quantization::kNone;
  const bool of_row = quantized && batch.quantization_scale == QuantizationScale::kRow;
  const bool of_block = quantized && batch.quantization_scale == QuantizationScale::kBlock;
  float factor = batch.quantization_factor.narrow;
  std::uint32_t largest = 0;
#pragma unroll 1
  for (bool write = !of_row;; write = true) {
#pragma unroll 1
    for (int begin = 0; begin < slice.vectors(); begin += team.size()) {
      const int vector = begin + team.thread;
      const int present = slice.Present(vector);
      float values[kCount] = {};
      if (present > 0) slice.Result(vector, scale, values);
      if (!write) {
        largest = LargestMagnitude(values, present, largest);
      } else if (!quantized) {
        slice.Store(vector, present, values);
      } else {
        if (of_block) {  // Vectors of adjacent lanes.
          const std::uint32_t of_lanes =
              LargestOfLanes(LargestMagnitude(values, present, 0u), kBlockVectors);
          const QuantizationFactor<float> own(batch.quantization, FromMagnitude(of_lanes));
          factor = own.factor;
          int block;
          if (present > 0 && slice.BeginsBlock(vector, &block)) {
            row.segment->scale_out[row.number * QuantizationBlocks(row) + block] = own.scale;
          }
        }
        slice.StoreQuantized(vector, present, values, factor);
      }
    }
    if (write) return;
    largest = LargestOfSlices(LargestOfTeam(largest, team, partials), blocks, rank, exchange);
    const QuantizationFactor<float> own(batch.quantization, FromMagnitude(largest));
    if (rank == 0 && team.thread == 0) row.segment->scale_out[row.number] = own.scale;
    factor = own.factor;
  }
}

template <typename T, SliceForm kForm>
__global__ void __launch_bounds__(kMostThreads)
    SlicedRows(const __grid_constant__ StageBatch batch, const __grid_constant__ SliceCut cut) {
  extern __shared__ float4 sliced_memory[];
  __shared__ SliceExchange exchange;
  __shared__ WarpPartials<Moments<float>> partials;
  const int blocks = cut.blocks;
  const int rank = blocks == 1 ? 0 : ClusterRank();
  if (blocks > 1) ArriveAtClusterRelaxed();
  const StageTeam<> team(kLanes, static_cast<int>(blockDim.x) / kLanes, kFewVectors);
  const StageRow row =
      FindStageRow(batch, blocks == 1 ? blockIdx.x : blockIdx.x / static_cast<unsigned>(blocks));
  const Slice slice(row, kPerVector<T>, blocks, rank);
  const SlicedRow<T, kForm> held(batch, row, team, slice, cut, sliced_memory);
  AwaitPreviousKernel();

  held.FillTable();
  const Moments<float> own = held.Sum();
  __syncwarp();
  const Moments<float> of_slice = MergeTeam(batch.statistics, own, GroupSum(own.count, kLanes),
                                            static_cast<float>(slice.elements), team, partials);
  const Moments<float> all = MergeSlices(batch, row, of_slice, blocks, rank, &exchange);
  const RowScale<float> scale = FinishStatistics(batch.statistics, all, batch.eps);
  if (rank == 0 && team.thread == 0) WriteStatistics(batch, row, all, scale);
  if (batch.only_statistics) return;
  held.StoreSums();
  WriteSlice(batch, row, team, held, scale, blocks, rank, &exchange);
  held.FinishStores();
}

bool ConcernsChannels(const StageBatch& batch) {
  return batch.affine || batch.gate || batch.input_bias.data != nullptr;
}

// The number of a row's channels that come from a table, and the kernel that takes the batch.
struct SliceKind {
  int table = 0;
  SliceForm form = SliceForm::kAny;
};

// Whether gamma and beta, of the batch's type or float32, are the only factors and offsets.
bool HasPlainParams(const StageBatch& batch) {
  const auto known = [&](const ParamVector& param) {
    return param.data == nullptr || param.dtype == batch.dtype || param.dtype == DType::kFloat32;
  };
  return batch.style == Style::kNone && !batch.scale && !batch.shift && known(batch.gamma) &&
         known(batch.beta);
}

// Whether kRagged and kAligned have the stages of a batch.
bool MovesVectors(const StageBatch& batch) {
  return batch.places == RowPlaces::kTogether && batch.combine_input == Combine::kNone &&
         batch.combine_output == Combine::kNone && batch.input_bias.data == nullptr &&
         batch.statistics != Statistics::kSumOfAbsolutes &&
         batch.statistics != Statistics::kLargestAbsolute;
}

SliceKind ChooseKind(const StageBatch& batch, int blocks) {
  const auto element = static_cast<std::int64_t>(SizeOf(batch.dtype));
  const std::int64_t count = kVectorBytes / element;
  const bool in_turn = batch.places == RowPlaces::kChannelsLast;
  SliceKind kind;
  if (MovesVectors(batch)) kind.form = batch.aligned ? SliceForm::kAligned : SliceForm::kRagged;
  if (!ConcernsChannels(batch)) return kind;
  bool shared = true, elements = true, whole_vectors = true, aligned = true;
  std::int64_t entries = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    const StageSegment& segment = batch.segments[i];
    const std::int64_t of_slice =
        SliceVectors((segment.elements + count - 1) / count, blocks) * count;
    entries =
        std::max(entries, in_turn ? batch.channels_per_group : of_slice / segment.channel_run + 2);
    shared = shared && (in_turn || segment.channel_run > 1);
    elements = elements && segment.channel_run == 1;
    whole_vectors = whole_vectors && segment.channel_run % count == 0;
    for (const void* data : {segment.gate, segment.scale, segment.shift}) {
      aligned = aligned && IsAligned(data, batch.channels_per_group * element);
    }
  }
  if (shared && entries <= kMostTable) kind.table = static_cast<int>(entries);
  const bool of_elements = elements && aligned && batch.style == Style::kNone &&
                           IsPackedParam(batch, batch.gamma) && IsPackedParam(batch, batch.beta);
  if (kind.form == SliceForm::kAligned && !(kind.table > 0 ? whole_vectors : of_elements)) {
    kind.form = SliceForm::kRagged;
  }
  const bool ragged = kind.table > 0 || (elements && HasPlainParams(batch));
  if (kind.form == SliceForm::kRagged && (batch.gate || !ragged)) kind.form = SliceForm::kAny;
  return kind;
}

SliceCut CutRows(const Launch& launch, const StageBatch& batch, int table) {
  const auto element = static_cast<std::int64_t>(SizeOf(batch.dtype));
  const std::int64_t count = kVectorBytes / element;
  SliceCut cut = {launch.plan.blocks_per_row, 0, table,
                  batch.combine_input != Combine::kNone && element == 2, true};
  if (batch.only_statistics) return cut;
  std::int64_t vectors = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    const std::int64_t of_row = (batch.segments[i].elements + count - 1) / count;
    vectors = std::max(vectors, SliceVectors(of_row, cut.blocks));
  }
  const std::int64_t room =
      std::min(kMostHeldBytes, static_cast<std::int64_t>(launch.limits.shared_bytes_per_block -
                                                         2 * kReservedSharedBytes)) -
      table * static_cast<std::int64_t>(sizeof(float4));
  cut.held = static_cast<int>(std::min(vectors, room / (kVectorBytes * (cut.wide ? 2 : 1))));
  cut.whole = cut.held == vectors;
  return cut;
}

template <typename T, SliceForm kForm>
cudaError_t Enqueue(const Launch& launch, const StageBatch& batch, const SliceCut& cut) {
  cudaLaunchAttribute attributes[2] = {OverlapPrevious(true), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cut.blocks);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(batch.rows * static_cast<unsigned>(cut.blocks));
  config.blockDim = dim3(static_cast<unsigned>(launch.plan.warps * kLanes));
  config.dynamicSmemBytes = static_cast<std::size_t>(cut.held) * kVectorBytes * (cut.wide ? 2 : 1) +
                            static_cast<std::size_t>(cut.table) * sizeof(float4);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = launch.limits.compute_capability < 90 ? 0 : cut.blocks > 1 ? 2 : 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, SlicedRows<T, kForm>, batch, cut);
  // The error is returned here; this clears it.
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace

cudaError_t PrepareSlicedRows(const DeviceLimits& limits) {
  const auto prepare = [&](auto kernel) {
    cudaError_t error = AllowSharedBytes(kernel, limits);
    if (error != cudaSuccess || limits.compute_capability < 90) return error;
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  };
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const cudaError_t error = WithNarrowType(dtype, [&](auto type) {
      using T = typename decltype(type)::Type;
      const cudaError_t any = prepare(&SlicedRows<T, SliceForm::kAny>);
      if (any != cudaSuccess) return any;
      const cudaError_t ragged = prepare(&SlicedRows<T, SliceForm::kRagged>);
      return ragged != cudaSuccess ? ragged : prepare(&SlicedRows<T, SliceForm::kAligned>);
    });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool TakesSlicedRows(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  const Plan& plan = launch.plan;
  if (plan.blocks_per_row > 1) return true;
  if (plan.warps == 0 || plan.blocks_per_row == 0 || !SlicesRows(spec) ||
      plan.places == RowPlaces::kPositions || plan.places == RowPlaces::kMixedRuns ||
      launch.limits.compute_capability < 80) {
    return false;
  }
  const bool sums = batch.residual || batch.input_bias.data != nullptr;
  return batch.only_statistics || spec.activation != Activation::kNone ||
         spec.style != Style::kNone || (sums && spec.combine_output != Combine::kNone) ||
         plan.places == RowPlaces::kChannelsLast ||
         (ConcernsChannels(batch) && batch.segments[0].channel_run != 1);
}

bool TakesOtherBlockRows(const Launch& launch, const StageBatch& batch) {
  const Plan& plan = launch.plan;
  if (plan.warps == 0 || plan.blocks_per_row != 1 || plan.vectors != kFewVectors ||
      plan.places != RowPlaces::kTogether || !SlicesRows(launch.spec) || batch.scaled_first ||
      launch.limits.compute_capability < 80) {
    return false;
  }
  return batch.combine_input != Combine::kNone || batch.input_bias.data != nullptr ||
         (!batch.aligned && ChooseKind(batch, plan.blocks_per_row).form == SliceForm::kRagged);
}

cudaError_t LaunchSlicedRows(const Launch& launch, const StageBatch& batch) {
  SliceKind kind = ChooseKind(batch, launch.plan.blocks_per_row);
  const SliceCut cut = CutRows(launch, batch, kind.table);
  if (kind.form == SliceForm::kRagged && !cut.whole) kind.form = SliceForm::kAny;
  return WithNarrowType(launch.spec.dtype, [&](auto type) {
    using T = typename decltype(type)::Type;
    switch (kind.form) {
      case SliceForm::kAligned: return Enqueue<T, SliceForm::kAligned>(launch, batch, cut);
      case SliceForm::kRagged: return Enqueue<T, SliceForm::kRagged>(launch, batch, cut);
      default: return Enqueue<T, SliceForm::kAny>(launch, batch, cut);
    }
  });
}

}  // namespace normd::norm::cuda
