// Rows that are not whole vectors, in registers: up to 64 KiB with a channel for each element, and
// with every stage but styles and given statistics. 16-bit rows have up to 48 KiB with a residual
// alone, else 32 KiB.
//
// Phases: every thread loads its elements of x and of what is added to it, adds, rounds and writes
// residual_out; the team merges its sums; every thread scales its elements and stores them. If a
// row has a scale of its own, the largest result is merged in between.
// Bytes: each element of each tensor is read once and written once. Elements move one by one, those
// of a warp together: to assemble vectors takes more instructions than that.
// Occupancy: up to 64 registers, 1,024 threads on a multiprocessor with up to 160 bytes of both
// tensors each. Rows that a warp holds share a block.
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
constexpr int kRowsOfBlock = 8;      // If a warp takes each.
constexpr int kFewestElements = 17;  // Fewer leave half of a warp without one.

// What a kernel computes.
enum class RaggedKind {
  kAdded,  // A residual is added; the norm, of squares or of mean and variance, has gamma and beta.
  kAny,
};

// Elements of a thread: as many as registers take.
template <typename T, RaggedKind kKind>
constexpr int kElementsOfThread = kKind == RaggedKind::kAny ? 16
                                  : sizeof(T) == 2          ? 24
                                                            : 20;

// A lane's elements of a row: from its first on, every one that is 32 further. They are visited in
// steps of a vector's number of elements.
template <typename T, Samples kSamples, RaggedKind kKind>
class RaggedRow {
 public:
  // `share`: elements of a warp, whole blocks of quantized elements.
  __device__ RaggedRow(const StageBatch& batch, const StageRow& row, const StageTeam<>& team,
                       int share)
      : batch_(batch),
        row_(row),
        team_(team),
        share_(share),
        first_(team.warp * share + team.lane),
        left_(min(static_cast<int>(row.segment->elements) - first_, share - team.lane)) {}

