// Any elements of any row, stage by stage: how the general kernels find an element's inputs and
// parameters, at any address and of any type.

#ifndef NORMD_KERNELS_CUDA_STAGES_STAGE_ELEMENTS_CUH_
#define NORMD_KERNELS_CUDA_STAGES_STAGE_ELEMENTS_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/stages/stage_sums.cuh"
#include "kernels/cuda/stages/stage_values.cuh"

namespace normd::norm::cuda {

// Elements [first, first + kPerVector<T>) of a row; the present ones come first.
struct StageElements {
  std::int64_t first;
  int present;
};

template <typename T, Samples kSamples = Samples::kTogether>
class StageAccess {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerVector<T>;

  __device__ StageAccess(const StageBatch& batch, const StageRow& row) : batch_(batch), row_(row) {}

  // Elements of a tensor of x's shape; zeros after the present ones.
  __device__ void Load(const char* tensor, const StageElements& at, A (&values)[kCount]) const {
    if (batch_.aligned && at.present == kCount) {
      const std::int64_t offset = (row_.begin + at.first) * static_cast<std::int64_t>(sizeof(T));
      Unpack<T>(*reinterpret_cast<const Vector*>(tensor + offset), values);
      return;
    }
    const T* const elements = reinterpret_cast<const T*>(tensor);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = 0;
      if (i < at.present) values[i] = Widen(elements[PlaceOf(batch_, row_, at.first + i)]);
    }
  }

