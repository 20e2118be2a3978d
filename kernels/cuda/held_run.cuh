// A run in registers (memory.cuh) from its statistics to its results: what the kernels that hold
// rows in registers share.

#ifndef NORMD_KERNELS_CUDA_HELD_RUN_CUH_
#define NORMD_KERNELS_CUDA_HELD_RUN_CUH_

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/rows.cuh"

namespace normd::norm::cuda {

// How a kernel finds gamma and beta, fixed when it is compiled so that the common case is short.
// One gamma and perhaps one beta for each element, of type P, where 16-byte loads can fetch them
// from each row's first channel on; an activation if kActivated.
template <typename P, bool kActivated>
struct ElementParams {};
// Any others.
struct AnyParams {};

template <typename T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float>    ? DType::kFloat32
                                  : std::is_same_v<T, double> ? DType::kFloat64
                                  : std::is_same_v<T, Half>   ? DType::kFloat16
                                                              : DType::kBFloat16;

// Whether the parameters that are there can be ElementParams of P.
template <typename P>
bool AreElementParams(const Launch& launch, const RowBatch& batch) {
  const auto fits = [](const ParamVector& param) {
    return param.data == nullptr ||
           (param.dtype == kDTypeOf<P> &&
            reinterpret_cast<std::uintptr_t>(param.data) % kGranuleBytes == 0);
  };
  bool one_position = true;
  for (int i = 0; i < batch.segment_count; ++i) one_position &= batch.segments[i].spatial == 1;
  return one_position && batch.gamma.data != nullptr && fits(batch.gamma) && fits(batch.beta) &&
         (launch.spec.groups == 1 ||
          batch.channels_per_group * static_cast<std::int64_t>(sizeof(P)) % kGranuleBytes == 0);
}

// Calls function(ElementParams<...>()) or function(AnyParams()) as the launch's parameters are.
template <typename T, typename Function>
auto WithParams(const Launch& launch, const RowBatch& batch, Function function) {
  const bool activated = launch.spec.activation != Activation::kNone;
  if (AreElementParams<T>(launch, batch)) {
    return activated ? function(ElementParams<T, true>()) : function(ElementParams<T, false>());
  }
  if constexpr (sizeof(T) == 2) {
    if (!activated && AreElementParams<float>(launch, batch)) {
      return function(ElementParams<float, false>());
    }
  }
  return function(AnyParams());
}

// kPerGranule<T> elements of an element parameter, from an address that 16-byte loads like.
template <typename T, typename P>
__device__ inline void LoadElementParams(const P* address,
                                         Accumulator<T> (&values)[kPerGranule<T>]) {
  constexpr int kCount = kPerGranule<T>;
  static_assert(kCount % kPerGranule<P> == 0, "16-byte loads");
#pragma unroll
  for (int i = 0; i < kCount; i += kPerGranule<P>) {
    Accumulator<P> part[kPerGranule<P>];
    Unpack<P>(__ldg(reinterpret_cast<const uint4*>(address + i)), part);
#pragma unroll
    for (int j = 0; j < kPerGranule<P>; ++j) values[i + j] = static_cast<Accumulator<T>>(part[j]);
  }
}

// Turns a run of a row into results and stores them. `begin` is the run's first byte in the row,
// `bytes` how many of the run exist; the granules are left in any state.
template <typename T, bool kAligned, int G>
class RunFinish {
 public:
  using A = Accumulator<T>;
  static constexpr int kCount = kPerGranule<T>;

  __device__ RunFinish(const RowBatch& batch, const Row& row, const RowScale<A>& scale, int begin,
                       int bytes, int lane, int width)
      : batch_(batch),
        row_(row),
        scale_(scale),
        begin_(begin),
        bytes_(bytes),
        whole_(bytes / kGranuleBytes),
        lane_(lane),
        width_(width) {}

  template <typename P, bool kActivated>
  __device__ void Apply(ElementParams<P, kActivated>, Granule (&granules)[G]) const {
    // Without this the elements stay unpacked from the sums on, in twice the registers.
#pragma unroll
    for (int i = 0; i < G; ++i) Repack(granules[i]);
    if constexpr (kActivated) {
      WithActivation(batch_.activation, [&](auto activation) {
        ScaleByElement<P, decltype(activation)::value>(granules);
      });
    } else {
      ScaleByElement<P, Activation::kNone>(granules);
    }
    if constexpr (!kAligned) Store(granules);
  }

