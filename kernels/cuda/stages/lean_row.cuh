// A row of lean_rows.cu: what a thread holds of it, from the loads to the results.

#ifndef NORMD_KERNELS_CUDA_STAGES_LEAN_ROW_CUH_
#define NORMD_KERNELS_CUDA_STAGES_LEAN_ROW_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/stages/stage_sums.cuh"
#include "kernels/cuda/stages/stage_values.cuh"

namespace normd::norm::cuda {

// Elements [index, index + N) of an array of type P at an address that 16-byte loads like.
template <typename P, int N>
__device__ inline void LoadWhole(const void* data, std::int64_t index, float (&values)[N]) {
  const P* const address = static_cast<const P*>(data) + index;
#pragma unroll
  for (int i = 0; i < N; i += kPerVector<P>) {
    float part[kPerVector<P>];
    Unpack<P>(__ldg(reinterpret_cast<const uint4*>(address + i)), part);
#pragma unroll
    for (int j = 0; j < kPerVector<P>; ++j) values[i + j] = part[j];
  }
}

// What a kernel can do beside a norm with gamma and beta, fixed when it is compiled so that the
// common cases are short: at run time a row may have less.
template <typename T, bool kResidualIn, bool kOtherIn, bool kModulatedBy, bool kQuantizedTo,
          bool kAffineBy = true>
struct LeanKind {
  using Type = T;
  static constexpr bool kAffine = kAffineBy;        // Anything scales or shifts.
  static constexpr bool kResidual = kResidualIn;    // Always.
  static constexpr bool kOther = kOtherIn;          // Always.
  static constexpr bool kModulated = kModulatedBy;  // By scale, shift and gate; any statistics.
  static constexpr bool kQuantized = kQuantizedTo;
  static constexpr bool kSecond = kResidual || kOther;
  // Whether all results are in registers at once; else those that have a scale of their own are
  // worked out twice.
  static constexpr bool kHeld = kQuantized && !kModulated;
  // Vectors whose results are worked out together. All at once take fewer moves, two less code.
  static constexpr int kStep = kModulated && kQuantized ? 2 : kStageVectors;
};

// Where a row is. Addresses are those of the thread's first vector.
struct LeanPlace {
  const char* x;
  char* y;
  const char* second;
  char* sum;
  const char* gate;  // Addresses of the thread's first channels of the sample.
  const char* scale;
  const char* shift;
  int first_channel;  // That of the thread's first vector, in the first group's arrays.
  int segment;
  std::uint32_t local;  // Row of the segment.
};

template <typename Kind>
__device__ inline LeanPlace FindLeanRow(const StageBatch& batch, const StageTeam& team,
                                        std::uint32_t index) {
  using T = typename Kind::Type;
  LeanPlace place = {};
  if (batch.segment_count > 1) {
    while (index >= batch.segments[place.segment].end_row) ++place.segment;
    if (place.segment > 0) index -= batch.segments[place.segment - 1].end_row;
  }
  const StageSegment& segment = batch.segments[place.segment];
  place.local = index;
  const std::int64_t offset =
      static_cast<std::int64_t>(index) * segment.row_bytes + team.thread * kVectorBytes;
  place.x = segment.x + offset;
  place.y = segment.y + (Kind::kQuantized && batch.quantization != Quantization::kNone
                             ? offset / static_cast<int>(sizeof(T))
                             : offset);
  if constexpr (Kind::kResidual) {
    place.second = segment.residual + offset;
    place.sum = segment.residual_out + offset;
  } else if constexpr (Kind::kOther) {
    place.second = segment.other + offset;
  }
  place.first_channel = team.thread * kPerVector<T>;
  const std::uint32_t groups = batch.groups.value();
  if (Kind::kModulated || groups != 1) {
    const std::uint32_t outer = batch.groups.Divide(index);
    const std::uint32_t group = index - outer * groups;
    std::uint32_t sample = outer;
    if (batch.positions_outside) sample = segment.positions.Divide(outer);
    place.first_channel += static_cast<int>(group * batch.channels_per_group);
    if constexpr (Kind::kModulated) {
      const std::int64_t channels =
          (sample * batch.channels + place.first_channel) * static_cast<int>(sizeof(T));
      place.gate = static_cast<const char*>(segment.gate) + channels;
      place.scale = static_cast<const char*>(segment.scale) + channels;
      place.shift = static_cast<const char*>(segment.shift) + channels;
    }
  }
  return place;
}

// The row's number among the segment's in the order of the contract.
__device__ inline std::int64_t NumberOf(const StageBatch& batch, const LeanPlace& place) {
  const std::uint32_t groups = batch.groups.value();
  if (!batch.positions_outside || groups == 1) return place.local;
  const Divisor positions = batch.segments[place.segment].positions;
  const std::uint32_t outer = batch.groups.Divide(place.local);
  const std::uint32_t group = place.local - outer * groups;
  const std::uint32_t sample = positions.Divide(outer);
  const std::uint32_t position = outer - sample * positions.value();
  return (std::int64_t{sample} * groups + group) * positions.value() + position;
}

// What a thread holds of a row.
template <typename Kind>
class LeanRow {
 public:
  using T = typename Kind::Type;
  static constexpr int kCount = kPerVector<T>;