  __device__ void Store(char* tensor, const StageElements& at, const A (&values)[kCount]) const {
    if (batch_.aligned && at.present == kCount) {
      const std::int64_t offset = (row_.begin + at.first) * static_cast<std::int64_t>(sizeof(T));
      StoreVector(tensor + offset, Pack<T>(values));
      return;
    }
    T* const elements = reinterpret_cast<T*>(tensor);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < at.present) elements[PlaceOf(batch_, row_, at.first + i)] = Narrow<T>(values[i]);
    }
  }

  __device__ void StoreQuantized(const StageElements& at, const A (&values)[kCount],
                                 A factor) const {
    const uint2 bytes = Quantize(batch_.quantization, values, factor);
    char* const y = YOf<kSamples>(batch_, row_);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < at.present) {
        y[PlaceOf(batch_, row_, at.first + i)] =
            static_cast<char>((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8));
      }
    }
  }

  // The values to be normalized. `written`: the first pass has left them in residual_out.
  __device__ void Input(const StageElements& at, bool written, A (&values)[kCount]) const {
    const StageSegment& segment = *row_.segment;
    if (written) {
      Load(segment.residual_out, at, values);
      return;
    }
    Load(XOf<kSamples>(batch_, row_), at, values);
    A others[kCount];
    if (batch_.combine_input != Combine::kNone) {
      Load(segment.other, at, others);
      CombineWith(batch_.combine_input, values, others);
      return;
    }
    const bool bias = batch_.input_bias.data != nullptr;
    if (!bias && !batch_.residual) return;
#pragma unroll 1
    for (int step = 0; step < 2; ++step) {
      const ParamVector gate = {segment.gate, batch_.dtype};
      const ParamVector param = step == 0 ? batch_.input_bias : gate;
      if (param.data == nullptr) continue;
      LoadOfChannels(param, step == 0 ? 0 : row_.sample * batch_.channels, at, others);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = step == 0 ? values[i] + others[i] : values[i] * others[i];
      }
    }
    if (batch_.residual) {
      Load(segment.residual, at, others);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += others[i];
    }
    RoundTo<T>(values);
  }

  // With StageBatch::scaled_first: turns the values to be normalized into those still to be
  // multiplied with rstd.
  __device__ void ScaleFirst(const StageElements& at, A (&values)[kCount]) const {
    if (batch_.gamma.data == nullptr) return;
    A factor[kCount];
    LoadOfChannels(batch_.gamma, 0, at, factor);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] *= factor[i] + batch_.weight_offset.template As<A>();
    }
  }

  // Turns the values to be normalized into the results to be written or quantized. With
  // Style::kTensor the deviation and the mean of the second tensor are given.
  __device__ void Result(const StageElements& at, const RowScale<A>& scale, A style_deviation,
                         A style_mean, A (&values)[kCount]) const {
    if (batch_.statistics == Statistics::kMeanVariance) {
      const A shift = -scale.residue * scale.rstd;
#pragma unroll
      for (A& value : values) value = Fma(value - scale.mean, scale.rstd, shift);
    } else if (batch_.statistics != Statistics::kGiven) {
#pragma unroll
      for (A& value : values) value *= scale.rstd;
    }
    A factor[kCount], offset[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      factor[i] = style_deviation;
      offset[i] = style_mean;
    }
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) ApplyStep(step, at, values, factor, offset);
    if (batch_.affine) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = Fma(values[i], factor[i], offset[i]);
    }
    if (batch_.activation != Activation::kNone) {
      Activate<A>(batch_.activation, batch_.leaky_slope.template As<A>(), values);
    }
    if (batch_.combine_output != Combine::kNone) {
      A others[kCount];
      Load(row_.segment->other, at, others);
      CombineWith(batch_.combine_output, values, others);
    }
  }

 private:
  // The arrays with a value per channel, in the order in which they apply.
  enum Step { kMean, kVariance, kGamma, kBeta, kScale, kShift, kSteps };

  __device__ ParamVector ParamOf(int step) const {
    const StageSegment& segment = *row_.segment;
    switch (step) {
      case kMean: return batch_.mean;
      case kVariance: return batch_.variance;
      case kGamma: return batch_.gamma;
      case kBeta: return batch_.beta;
      case kScale: return {segment.scale, batch_.dtype};
      default: return {segment.shift, batch_.dtype};
    }
  }

  __device__ void ApplyStep(int step, const StageElements& at, A (&values)[kCount],
                            A (&factor)[kCount], A (&offset)[kCount]) const {
    const ParamVector param = ParamOf(step);
    if (param.data == nullptr) return;
    const bool has_offset = batch_.beta.data != nullptr || batch_.style == Style::kTensor;
    A own[kCount];
    if (step == kGamma || step == kBeta) {
      LoadStyle(param, at, own);
    } else {
      LoadOfChannels(param, step < kScale ? 0 : row_.sample * batch_.channels, at, own);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      switch (step) {
        case kMean: values[i] -= own[i]; break;
        case kVariance: values[i] *= ReciprocalRoot(own[i], batch_.eps.template As<A>()); break;
        case kGamma: factor[i] = own[i] + batch_.weight_offset.template As<A>(); break;
        case kBeta: offset[i] = own[i]; break;
        case kScale: {
          const A scale = batch_.scale_offset.template As<A>() + own[i];
          factor[i] *= scale;
          if (has_offset) offset[i] *= scale;
          break;
        }
        default: offset[i] += own[i];
      }
    }
  }

  // gamma or beta, from the sample's row of a table, or mixed from all rows.
  __device__ void LoadStyle(const ParamVector& param, const StageElements& at,
                            A (&values)[kCount]) const {
    const void* const style = row_.segment->style;
    if (batch_.style == Style::kMix) {
      const ParamVector weights = {style, batch_.dtype};
#pragma unroll
      for (A& value : values) value = 0;
#pragma unroll 1
      for (std::int64_t k = 0; k < batch_.styles; ++k) {
        A row[kCount];
        LoadOfChannels(param, k * batch_.channels, at, row);
        const A weight = LoadParam(weights, row_.sample * batch_.styles + k, A(0));
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] = Fma(weight, row[i], values[i]);
      }
      return;
    }
    std::int64_t index = 0;
    if (batch_.style == Style::kIndex) {
      index = __ldg(static_cast<const long long*>(style) + row_.sample);
    }
    const bool known = batch_.style != Style::kIndex || (index >= 0 && index < batch_.styles);
    LoadOfChannels(param, known ? index * batch_.channels : 0, at, values);
#pragma unroll
    for (A& value : values) value = known ? value : static_cast<A>(NAN);
  }

  // An array of one element for each channel, which begins at element `offset` of `param`.
  __device__ void LoadOfChannels(const ParamVector& param, std::int64_t offset,
                                 const StageElements& at, A (&values)[kCount]) const {
#pragma unroll
    for (A& value : values) value = 0;
    if (at.present == 0) return;
    const std::int64_t begin = offset + row_.first_channel;
    const std::int64_t first = ChannelOf(batch_, row_, at.first);
    const std::int64_t last = ChannelOf(batch_, row_, at.first + at.present - 1);
    const bool each = batch_.places == RowPlaces::kChannelsLast || row_.segment->channel_run == 1;
    if (each && last == first + at.present - 1) {
      LoadParams(param, begin + first, at.present, A(0), values);
    } else if (!each && first == last) {
      const A value = LoadParam(param, begin + first, A(0));
#pragma unroll
      for (A& each_value : values) each_value = value;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i >= at.present) continue;
        values[i] = LoadParam(param, begin + ChannelOf(batch_, row_, at.first + i), A(0));
      }
    }
  }

  const StageBatch& batch_;
  const StageRow& row_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_STAGE_ELEMENTS_CUH_
