// A row of register_rows.cu: a thread's part of it, from the loads to the results.

#ifndef NORMD_KERNELS_CUDA_STAGES_REGISTER_ROW_CUH_
#define NORMD_KERNELS_CUDA_STAGES_REGISTER_ROW_CUH_

#include "kernels/cuda/stages/register_factors.cuh"
#include "kernels/cuda/stages/stage_values.cuh"

namespace normd::norm::cuda {

// A thread's part of a row.
template <typename Kind>
class RegisterRow {
 public:
  using T = typename Kind::Type;
  static constexpr int kCount = kPerVector<T>;

  __device__ RegisterRow(const StageBatch& batch, const RegisterTeam<Kind>& team,
                         const RegisterPlace& place, int vectors, const RegisterTable<T>* table)
      : batch_(batch),
        team_(team),
        place_(place),
        table_(table),
        vectors_(vectors),
        size_(team.size()) {}

  __device__ bool exists() const { return vectors_ > 0; }

  __device__ void Load() {
    if constexpr (Kind::kCombined) {
      CombineInput();
    } else {
      LoadTensor(place_.x, x_);
    }
    if constexpr (Kind::kDirectBias) {
#pragma unroll
      for (int i = 0; i < Kind::kVectors; ++i) {
        second_[i] = LoadOfChannels(batch_.input_bias.data, i);
      }
    } else if constexpr (kKeepsSecond) {
      LoadTensor(place_.second, second_);
    }
    if constexpr (Kind::kAhead) {
#pragma unroll
      for (int i = 0; i < Kind::kVectors; ++i) {
        factors_[i] = LoadFactor(i);
        offsets_[i] = LoadOffset(i);
      }
    }
    if constexpr (Kind::kBias || Kind::kResidual) AddToInput();
  }

  // The row's elements in the thread's warp, if the team has warps. For sums of squares the count
  // only has to be positive, and with kAhead it is not computed. Other kernels compute it, because
  // the compiler otherwise loads half of a row late (docs/experiments.md).
  __device__ float CountOfWarp() const {
    if constexpr (Kind::kAhead && Kind::kSquares) return 1;
    int vectors = 0;
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) vectors += Exists(i);
    return static_cast<float>(SumOfWarp(vectors) * kCount);
  }

  __device__ Moments<float> Sum() const {
    if constexpr (Kind::kStraight) return SumAll();
    return MomentsOfVectors<T, Kind::kVectors, Kind::kAbsolutes>(
        statistics(), [&](int i, float(&values)[kCount]) { Input(i, values); },
        [&](int i) { return Exists(i) ? kCount : 0; });
  }

  // Values that are unpacked twice would stay unpacked in between, in twice the registers.
  __device__ void RepackAll() {
    if constexpr (!Kind::kCombined) {
#pragma unroll
      for (int i = 0; i < Kind::kVectors; ++i) Repack(x_[i]);
    }
  }

  // Computes the results and writes them; if a row has a scale of its own, computes them once
  // before that for their largest.
  __device__ void Write(const RowScale<float>& scale, WarpPartials<std::uint32_t>& partials) {
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
    ForResults(scale, [&](int i, const float(&values)[kCount]) {
      const float of_vector = IsOfBlocks() ? FactorOfBlock(i, LargestOf(i, values)) : factor;
      Store(i, values, of_vector);
    });
  }

  // The statistics in the form that sums, merges and means depend on.
  __device__ Statistics statistics() const {
    if constexpr (!Kind::kStraight && !Kind::kSquares) return batch_.statistics;
    return Kind::kSquares ? Statistics::kMeanSquare : Statistics::kMeanVariance;
  }

 private:
  // Elements that are not rounded to T.
  struct Floats {
    float values[kCount];
  };
  using Held = std::conditional_t<Kind::kCombined, Floats, Vector>;
  static constexpr bool kKeepsSecond = Kind::kResidual || Kind::kOther || Kind::kDirectBias;