  __device__ LeanRow(const StageBatch& batch, const StageTeam& team, const LeanPlace& place,
                     int vectors)
      : batch_(batch), team_(team), place_(place), vectors_(vectors), size_(team.size()) {}

  __device__ void Load() {
    LoadTensor(place_.x, x_);
    if constexpr (Kind::kSecond) LoadTensor(place_.second, second_);
    if constexpr (Kind::kResidual) AddResidual();
  }

  __device__ Moments<float> Sum() const {
    return MomentsOfVectors<T, Kind::kModulated>(
        batch_.statistics, [&](int i, float(&values)[kCount]) { Unpack<T>(x_[i], values); },
        [&](int i) { return Exists(i) ? kCount : 0; });
  }

  // Values that are unpacked twice would stay unpacked in between, in twice the registers.
  __device__ void RepackAll() {
#pragma unroll
    for (int i = 0; i < kStageVectors; ++i) Repack(x_[i]);
  }

  // Works the results out and writes them; before that once for their largest, where a row has a
  // scale of its own.
  __device__ void Write(const RowScale<float>& scale, std::uint32_t (&partials)[kStageWarps]) {
    if constexpr (Kind::kHeld) {
      WriteHeld(scale, partials);
      return;
    }
    float factor = batch_.quantization_factor.narrow;
    if constexpr (Kind::kQuantized) {
      if (batch_.quantization_scale == QuantizationScale::kRow) {
        float largest = 0;
        ForResults(scale, [&](int, const float(&values)[kCount]) {
#pragma unroll
          for (const float value : values) largest = LargerMagnitude(largest, value);
        });
        RepackAll();
        factor = FactorOfRow(largest, partials);
      }
    }
    ForResults(scale, [&](int i, const float(&values)[kCount]) { Store(i, values, factor); });
  }

 private:
  __device__ bool Exists(int i) const { return i * size_ + team_.thread < vectors_; }
  // Bytes from the thread's first vector to vector i.
  __device__ int Offset(int i) const { return i * size_ * kVectorBytes; }
  __device__ int Channel(int i) const { return place_.first_channel + i * size_ * kCount; }

  __device__ void LoadTensor(const char* tensor, Vector (&vectors)[kStageVectors]) const {
#pragma unroll
    for (int i = 0; i < kStageVectors; ++i) {
      vectors[i] = make_uint4(0, 0, 0, 0);
      if (Exists(i)) vectors[i] = LoadVector(tensor + Offset(i));
    }
  }

  __device__ void AddResidual() {
#pragma unroll
    for (int i = 0; i < kStageVectors; ++i) {
      if (!Exists(i)) continue;
      float values[kCount], others[kCount];
      Unpack<T>(x_[i], values);
      if (Kind::kModulated && batch_.gate) {
        LoadWhole<T>(place_.gate + Offset(i), 0, others);
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] *= others[j];
      }
      Unpack<T>(second_[i], others);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] += others[j];
      x_[i] = Pack<T>(values);
      if (batch_.residual_out) StoreVector(place_.sum + Offset(i), x_[i]);
    }
  }

  // The same with the results in registers in between.
  __device__ void WriteHeld(const RowScale<float>& scale, std::uint32_t (&partials)[kStageWarps]) {
    float results[kStageVectors][kCount];
#pragma unroll
    for (int i = 0; i < kStageVectors; ++i) {
#pragma unroll
      for (float& value : results[i]) value = 0;
      if (Exists(i)) Result(i, i, scale, results[i]);
    }
    float factor = batch_.quantization_factor.narrow;
    if (batch_.quantization_scale == QuantizationScale::kRow) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kStageVectors; ++i) {
#pragma unroll
        for (const float value : results[i]) largest = LargerMagnitude(largest, value);
      }
      factor = FactorOfRow(largest, partials);
    }
