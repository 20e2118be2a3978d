// Rows with a residual that are not whole vectors, in registers: rows of 2 KiB to 64 KiB (16 bits:
// 48 KiB), with gamma and beta at most, and one channel for each element.
//
// Phases: every thread loads its elements of x and of the residual; adds, rounds and writes
// residual_out; the block merges its sums; every thread scales its elements and stores them.
// Bytes: each element of each tensor is read once and written once. Elements move one by one, those
// of a warp together: to assemble vectors takes more instructions than that.
// Occupancy: up to 64 registers, 1,024 threads on a multiprocessor with up to 160 bytes of both
// tensors each.
// Determinism: the thread of an element and the order of the merge follow from its place in the row
// alone. Rows of these lengths have this order at every address.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"
#include "kernels/cuda/stages/stage_sums.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kMostThreads = kStageWarps * kLanes;

template <typename T>
constexpr int kElementsOfThread = sizeof(T) == 2 ? 24 : 20;
template <typename T>
constexpr int kElementsOfWarp = kElementsOfThread<T>* kLanes;

// A lane's elements of a row: from its first on, every one that is 32 further.
template <typename T, Samples kSamples>
class RaggedRow {
 public:
  // `share`: elements of a warp.
  __device__ RaggedRow(const StageBatch& batch, const StageRow& row, const StageTeam<>& team,
                       int share)
      : batch_(batch),
        row_(row),
        first_(team.warp * share + team.lane),
        left_(min(static_cast<int>(row.segment->elements) - first_, share - team.lane)) {}

  __device__ void Load() {
    T residual[kElements];
    Read(XOf<kSamples>(batch_, row_), values_);
    Read(row_.segment->residual, residual);
    T* const sum = reinterpret_cast<T*>(row_.segment->residual_out) + row_.begin + first_;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values_[i] = Narrow<T>(Widen(values_[i]) + Widen(residual[i]));
      if (batch_.residual_out && Exists(i)) sum[i * kLanes] = values_[i];
    }
  }

  __device__ Moments<float> Sum() const {
    const int count = left_ <= 0 ? 0 : (left_ + kLanes - 1) / kLanes;
    return MomentsOfVectors<T, kElements / kCount, false>(
        batch_.statistics,
        [&](int k, float(&values)[kCount]) {
#pragma unroll
          for (int j = 0; j < kCount; ++j) values[j] = Widen(values_[k * kCount + j]);
        },
        [&](int k) { return min(max(count - k * kCount, 0), kCount); });
  }

  // P: the type of gamma and beta.
  template <typename P>
  __device__ void Write(const RowScale<float>& scale) const {
    const std::int64_t channel = row_.first_channel + first_;
    const P* const gamma = static_cast<const P*>(batch_.gamma.data) + channel;
    const P* const beta = static_cast<const P*>(batch_.beta.data) + channel;
    T* const y = reinterpret_cast<T*>(YOf<kSamples>(batch_, row_)) + row_.begin + first_;
    const bool centered = batch_.statistics == Statistics::kMeanVariance;
    const float residue = -scale.residue * scale.rstd;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float factor = 1, offset = 0;
      if (batch_.gamma.data != nullptr && Exists(i)) factor = Widen(__ldg(gamma + i * kLanes));
      if (batch_.beta.data != nullptr && Exists(i)) offset = Widen(__ldg(beta + i * kLanes));
      // Adding 0 would lose the sign of -0.
      if (batch_.gamma.data != nullptr && batch_.weight_offset.narrow != 0) {
        factor += batch_.weight_offset.narrow;
      }
      const float value = Widen(values_[i]);
      const float normalized =
          centered ? Fma(value - scale.mean, scale.rstd, residue) : value * scale.rstd;
      if (Exists(i)) y[i * kLanes] = Narrow<T>(Fma(normalized, factor, offset));
    }
  }

 private:
  static constexpr int kCount = kPerVector<T>;
  static constexpr int kElements = kElementsOfThread<T>;

  __device__ bool Exists(int i) const { return i * kLanes < left_; }

  // Zeros for elements that do not exist.
  __device__ void Read(const char* tensor, T (&values)[kElements]) const {
    const T* const from = reinterpret_cast<const T*>(tensor) + row_.begin + first_;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values[i] = Narrow<T>(0.0f);
      if (Exists(i)) values[i] = from[i * kLanes];
    }
  }

  const StageBatch& batch_;
  const StageRow& row_;
  const int first_;
  const int left_;  // Elements from the first on to the end of the warp's.
  T values_[kElements];
};