  __device__ const StageSegment& segment() const { return batch_.segments[place_.segment]; }
  __device__ bool Exists(int i) const { return i * size_ + team_.thread < vectors_; }
  // Bytes from the thread's first vector to vector i.
  __device__ int Offset(int i) const { return i * size_ * kVectorBytes; }
  __device__ int Channel(int i) const { return place_.first_channel + i * size_ * kCount; }

  // The values to be normalized of the vector that is held at `place`.
  __device__ void Input(int place, float (&values)[kCount]) const {
    if constexpr (Kind::kCombined) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = x_[place].values[j];
    } else {
      Unpack<T>(x_[place], values);
    }
  }

  // As MomentsOfVectors, with kStraight.
  __device__ Moments<float> SumAll() const {
    float values[kCount];
    float sums[2] = {0, 0}, squares[2] = {0, 0};
    int count = 0;
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) count += Exists(i) ? kCount : 0;
    constexpr bool kCentered = !Kind::kSquares;
    float reference = 0;
    if (kCentered && kMeanReference<T>) {
      float sum[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < Kind::kVectors; ++i) {
        float next[2] = {sum[0], sum[1]};
        Input(i, values);
#pragma unroll
        for (int j = 0; j < kCount; ++j) next[j % 2] += values[j];
        sum[0] = Exists(i) ? next[0] : sum[0];
        sum[1] = Exists(i) ? next[1] : sum[1];
      }
      if (count > 0) reference = Quotient(sum[0] + sum[1], static_cast<float>(count));
    } else if (kCentered && Exists(0)) {
      Input(0, values);
      if constexpr (!kMeanReference<T>) reference = MeanOfHead<T>(values, kCount);
    }
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) {
      Input(i, values);
      float next[2] = {sums[0], sums[1]}, next_squares[2] = {squares[0], squares[1]};
      if (kCentered) {
        AddDeviations<T>(values, kCount, reference, i % 2, next, next_squares);
      } else {
        AddUncentered<T, false>(statistics(), values, kCount, next_squares, nullptr);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        sums[k] = Exists(i) ? next[k] : sums[k];
        squares[k] = Exists(i) ? next_squares[k] : squares[k];
      }
    }
    return MomentsOfSums(reference, sums[0] + sums[1], squares[0] + squares[1], count, kCentered);
  }

  __device__ void LoadTensor(const char* tensor, Vector (&vectors)[Kind::kVectors]) const {
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) {
      vectors[i] = LoadVectorIf(Exists(i), tensor + Offset(i));
    }
  }

  // The begin of the elements of `array` for the channels of vector i.
  __device__ const char* OfChannels(const void* array, int i) const {
    return static_cast<const char*>(array) + place_.of_channels + Offset(i);
  }
  // These elements; zeros if there is no such vector.
  __device__ Vector LoadOfChannels(const void* array, int i) const {
    return Exists(i) ? __ldg(reinterpret_cast<const uint4*>(OfChannels(array, i))) : Vector();
  }
  // With kDirect: the factors or offsets of vector i.
  __device__ Vector LoadFactor(int i) const {
    return LoadOfChannels(Kind::kModulated ? segment().scale : batch_.gamma.data, i);
  }
  __device__ Vector LoadOffset(int i) const {
    const void* const array = Kind::kModulated ? segment().shift : batch_.beta.data;
    return array != nullptr ? LoadOfChannels(array, i) : Vector();
  }

  // Replaces an absent gate: x times 1 is x.
  __device__ static Vector Ones() {
    float values[kCount];
#pragma unroll
    for (float& value : values) value = 1;
    return Pack<T>(values);
  }

  __device__ void CombineInput() {
    Vector x[Kind::kVectors], others[Kind::kVectors];
    LoadTensor(place_.x, x);
    LoadTensor(place_.second, others);
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) {
      float of_other[kCount];
      Unpack<T>(x[i], x_[i].values);
      Unpack<T>(others[i], of_other);
      CombineWith(batch_.combine_input, x_[i].values, of_other);
    }
  }

  // Adds the input bias, multiplies with the gate, adds the residual, and rounds.
  __device__ void AddToInput() {
    const bool gated = Kind::kModulated && batch_.gate;
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) {
      // A branch would make the loads of a bias wait for one another.
      if (!Kind::kDirect && !Kind::kBias && !Exists(i)) continue;
      float values[kCount], others[kCount];
      Unpack<T>(x_[i], values);
      if constexpr (Kind::kBias) {
        if constexpr (Kind::kDirectBias) {
          Unpack<T>(second_[i], others);
        } else {
          LoadPackedParam<T>(batch_.input_bias, Exists(i) ? Channel(i) : 0, others);
        }
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] += others[j];
      }
      if ((Kind::kDirect && Kind::kModulated) || gated) {
        Unpack<T>(gated ? LoadOfChannels(segment().gate, i) : Ones(), others);
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] *= others[j];
      }
      if constexpr (Kind::kResidual) {
        Unpack<T>(second_[i], others);
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] += others[j];
      }
      x_[i] = Pack<T>(values);
      if (batch_.residual_out && Exists(i)) StoreVector(place_.sum + Offset(i), x_[i]);
    }
  }

  // The same, with the results in registers in between.
  __device__ void WriteHeld(const RowScale<float>& scale, WarpPartials<std::uint32_t>& partials) {
    float results[Kind::kVectors][kCount];
    float largest[Kind::kVectors];
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) {
      largest[i] = 0;
      if (!Kind::kStraight && !Exists(i)) continue;
      Result(i, i, scale, results[i]);
      largest[i] = LargestOf(i, results[i]);
    }
    if (IsOfBlocks()) {
      // All factors before the first store: the blocks' shuffles and divisions interleave.
      float factors[Kind::kVectors];
#pragma unroll
      for (int i = 0; i < Kind::kVectors; ++i) factors[i] = FactorOfBlock(i, largest[i]);
#pragma unroll
      for (int i = 0; i < Kind::kVectors; ++i) Store(i, results[i], factors[i]);
      return;
    }
    float factor = batch_.quantization_factor.narrow;
    if (batch_.quantization_scale == QuantizationScale::kRow) {
#pragma unroll
      for (int i = 1; i < Kind::kVectors; ++i) largest[0] = LargerMagnitude(largest[0], largest[i]);
      factor = FactorOfRow(largest[0], partials);
    }
