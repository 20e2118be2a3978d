// The factors and offsets of the rows of register_rows.cu: loaded with each row, or shared by
// several.

#ifndef NORMD_KERNELS_CUDA_STAGES_REGISTER_FACTORS_CUH_
#define NORMD_KERNELS_CUDA_STAGES_REGISTER_FACTORS_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/stages/register_kind.cuh"

namespace normd::norm::cuda {

// Elements [index, index + N) of an array of type P at an address that suits 16-byte loads.
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

// gamma or beta of kPerVector<T> channels, in T or float32.
template <typename T>
__device__ inline void LoadPackedParam(const ParamVector& param, int channel,
                                       float (&values)[kPerVector<T>]) {
  if (sizeof(T) == 4 || param.dtype == DType::kFloat32) {
    LoadWhole<float>(param.data, channel, values);
  } else {
    LoadWhole<T>(param.data, channel, values);
  }
}

// The factors and offsets of a vector's normalized elements, from its first channel in the first
// group's arrays and the addresses of its channels in the sample's arrays.
template <typename Kind>
__device__ inline void LoadFactors(const StageBatch& batch, int channel, const char* scale,
                                   const char* shift,
                                   float (&factor)[kPerVector<typename Kind::Type>],
                                   float (&offset)[kPerVector<typename Kind::Type>]) {
  using T = typename Kind::Type;
  constexpr int kCount = kPerVector<T>;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    factor[j] = 1;
    offset[j] = 0;
  }
  if (batch.gamma.data != nullptr) {
    LoadPackedParam<T>(batch.gamma, channel, factor);
#pragma unroll
    for (float& value : factor) value += batch.weight_offset.narrow;
  }
  if (batch.beta.data != nullptr) LoadPackedParam<T>(batch.beta, channel, offset);
  if constexpr (Kind::kModulated) {
    float own[kCount];
    if (batch.scale) {
      LoadWhole<T>(scale, 0, own);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        own[j] += batch.scale_offset.narrow;
        factor[j] *= own[j];
      }
      if (batch.beta.data != nullptr) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) offset[j] *= own[j];
      }
    }
    if (batch.shift) {
      LoadWhole<T>(shift, 0, own);
#pragma unroll
      for (int j = 0; j < kCount; ++j) offset[j] += own[j];
    }
  }
}

// The factors and offsets of a row's elements, in shared memory. Four floats of a vector's channels
// are adjacent, beside those of the next vector, so that lanes read consecutive bytes.
template <typename T>
class RegisterTable {
 public:
  static constexpr int kCount = kPerVector<T>;

  __device__ RegisterTable(float4* memory, int vectors)
      : memory_(memory), address_(SharedAddress(memory)), vectors_(vectors) {}

  static std::size_t Bytes(std::int64_t elements) {
    return static_cast<std::size_t>(elements) * 2 * sizeof(float);
  }

  __device__ void Put(int vector, const float (&factor)[kCount], const float (&offset)[kCount]) {
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      memory_[k * vectors_ + vector] = FloatsOf(factor, k);
      memory_[(kParts + k) * vectors_ + vector] = FloatsOf(offset, k);
    }
  }
  // For a vector that does not exist, the values of the last one.
  __device__ void Get(int vector, float (&factor)[kCount], float (&offset)[kCount]) const {
    const std::uint32_t stride = vectors_ * kVectorBytes;
    std::uint32_t from = address_ + min(vector, vectors_ - 1) * kVectorBytes;
#pragma unroll
    for (int k = 0; k < kParts; ++k, from += stride) Take(ReadShared(from), k, factor);
#pragma unroll
    for (int k = 0; k < kParts; ++k, from += stride) Take(ReadShared(from), k, offset);
  }

 private:
  static constexpr int kParts = kCount / 4;

  __device__ static float4 FloatsOf(const float (&values)[kCount], int k) {
    return make_float4(values[4 * k], values[4 * k + 1], values[4 * k + 2], values[4 * k + 3]);
  }
  __device__ static void Take(const Vector& part, int k, float (&values)[kCount]) {
    values[4 * k] = __uint_as_float(part.x);
    values[4 * k + 1] = __uint_as_float(part.y);
    values[4 * k + 2] = __uint_as_float(part.z);
    values[4 * k + 3] = __uint_as_float(part.w);
  }

  float4* const memory_;
  const std::uint32_t address_;
  const int vectors_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_REGISTER_FACTORS_CUH_
