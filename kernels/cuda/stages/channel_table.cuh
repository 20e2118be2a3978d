// The factors of the channels in a part of a row, in shared memory: for rows whose elements share
// channels, in runs or, channels last, in turn.

#ifndef NORMD_KERNELS_CUDA_STAGES_CHANNEL_TABLE_CUH_
#define NORMD_KERNELS_CUDA_STAGES_CHANNEL_TABLE_CUH_

#include "kernels/cuda/stages/stage_values.cuh"

namespace normd::norm::cuda {

class ChannelTable {
 public:
  // For `elements` elements of a row from `first` on; 0 entries: there is no table.
  __device__ ChannelTable(const StageBatch& batch, const StageRow& row, int first, int elements,
                          int entries, float4* memory)
      : batch_(batch),
        row_(row),
        memory_(memory),
        first_(static_cast<std::uint32_t>(first)),
        in_turn_(batch.places == RowPlaces::kChannelsLast),
        entries_(entries) {
    if (entries == 0) return;
    const Divisor& run = row.segment->run;
    first_channel_ = in_turn_ ? 0 : run.Divide(first_);
    const auto last = static_cast<std::uint32_t>(first + elements - 1);
    count_ = elements == 0 ? 0
             : in_turn_    ? static_cast<std::uint32_t>(batch.channels_per_group)
                           : run.Divide(last) + 1 - first_channel_;
  }

  __device__ bool exists() const { return entries_ > 0; }

  // All threads of the block call it together.
  __device__ void Fill() const {
    if (!exists()) return;
    for (std::uint32_t i = threadIdx.x; i < count_; i += blockDim.x) {
      memory_[i] = TermsOf(row_.first_channel + first_channel_ + i);
    }
    __syncthreads();
  }

  // The factor and offset of normalized elements, and the gate, of an element's channel, by the
  // element's place in the part.
  __device__ float4 Of(int element) const { return memory_[EntryOf(element)]; }

  // Whether the present elements from `element` on have one channel.
  __device__ bool HasOneChannel(int element, int present) const {
    return EntryOf(element) == EntryOf(element + present - 1);
  }

  // Scales and shifts the present elements from `element` on. kOne: they have one channel.
  template <bool kOne, int N>
  __device__ void Modulate(int element, int present, float (&values)[N]) const {
    std::uint32_t entry = EntryOf(element);
    float4 terms = memory_[entry];
    if constexpr (kOne) {
#pragma unroll
      for (float& value : values) value = Fma(value, terms.x, terms.y);
    } else {
      const std::uint32_t run = row_.segment->run.value();
      const std::uint32_t place = first_ + static_cast<std::uint32_t>(element);
      std::uint32_t left = in_turn_ ? 1 : (first_channel_ + entry + 1) * run - place;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = Fma(values[i], terms.x, terms.y);
        if (--left > 0 || i + 1 >= present) continue;
        left = in_turn_ ? 1 : run;
        if (++entry == count_) entry = 0;
        terms = memory_[entry];
      }
    }
  }

 private:
  __device__ std::uint32_t EntryOf(int element) const {
    const std::uint32_t place = first_ + static_cast<std::uint32_t>(element);
    if (in_turn_) return place % count_;
    return row_.segment->run.Divide(place) - first_channel_;
  }

  // gamma or beta; with kMix summed in the order of the table.
  __device__ float OfStyle(const ParamVector& param, std::int64_t channel) const {
    const void* const style = row_.segment->style;
    if (batch_.style == Style::kMix) {
      const ParamVector weights = {style, batch_.dtype};
      float sum = 0;
      for (std::int64_t k = 0; k < batch_.styles; ++k) {
        sum = Fma(LoadParam(weights, row_.sample * batch_.styles + k, 0.0f),
                  LoadParam(param, k * batch_.channels + channel, 0.0f), sum);
      }
      return sum;
    }
    std::int64_t index = 0;
    if (batch_.style == Style::kIndex) {
      index = __ldg(static_cast<const long long*>(style) + row_.sample);
      if (index < 0 || index >= batch_.styles) return NAN;
    }
    return LoadParam(param, index * batch_.channels + channel, 0.0f);
  }

  __device__ float4 TermsOf(std::int64_t channel) const {
    const StageSegment& segment = *row_.segment;
    const std::int64_t of_sample = row_.sample * batch_.channels + channel;
    float4 terms = make_float4(1, 0, 0, 0);
    if (batch_.gamma.data != nullptr) {
      terms.x = OfStyle(batch_.gamma, channel) + batch_.weight_offset.narrow;
    }
    if (batch_.beta.data != nullptr) terms.y = OfStyle(batch_.beta, channel);
    if (segment.scale != nullptr) {
      const ParamVector param = {segment.scale, batch_.dtype};
      const float scale = batch_.scale_offset.narrow + LoadParam(param, of_sample, 0.0f);
      terms.x *= scale;
      if (batch_.beta.data != nullptr) terms.y *= scale;
    }
    terms.y += LoadParam({segment.shift, batch_.dtype}, of_sample, -0.0f);
    terms.z = LoadParam({segment.gate, batch_.dtype}, of_sample, 0.0f);
    return terms;
  }

  const StageBatch& batch_;
  const StageRow& row_;
  float4* const memory_;
  const std::uint32_t first_;
  const bool in_turn_;
  const int entries_;
  std::uint32_t first_channel_ = 0;  // The first channel of the row's group.
  std::uint32_t count_ = 0;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_CHANNEL_TABLE_CUH_