#pragma unroll
    for (int i = 0; i < kStageVectors; ++i) Store(i, results[i], factor);
  }

  // What a row's results are multiplied with, from the largest that the thread holds.
  __device__ float FactorOfRow(float largest, std::uint32_t (&partials)[kStageWarps]) const {
    const std::uint32_t of_row = LargestOfTeam(Magnitude(largest), team_, partials);
    const QuantizationFactor<float> own(batch_.quantization, FromMagnitude(of_row));
    if (team_.thread == 0 && vectors_ > 0) {
      batch_.segments[place_.segment].scale_out[NumberOf(batch_, place_)] = own.scale;
    }
    return own.factor;
  }

  // Calls visit(i, values) with the results of each vector; those of one that does not exist are
  // zeros.
  template <typename Visit>
  __device__ void ForResults(const RowScale<float>& scale, Visit visit) {
#pragma unroll 1
    for (int i = 0; i < kStageVectors; i += Kind::kStep) {
#pragma unroll
      for (int k = 0; k < Kind::kStep; ++k) {
        float values[kCount] = {};
        if (Exists(i + k)) Result(k, i + k, scale, values);
        visit(i + k, values);
      }
      if constexpr (Kind::kStep < kStageVectors) {
        Rotate(x_);
        if constexpr (Kind::kSecond) Rotate(second_);
      }
    }
  }

  // The vectors in front go behind the others.
  __device__ static void Rotate(Vector (&vectors)[kStageVectors]) {
#pragma unroll
    for (int k = 0; k < Kind::kStep; ++k) {
      const Vector front = vectors[k];
#pragma unroll
      for (int i = k; i + Kind::kStep < kStageVectors; i += Kind::kStep) {
        vectors[i] = vectors[i + Kind::kStep];
      }
      vectors[kStageVectors - Kind::kStep + k] = front;
    }
  }

  // The results of vector i, which is held at `place`.
  __device__ void Result(int place, int i, const RowScale<float>& scale,
                         float (&values)[kCount]) const {
    Unpack<T>(x_[place], values);
    if (batch_.statistics == Statistics::kMeanVariance) {
      const float residue = -scale.residue * scale.rstd;
#pragma unroll
      for (float& value : values) value = Fma(value - scale.mean, scale.rstd, residue);
    } else {
#pragma unroll
      for (float& value : values) value *= scale.rstd;
    }
    if (Kind::kAffine && batch_.affine) Modulate(i, values);
    if constexpr (Kind::kOther) {
      float others[kCount];
      Unpack<T>(second_[place], others);
      CombineWith(batch_.combine_output, values, others);
    }
  }

  // gamma or beta, in T or float32.
  __device__ void LoadParam(const ParamVector& param, int i, float (&values)[kCount]) const {
    if (sizeof(T) == 4 || param.dtype == DType::kFloat32) {
      LoadWhole<float>(param.data, Channel(i), values);
    } else {
      LoadWhole<T>(param.data, Channel(i), values);
    }
  }

  __device__ void Modulate(int i, float (&values)[kCount]) const {
    float factor[kCount], offset[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      factor[j] = 1;
      offset[j] = 0;
    }
    if (batch_.gamma.data != nullptr) {
      LoadParam(batch_.gamma, i, factor);
      // Without an offset nothing but a zero's sign would change, which the next sum takes away.
      if (batch_.weight_offset.narrow != 0) {
#pragma unroll
        for (float& value : factor) value += batch_.weight_offset.narrow;
      }
    }
    if (batch_.beta.data != nullptr) LoadParam(batch_.beta, i, offset);
    if constexpr (Kind::kModulated) {
      float own[kCount];
      if (batch_.scale) {
        LoadWhole<T>(place_.scale + Offset(i), 0, own);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          const float by = batch_.scale_offset.narrow + own[j];
          factor[j] *= by;
          offset[j] *= by;
        }
      }
      if (batch_.shift) {
        LoadWhole<T>(place_.shift + Offset(i), 0, own);
#pragma unroll
        for (int j = 0; j < kCount; ++j) offset[j] += own[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j], factor[j], offset[j]);
  }

  __device__ void Store(int i, const float (&values)[kCount], float factor) const {
    if (!Kind::kQuantized || batch_.quantization == Quantization::kNone) {
      if (Exists(i)) StoreVector(place_.y + Offset(i), Pack<T>(values));
      return;
    }
    if (batch_.quantization_scale == QuantizationScale::kBlock) {
      // A block is vectors of lanes that lie together.
      constexpr int kVectors = static_cast<int>(kQuantizationBlock) / kCount;
      const std::uint32_t largest =
          LargestOfLanes(LargestMagnitude(values, kCount, 0u), min(team_.width, kVectors));
      const QuantizationFactor<float> own(batch_.quantization, FromMagnitude(largest));
      factor = own.factor;
      const int vector = i * size_ + team_.thread;
      if (Exists(i) && vector % kVectors == 0) {
        const int blocks = (vectors_ + kVectors - 1) / kVectors;
        batch_.segments[place_.segment]
            .scale_out[NumberOf(batch_, place_) * blocks + vector / kVectors] = own.scale;
      }
    }
    if (!Exists(i)) return;
    StoreBytes<kCount>(place_.y + Offset(i) / static_cast<int>(sizeof(T)),
                       Quantize(batch_.quantization, values, factor));
  }

  const StageBatch& batch_;
  const StageTeam& team_;
  const LeanPlace& place_;
  const int vectors_;  // Of the row; 0 if it does not exist.
  const int size_;
  Vector x_[kStageVectors];  // From the sums on, what is normalized.
  Vector second_[Kind::kSecond ? kStageVectors : 1];
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_LEAN_ROW_CUH_