  // Takes the values to be normalized, and writes residual_out.
  __device__ void Load() {
    Read(XOf<kSamples>(batch_, row_), values_);
    if constexpr (kAdded) {
      Held residual[kElements];
      Read(row_.segment->residual, residual);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        values_[i] = Narrow<T>(Widen(values_[i]) + Widen(residual[i]));
      }
      WriteSum();
    } else if (batch_.combine_input != Combine::kNone) {
      ForSteps([&](int begin, float(&values)[kCount]) {
        float others[kCount];
        ReadStep(row_.segment->other, begin, others);
        CombineWith(batch_.combine_input, values, others);
      });
    } else if (batch_.residual || batch_.input_bias.data != nullptr) {
      ForSteps([&](int begin, float(&values)[kCount]) { AddInputs(begin, values); });
      WriteSum();
    }
  }

  __device__ Moments<float> Sum() const {
    const int count = left_ <= 0 ? 0 : (left_ + kLanes - 1) / kLanes;
    return MomentsOfVectors<T, kElements / kCount, !kAdded>(
        batch_.statistics,
        [&](int k, float(&values)[kCount]) {
#pragma unroll
          for (int j = 0; j < kCount; ++j) values[j] = Widen(values_[k * kCount + j]);
        },
        [&](int k) { return min(max(count - k * kCount, 0), kCount); });
  }

  // Writes the results. Call it once: values with a scale of their own become the results.
  __device__ void Write(const RowScale<float>& scale, WarpPartials<std::uint32_t>& partials) {
    const bool quantized = !kAdded && batch_.quantization != Quantization::kNone;
    std::uint32_t largest = 0;
    ForSteps([&](int begin, float(&values)[kCount]) {
      Result(scale, begin, values);
      if (!quantized) {
        Store(begin, values);
      } else {
        largest = LargestMagnitude(values, Present(begin), largest);
      }
    });
    if (!quantized) return;
    float factor = batch_.quantization_factor.narrow;
    if (batch_.quantization_scale == QuantizationScale::kRow) {
      const QuantizationFactor<float> own(batch_.quantization,
                                          FromMagnitude(LargestOfTeam(largest, team_, partials)));
      if (team_.thread == 0) row_.segment->scale_out[row_.number] = own.scale;
      factor = own.factor;
    }
    ForSteps([&](int begin, float(&values)[kCount]) { StoreQuantized(begin, values, factor); });
  }

 private:
  static constexpr bool kAdded = kKind == RaggedKind::kAdded;
  static constexpr int kCount = kPerVector<T>;
  static constexpr int kElements = kElementsOfThread<T, kKind>;
  static constexpr int kOfBlock = static_cast<int>(kQuantizationBlock) / kLanes;
  using Held = std::conditional_t<kAdded, T, float>;

  __device__ bool Exists(int i) const { return i * kLanes < left_; }
  // The existing elements of the step at `begin`, which come first.
  __device__ int Present(int begin) const {
    const int present = (left_ - begin * kLanes + kLanes - 1) / kLanes;
    return min(max(present, 0), kCount);
  }

  // Calls visit(begin, values) for the steps that a warp has. Values that it changes are kept
  // unless they are held in x's type.
  template <typename Visit>
  __device__ void ForSteps(Visit visit) {
#pragma unroll
    for (int begin = 0; begin < kElements; begin += kCount) {
      if (begin * kLanes >= share_) continue;
      float values[kCount];
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = Widen(values_[begin + j]);
      visit(begin, values);
      if constexpr (!kAdded) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) values_[begin + j] = values[j];
      }
    }
  }

  // Elements of a tensor of x's shape; zeros for those that do not exist.
  __device__ void Read(const char* tensor, Held (&values)[kElements]) const {
    const T* const from = reinterpret_cast<const T*>(tensor) + row_.begin + first_;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values[i] = static_cast<Held>(0.0f);
      if (Exists(i)) values[i] = static_cast<Held>(from[i * kLanes]);
    }
  }
  __device__ void ReadStep(const char* tensor, int begin, float (&values)[kCount]) const {
    const T* const from = reinterpret_cast<const T*>(tensor) + row_.begin + first_;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      values[j] = 0;
      if (Exists(begin + j)) values[j] = Widen(from[(begin + j) * kLanes]);
    }
  }

  // Values of the elements' channels in T or float32, from element `offset` of an array on.
  __device__ void ReadParam(const ParamVector& param, std::int64_t offset, int begin,
                            float (&values)[kCount]) const {
    const std::int64_t channel = offset + row_.first_channel + first_ + begin * kLanes;
    if (sizeof(T) == 4 || param.dtype == DType::kFloat32) {
      ReadParamOf(static_cast<const float*>(param.data) + channel, begin, values);
    } else {
      ReadParamOf(static_cast<const T*>(param.data) + channel, begin, values);
    }
  }
  template <typename P>
  __device__ void ReadParamOf(const P* param, int begin, float (&values)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      values[j] = 0;
      if (Exists(begin + j)) values[j] = Widen(__ldg(param + j * kLanes));
    }
  }
  // The same for a sample's array of x's type.
  __device__ void ReadOfSample(const void* array, int begin, float (&values)[kCount]) const {
    ReadParam({array, batch_.dtype}, row_.sample * batch_.channels, begin, values);
  }

  // As StageAccess::Input.
  __device__ void AddInputs(int begin, float (&values)[kCount]) const {
    float others[kCount];
    if (batch_.input_bias.data != nullptr) {
      ReadParam(batch_.input_bias, 0, begin, others);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] += others[j];
    }
    if (batch_.gate) {
      ReadOfSample(row_.segment->gate, begin, others);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] *= others[j];
    }
    if (batch_.residual) {
      ReadStep(row_.segment->residual, begin, others);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] += others[j];
    }
    RoundTo<T>(values);
  }

  __device__ void WriteSum() const {
    if (!batch_.residual_out) return;
    T* const sum = reinterpret_cast<T*>(row_.segment->residual_out) + row_.begin + first_;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (Exists(i)) sum[i * kLanes] = Narrow<T>(Widen(values_[i]));
    }
  }

  // As StageAccess::Result.
  __device__ void Result(const RowScale<float>& scale, int begin, float (&values)[kCount]) const {
    if (batch_.statistics == Statistics::kMeanVariance) {
      const float residue = -scale.residue * scale.rstd;
#pragma unroll
      for (float& value : values) value = Fma(value - scale.mean, scale.rstd, residue);
    } else {
#pragma unroll
      for (float& value : values) value *= scale.rstd;
    }
    if (batch_.affine) Modulate(begin, values);
    if constexpr (!kAdded) {
      if (batch_.activation != Activation::kNone) {
        Activate<float>(batch_.activation, batch_.leaky_slope.narrow, values);
      }
      if (batch_.combine_output != Combine::kNone) {
        float others[kCount];
        ReadStep(row_.segment->other, begin, others);
        CombineWith(batch_.combine_output, values, others);
      }
    }
  }

  __device__ void Modulate(int begin, float (&values)[kCount]) const {
    float factor[kCount], offset[kCount], own[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      factor[j] = 1;
      offset[j] = 0;
    }
    if (batch_.gamma.data != nullptr) {
      ReadParam(batch_.gamma, 0, begin, factor);
#pragma unroll
      for (float& value : factor) value += batch_.weight_offset.narrow;
    }
    if (batch_.beta.data != nullptr) ReadParam(batch_.beta, 0, begin, offset);
    if (!kAdded && batch_.scale) {
      ReadOfSample(row_.segment->scale, begin, own);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float scale = batch_.scale_offset.narrow + own[j];
        factor[j] *= scale;
        if (batch_.beta.data != nullptr) offset[j] *= scale;
      }
    }
    if (!kAdded && batch_.shift) {
      ReadOfSample(row_.segment->shift, begin, own);
#pragma unroll
      for (int j = 0; j < kCount; ++j) offset[j] += own[j];
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j], factor[j], offset[j]);
  }

  __device__ void Store(int begin, const float (&values)[kCount]) const {
    T* const y = reinterpret_cast<T*>(YOf<kSamples>(batch_, row_)) + row_.begin + first_;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (Exists(begin + j)) y[(begin + j) * kLanes] = Narrow<T>(values[j]);
    }
  }

  // `factor`: that of the results, if blocks have no factors of their own.
  __device__ void StoreQuantized(int begin, const float (&values)[kCount], float factor) const {
    char* const y = YOf<kSamples>(batch_, row_) + row_.begin + first_;
#pragma unroll
    for (int of_block = 0; of_block < kCount; of_block += kOfBlock) {
      float block[kOfBlock];
#pragma unroll
      for (int j = 0; j < kOfBlock; ++j) block[j] = values[of_block + j];
      if (batch_.quantization_scale == QuantizationScale::kBlock) {
        const int first = begin + of_block;
        const std::uint32_t largest =
            LargestOfLanes(LargestMagnitude(block, max(Present(begin) - of_block, 0), 0u), kLanes);
        const QuantizationFactor<float> own(batch_.quantization, FromMagnitude(largest));
        factor = own.factor;
        if (team_.lane == 0 && Exists(first)) {
          const int number = (first_ + first * kLanes) / static_cast<int>(kQuantizationBlock);
          row_.segment->scale_out[row_.number * QuantizationBlocks(row_) + number] = own.scale;
        }
      }
      const std::uint32_t bytes = Quantize(batch_.quantization, block, factor).x;
#pragma unroll
      for (int j = 0; j < kOfBlock; ++j) {
        const int i = begin + of_block + j;
        if (Exists(i)) y[i * kLanes] = static_cast<char>(bytes >> (j * 8));
      }
    }
  }

  const StageBatch& batch_;
  const StageRow& row_;
  const StageTeam<>& team_;
  const int share_;
  const int first_;
  const int left_;  // Elements from the first on to the end of the warp's.
  Held values_[kElements];
};

