// Given statistics: mean and variance per channel, as parameters.

#ifndef NORMD_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_CUH_
#define NORMD_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_CUH_

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.h"

namespace normd::norm::cuda {

// A part of a kernel parameter.
struct GivenStatistics {
  GivenStatistics() = default;
  GivenStatistics(const NormSpec& spec, const NormParams& norm_params)
      : params(norm_params),
        eps(spec.eps),
        leaky_slope(spec.leaky_slope),
        activation(spec.activation) {}

  NormParams params;
  Constant eps;
  Constant leaky_slope;
  Activation activation;
};

// How one channel is scaled: y = (x - mean) * factor + offset.
template <typename A>
class ChannelScale {
 public:
  ChannelScale() = default;
  __device__ ChannelScale(const GivenStatistics& given, std::int64_t channel) {
    const NormParams& params = given.params;
    mean_ = LoadParam(params.mean, channel, A(0));
    factor_ = ReciprocalRoot(LoadParam(params.variance, channel, A(1)), given.eps.As<A>()) *
              LoadParam(params.gamma, channel, A(1));
    offset_ = LoadParam(params.beta, channel, A(0));
  }
  __device__ A Apply(A value) const { return Fma(value - mean_, factor_, offset_); }

 private:
  A mean_;
  A factor_;
  A offset_;
};

// The two halves of LaunchElementwise.
Status LaunchElementwiseFirst(const Launch& launch);  // Channels first.
Status LaunchElementwiseChannelsLast(
    const Launch& launch);  // Channels last, or no trailing dimensions.

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_CUH_
