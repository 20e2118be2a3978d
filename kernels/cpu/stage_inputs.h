// What the stages take beside tensors of x's shape, in the form that the loops take: arrays of the
// accumulation type.

#ifndef NORMD_KERNELS_CPU_STAGE_INPUTS_H_
#define NORMD_KERNELS_CPU_STAGE_INPUTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/batch.h"
#include "kernels/norm.h"

namespace normd::norm::cpu {

// A value per channel, or per sample and channel. Absent if there is none.
template <class Acc>
class ChannelArray {
 public:
  bool present() const { return values_ != nullptr; }
  bool per_sample() const { return per_sample_; }

  // The channels of a sample; null if absent.
  const Acc* Of(std::int64_t sample) const {
    if (!present()) return nullptr;
    return values_.get() + (per_sample_ ? sample * channels_ : 0);
  }
  // From a channel on.
  const Acc* Of(std::int64_t sample, std::int64_t channel) const {
    return present() ? Of(sample) + channel : nullptr;
  }
  double At(std::int64_t sample, std::int64_t channel, double absent) const {
    return present() ? static_cast<double>(Of(sample)[channel]) : absent;
  }

  // Makes it present; the values are set by the caller.
  Acc* Resize(std::int64_t samples, std::int64_t channels, bool per_sample) {
    channels_ = channels;
    per_sample_ = per_sample;
    values_ = std::make_unique_for_overwrite<Acc[]>(
        static_cast<std::size_t>((per_sample ? samples : 1) * channels));
    return values_.get();
  }

 private:
  std::unique_ptr<Acc[]> values_;
  std::int64_t channels_ = 0;
  bool per_sample_ = false;
};

// Constant after construction.
template <class Acc>
struct StageInputs {
  // Of a valid segment.
  StageInputs(const Batch& batch, const NormParams& params, const Segment& segment);

  // The normalized value is multiplied with `factor`, then `offset` is added.
  ChannelArray<Acc> factor;
  ChannelArray<Acc> offset;
  ChannelArray<Acc> input_bias;
  ChannelArray<Acc> gate;
};

// InvalidArgument if a sample names a style that the table does not have.
Status CheckStyleIndexes(const NormSpec& spec, const Segment* segments, std::size_t count);

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STAGE_INPUTS_H_