// warps: of a row; 0: a warp each, several rows in a block.
template <typename T, Samples kSamples, RaggedKind kKind>
__global__ void __launch_bounds__(kMostThreads)
    RaggedRows(const __grid_constant__ StageBatch batch, const int warps, const int share) {
  __shared__ WarpPartials<Moments<float>> partials;
  __shared__ WarpPartials<std::uint32_t> largest;
  const StageTeam<> team(kLanes, warps, 1);
  const std::uint32_t index = warps == 0 ? blockIdx.x * kRowsOfBlock + team.number : blockIdx.x;
  if (index >= batch.rows) return;
  const StageRow row = FindStageRow(batch, index);
  RaggedRow<T, kSamples, kKind> held(batch, row, team, share);
  AwaitPreviousKernel();
  LetNextKernelBeginEarly<true>();
  held.Load();
  const Moments<float> own = held.Sum();
  const Moments<float> all =
      MergeTeam(batch.statistics, own, GroupSum(own.count, kLanes),
                static_cast<float>(static_cast<int>(row.segment->elements)), team, partials);
  const RowScale<float> scale = FinishStatistics(batch.statistics, all, batch.eps);
  if (team.thread == 0) WriteStatistics(batch, row, all, scale);
  held.Write(scale, largest);
}

RaggedKind KindOf(const NormSpec& spec, const StageBatch& batch) {
  const bool added =
      spec.residual && !spec.gate && !spec.scale && !spec.shift &&
      spec.activation == Activation::kNone && spec.combine_output == Combine::kNone &&
      spec.quantization == Quantization::kNone && spec.statistics != Statistics::kSumOfAbsolutes &&
      spec.statistics != Statistics::kLargestAbsolute && batch.input_bias.data == nullptr;
  return added ? RaggedKind::kAdded : RaggedKind::kAny;
}