template <typename T, Samples kSamples>
__global__ void __launch_bounds__(kMostThreads)
    RaggedRows(const __grid_constant__ StageBatch batch, const int share) {
  __shared__ WarpPartials<Moments<float>> partials;
  const StageTeam<> team(kLanes, static_cast<int>(blockDim.x) / kLanes, 1);
  const StageRow row = FindStageRow(batch, blockIdx.x);
  RaggedRow<T, kSamples> held(batch, row, team, share);
  AwaitPreviousKernel();
  LetNextKernelBeginEarly<true>();
  held.Load();
  const Moments<float> own = held.Sum();
  const Moments<float> all =
      MergeTeam(batch.statistics, own, GroupSum(own.count, kLanes),
                static_cast<float>(static_cast<int>(row.segment->elements)), team, partials);
  const RowScale<float> scale = FinishStatistics(batch.statistics, all, batch.eps);
  if (threadIdx.x == 0) WriteStatistics(batch, row, all, scale);
  const ParamVector& param = batch.gamma.data != nullptr ? batch.gamma : batch.beta;
  if (sizeof(T) == 4 || param.dtype == DType::kFloat32) {
    held.template Write<float>(scale);
  } else {
    held.template Write<T>(scale);
  }
}

template <typename T>
cudaError_t Enqueue(const Launch& launch, const StageBatch& batch) {
  const auto elements = static_cast<int>(batch.segments[0].elements);
  const int warps = (elements + kElementsOfWarp<T> - 1) / kElementsOfWarp<T>;
  const int threads = warps * kLanes;
  const int share = (elements + threads - 1) / threads * kLanes;
  const auto enqueue = [&](auto kernel) {
    return LaunchOverlapping(launch.limits, launch.stream, kernel, batch.rows,
                             static_cast<unsigned>(threads), batch, share);
  };
  return batch.has_gaps ? enqueue(RaggedRows<T, Samples::kBetweenGaps>)
                        : enqueue(RaggedRows<T, Samples::kTogether>);
}

}  // namespace

bool TakesRaggedRows(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  const Plan& plan = launch.plan;
  const StageSegment& segment = batch.segments[0];
  const auto known = [&](const ParamVector& param) {
    return param.data == nullptr || param.dtype == batch.dtype || param.dtype == DType::kFloat32;
  };
  const bool one_type = batch.gamma.data == nullptr || batch.beta.data == nullptr ||
                        batch.gamma.dtype == batch.beta.dtype;
  // With one channel for each element, all rows of a launch have the same length.
  return spec.residual && !spec.gate && !spec.scale && !spec.shift && spec.style == Style::kNone &&
         spec.activation == Activation::kNone && spec.combine_output == Combine::kNone &&
         spec.quantization == Quantization::kNone && spec.dtype != DType::kFloat64 &&
         spec.statistics != Statistics::kGiven && spec.statistics != Statistics::kSumOfAbsolutes &&
         spec.statistics != Statistics::kLargestAbsolute && batch.input_bias.data == nullptr &&
         known(batch.gamma) && known(batch.beta) && one_type &&
         plan.places == RowPlaces::kTogether && plan.warps > 0 && plan.blocks_per_row == 1 &&
         segment.channel_run == 1 && segment.row_bytes % kVectorBytes != 0 &&
         segment.elements <=
             std::int64_t{kStageWarps} *
                 (spec.dtype == DType::kFloat32 ? kElementsOfWarp<float> : kElementsOfWarp<Half>);
}

cudaError_t LaunchRaggedRows(const Launch& launch, const StageBatch& batch) {
  switch (launch.spec.dtype) {
    case DType::kFloat16: return Enqueue<Half>(launch, batch);
    case DType::kBFloat16: return Enqueue<BFloat>(launch, batch);
    default: return Enqueue<float>(launch, batch);
  }
}

}  // namespace normd::norm::cuda