  __device__ void Apply(AnyParams, Granule (&granules)[G]) const {
#pragma unroll
    for (int i = 0; i < G; ++i) Repack(granules[i]);
    const std::int64_t first = begin_ / static_cast<int>(sizeof(T));
    const RunEpilogue<T> epilogue(batch_, row_, scale_, first,
                                  first + bytes_ / static_cast<int>(sizeof(T)));
    const std::int64_t element = first + lane_ * kCount;
    if (epilogue.few_channels()) {
      const int of_first = epilogue.GranulesOfFirst(element, width_ * kCount, G);
      WithActivation(batch_.activation, [&](auto activation) {
        constexpr Activation kActivation = decltype(activation)::value;
#pragma unroll
        for (int i = 0; i < G; ++i) {
          const Granule result =
              epilogue.template ApplyInChannel<kActivation>(granules[i], i < of_first);
          // What is not whole stays as it is for the tail below.
          granules[i] = Select(kAligned || i * width_ + lane_ < whole_, result, granules[i]);
        }
      });
    } else {
      // A loop that passes the granules on from place to place, because this code is large.
#pragma unroll 1
      for (int index = 0; index < G; ++index) {
        Granule done = granules[0];
        if (index * width_ + lane_ < whole_) {
          done = epilogue.Apply(granules[0], element + index * width_ * kCount, kCount);
        }
#pragma unroll
        for (int i = 0; i + 1 < G; ++i) granules[i] = granules[i + 1];
        granules[G - 1] = done;
      }
    }
    if constexpr (!kAligned) {
      const RunTail<T> tail(bytes_, lane_, width_);
      if (tail.present > 0) {
        Put(granules, tail.index,
            epilogue.Apply(Pick(granules, tail.index), element + tail.index * width_ * kCount,
                           tail.present));
      }
    }
    Store(granules);
  }

 private:
  __device__ void Store(Granule (&granules)[G]) const {
    StoreRun<T, kAligned>(row_.y + begin_, kAligned ? 0 : Misalignment(row_.y), bytes_, lane_,
                          width_, granules);
  }

  // Scales the granules, and stores them where they are aligned.
  template <typename P, Activation kActivation>
  __device__ void ScaleByElement(Granule (&granules)[G]) const {
    const int lane_element = begin_ / static_cast<int>(sizeof(T)) + lane_ * kCount;
    const P* const gamma = static_cast<const P*>(batch_.gamma.data) + row_.first_channel;
    const P* const beta = static_cast<const P*>(batch_.beta.data) + row_.first_channel;
    char* const y = row_.y + begin_ + lane_ * kGranuleBytes;
    const bool has_beta = batch_.beta.data != nullptr;
#pragma unroll
    for (int i = 0; i < G; ++i) {
      if (i * width_ + lane_ >= whole_) continue;
      A g[kCount], b[kCount] = {};
      LoadElementParams<T>(gamma + (lane_element + i * width_ * kCount), g);
      if (has_beta) LoadElementParams<T>(beta + (lane_element + i * width_ * kCount), b);
      granules[i] = Scaled<kActivation>(granules[i], g, b);
      if constexpr (kAligned) StoreGranule(y + i * width_ * kGranuleBytes, granules[i]);
    }
    if constexpr (!kAligned) {
      const RunTail<T> tail(bytes_, lane_, width_);
      if (tail.present == 0) return;
      const std::int64_t index = row_.first_channel + lane_element + tail.index * width_ * kCount;
      A g[kCount] = {}, b[kCount] = {};
      LoadParamsOf<P>(batch_.gamma.data, index, tail.present, g);
      if (has_beta) LoadParamsOf<P>(batch_.beta.data, index, tail.present, b);
      Put(granules, tail.index, Scaled<kActivation>(Pick(granules, tail.index), g, b));
    }
  }

  template <Activation kActivation>
  __device__ Granule Scaled(const Granule& granule, const A (&gamma)[kCount],
                            const A (&beta)[kCount]) const {
    A values[kCount];
    Unpack<T>(granule, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = Activate<T, kActivation>(scale_of_run().ByElement(values[i], gamma[i], beta[i]),
                                           batch_.leaky_slope);
    }
    return Pack<T>(values);
  }

  __device__ RunScale<T> scale_of_run() const { return RunScale<T>(scale_); }

  const RowBatch& batch_;
  const Row& row_;
  const RowScale<A>& scale_;
  const int begin_;
  const int bytes_;
  const int whole_;  // Granules of the run.
  const int lane_;
  const int width_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_HELD_RUN_CUH_