template <typename T, Samples kSamples, RaggedKind kKind>
cudaError_t EnqueueKind(const Launch& launch, const StageBatch& batch) {
  constexpr int kOfBlock = static_cast<int>(kQuantizationBlock);
  constexpr int kOfWarp = kElementsOfThread<T, kKind> * kLanes;
  const auto elements = static_cast<int>(batch.segments[0].elements);
  const int used = (elements + kOfWarp - 1) / kOfWarp;
  const int warps = used == 1 ? 0 : used;
  const int share = ((elements + used - 1) / used + kOfBlock - 1) / kOfBlock * kOfBlock;
  const std::uint32_t rows = warps == 0 ? kRowsOfBlock : 1;
  const int threads = (warps == 0 ? kRowsOfBlock : warps) * kLanes;
  return LaunchOverlapping(launch.limits, launch.stream, RaggedRows<T, kSamples, kKind>,
                           (batch.rows + rows - 1) / rows, static_cast<unsigned>(threads), batch,
                           warps, share);
}

template <typename T>
cudaError_t Enqueue(const Launch& launch, const StageBatch& batch) {
  if (KindOf(launch.spec, batch) == RaggedKind::kAny) {  // Gaps that are absent are 0.
    return EnqueueKind<T, Samples::kBetweenGaps, RaggedKind::kAny>(launch, batch);
  }
  return batch.has_gaps ? EnqueueKind<T, Samples::kBetweenGaps, RaggedKind::kAdded>(launch, batch)
                        : EnqueueKind<T, Samples::kTogether, RaggedKind::kAdded>(launch, batch);
}

template <typename T>
std::int64_t MostElements(RaggedKind kind) {
  const int of_thread = kind == RaggedKind::kAny ? kElementsOfThread<T, RaggedKind::kAny>
                                                 : kElementsOfThread<T, RaggedKind::kAdded>;
  return std::min(of_thread * kMostThreads, (64 << 10) / static_cast<int>(sizeof(T)));
}

}  // namespace

bool TakesRaggedRows(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  const StageSegment& segment = batch.segments[0];
  const auto known = [&](const ParamVector& param) {
    return param.data == nullptr || param.dtype == batch.dtype || param.dtype == DType::kFloat32;
  };
  // With one channel for each element, all rows of a launch have the same length.
  return !batch.only_statistics && spec.dtype != DType::kFloat64 &&
         spec.statistics != Statistics::kGiven && spec.style == Style::kNone &&
         known(batch.gamma) && known(batch.beta) && known(batch.input_bias) &&
         launch.plan.places == RowPlaces::kTogether && segment.channel_run == 1 &&
         segment.row_bytes % kVectorBytes != 0 && segment.elements >= kFewestElements &&
         segment.elements <= (spec.dtype == DType::kFloat32
                                  ? MostElements<float>(KindOf(spec, batch))
                                  : MostElements<Half>(KindOf(spec, batch)));
}

cudaError_t LaunchRaggedRows(const Launch& launch, const StageBatch& batch) {
  return WithNarrowType(launch.spec.dtype, [&](auto element) {
    return Enqueue<typename decltype(element)::Type>(launch, batch);
  });
}

}  // namespace normd::norm::cuda