#pragma unroll
    for (int i = 0; i < Kind::kVectors; ++i) Store(i, results[i], factor);
  }

  __device__ bool IsOfBlocks() const {
    return Kind::kQuantized && batch_.quantization_scale == QuantizationScale::kBlock;
  }

  // The largest magnitude of vector i's results; 0 if it does not exist.
  __device__ float LargestOf(int i, const float (&results)[kCount]) const {
    float largest = 0;
#pragma unroll
    for (const float value : results) largest = LargerMagnitude(largest, value);
    return Exists(i) ? largest : 0;
  }

  // The factor of the block to which vector i belongs, from the largest of the vector: a block is
  // the vectors of adjacent lanes.
  __device__ float FactorOfBlock(int i, float largest) const {
    constexpr int kVectors = static_cast<int>(kQuantizationBlock) / kCount;
    const std::uint32_t of_block = LargestOfBlock<T>(Magnitude(largest), team_.width);
    const QuantizationFactor<float> own(batch_.quantization, FromMagnitude(of_block));
    const int vector = i * size_ + team_.thread;
    if (Exists(i) && vector % kVectors == 0) {
      const int blocks = (vectors_ + kVectors - 1) / kVectors;
      segment().scale_out[NumberOf(batch_, place_) * blocks + vector / kVectors] = own.scale;
    }
    return own.factor;
  }

  // The factor of a row's results, from the thread's largest.
  __device__ float FactorOfRow(float largest, WarpPartials<std::uint32_t>& partials) const {
    const std::uint32_t of_row = LargestOfTeam(Magnitude(largest), team_, partials);
    const QuantizationFactor<float> own(batch_.quantization, FromMagnitude(of_row));
    if (team_.thread == 0 && vectors_ > 0) {
      segment().scale_out[NumberOf(batch_, place_)] = own.scale;
    }
    return own.factor;
  }

  // Calls visit(i, values) with the results of each vector; they are zeros if it does not exist.
  template <typename Visit>
  __device__ void ForResults(const RowScale<float>& scale, Visit visit) {
#pragma unroll 1
    for (int i = 0; i < Kind::kVectors; i += Kind::kStep) {
#pragma unroll
      for (int k = 0; k < Kind::kStep; ++k) {
        float values[kCount] = {};
        if (Kind::kStraight || Exists(i + k)) Result(k, i + k, scale, values);
        visit(i + k, values);
      }
      if constexpr (Kind::kStep < Kind::kVectors) {
        Rotate(x_);
        if constexpr (Kind::kOther) Rotate(second_);
      }
    }
  }

  // Moves the first vectors behind the others.
  template <typename V>
  __device__ static void Rotate(V (&vectors)[Kind::kVectors]) {
#pragma unroll
    for (int i = 0; i + Kind::kStep < Kind::kVectors; ++i) {
      const V front = vectors[i];
      vectors[i] = vectors[i + Kind::kStep];
      vectors[i + Kind::kStep] = front;
    }
  }

  // The results of vector i, which is held at `place`.
  __device__ void Result(int place, int i, const RowScale<float>& scale,
                         float (&values)[kCount]) const {
    Input(place, values);
    if (statistics() == Statistics::kMeanVariance) {
      const float residue = -scale.residue * scale.rstd;
#pragma unroll
      for (float& value : values) value = Fma(value - scale.mean, scale.rstd, residue);
    } else {
#pragma unroll
      for (float& value : values) value *= scale.rstd;
    }
    if (Kind::kStraight || (Kind::kAffine && batch_.affine)) Modulate(i, values);
    if constexpr (Kind::kOther) {
      float others[kCount];
      Unpack<T>(second_[place], others);
      CombineWith(batch_.combine_output, values, others);
    }
  }

  __device__ void Modulate(int i, float (&values)[kCount]) const {
    float factor[kCount], offset[kCount];
    if constexpr (Kind::kTable) {
      table_->Get(i * size_ + team_.thread, factor, offset);
    } else if constexpr (Kind::kDirect) {
      Unpack<T>(Kind::kAhead ? factors_[Kind::kAhead ? i : 0] : LoadFactor(i), factor);
      Unpack<T>(Kind::kAhead ? offsets_[Kind::kAhead ? i : 0] : LoadOffset(i), offset);
      const float more = (Kind::kModulated ? batch_.scale_offset : batch_.weight_offset).narrow;
#pragma unroll
      for (float& value : factor) value += more;
    } else {
      LoadFactors<Kind>(batch_, Channel(i), OfChannels(segment().scale, i),
                        OfChannels(segment().shift, i), factor, offset);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j], factor[j], offset[j]);
  }

  __device__ void Store(int i, const float (&values)[kCount], float factor) const {
    if (!Kind::kQuantized || batch_.quantization == Quantization::kNone) {
      if constexpr (Kind::kStraight) {
        StoreVectorIf(Exists(i), place_.y + Offset(i), Pack<T>(values));
      } else if (Exists(i)) {
        StoreVector(place_.y + Offset(i), Pack<T>(values));
      }
      return;
    }
    if (!Exists(i)) return;
    StoreBytes<kCount>(place_.y + Offset(i) / static_cast<int>(sizeof(T)),
                       Quantize(batch_.quantization, values, factor));
  }

  const StageBatch& batch_;
  const RegisterTeam<Kind>& team_;
  const RegisterPlace& place_;
  const RegisterTable<T>* const table_;
  const int vectors_;  // Per row; 0 if the row does not exist.
  const int size_;
  Held x_[Kind::kVectors];  // After the load, the values to be normalized.
  Vector second_[kKeepsSecond ? Kind::kVectors : 1];
  Vector factors_[Kind::kAhead ? Kind::kVectors : 1];
  Vector offsets_[Kind::kAhead ? Kind::kVectors : 1];
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_REGISTER_ROW_CUH_
