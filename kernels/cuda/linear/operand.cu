// Makes the operands of the fused layer's products: from x of a batch, or from the weights, once at
// load. One block takes a row, a thread eight elements at a time.
//
// float16 has 11 bits, two of them 22, but nothing below 2^-24. So a row is first multiplied with
// the power of two that takes its largest element to [2^14, 2^15): elements down to 2^-16 of that
// keep all 22 bits, and none loses more than 2^-39 of the largest. The product is then multiplied
// with the inverse powers, exactly. Rows of float16 stay as they are.

#include <type_traits>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/linear/linear_launch.h"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr int kPiece = 8;  // Elements; 16 bytes of a part.

constexpr int kHeld = 4;  // A thread's pieces in registers.
constexpr std::int64_t kStride = std::int64_t{kThreads} * kPiece;
constexpr std::int64_t kResident = kHeld * kStride;

// The elements of a row of the operand; none for rows after the source's.
template <typename T>
__device__ inline const T* FindSource(const OperandTask& task, std::int64_t row) {
  if (row >= task.present) return nullptr;
  if (task.source.data != nullptr) {
    return static_cast<const T*>(task.source.data) + row * task.columns;
  }
  std::int32_t begin = 0;
  int segment = 0;
  while (task.batch.segments[segment].end <= row) begin = task.batch.segments[segment++].end;
  return reinterpret_cast<const T*>(task.batch.segments[segment].x) + (row - begin) * task.columns;
}

__device__ inline float BlockMax(float value) {
  __shared__ float warps[kWarps];
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  if (threadIdx.x % kLanes == 0) warps[threadIdx.x / kLanes] = value;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) value = fmaxf(value, warps[i]);
  return value;
}

// The exponent of the power of two that takes `largest` to [2^14, 2^15), limited to normal numbers.
// A row with an infinity or of zeros is not scaled.
__device__ inline int ScaleExponent(float largest) {
  const int biased = static_cast<int>(__float_as_uint(largest) >> 23);
  if (biased == 255 || largest == 0) return 0;
  return min(14 + 127 - max(biased, 1), 126);
}

__device__ inline float RoundToTf32(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  const std::uint32_t odd = (bits >> 13) & 1;
  return __uint_as_float((bits + 0xfffu + odd) & ~0x1fffu);
}

__device__ inline float RoundPlain(float value, OperandFormat format) {
  if (format == OperandFormat::kRoundedTf32) return RoundToTf32(value);
  if (format == OperandFormat::kRoundedBFloat16) return Widen(Narrow<BFloat>(value));
  return value;
}

// Splits values into float16 and its rounding error.
__device__ inline void Split(const float (&values)[kPiece], Vector* high, Vector* low) {
  float rest[kPiece];
  *high = Pack<Half>(values);
  Unpack<Half>(*high, rest);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) rest[i] = values[i] - rest[i];
  *low = Pack<Half>(rest);
}

// Where a row of the operand lies.
class RowPlace {
 public:
  __device__ RowPlace(const OperandTask& task, std::int64_t row) : task_(task) {
    const std::int64_t block = row / task.block_rows;
    const int in_block = static_cast<int>(row - block * task.block_rows);
    swizzle_ = in_block % 8;
    part_bytes_ = task.block_rows * kStepBytes;
    tensor_ = static_cast<char*>(task.operand) +
              block * (task.k / kStepElements) * task.parts * part_bytes_ + in_block * kStepBytes;
    plain_ = static_cast<float*>(task.operand) + row * task.k;
  }

  __device__ void Store(std::int64_t column, float scale, float (&values)[kPiece]) const {
    if (task_.format == OperandFormat::kBFloat16) {
      *reinterpret_cast<Vector*>(At(column)) = Pack<BFloat>(values);
      return;
    }
    if (task_.format == OperandFormat::kSplitFloat16) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) values[i] *= scale;
      Vector high, low;
      Split(values, &high, &low);
      char* const place = At(column);
      *reinterpret_cast<Vector*>(place) = high;
      if (task_.parts == 2) *reinterpret_cast<Vector*>(place + part_bytes_) = low;
      return;
    }
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] = RoundPlain(values[i], task_.format);
    float4* const place = reinterpret_cast<float4*>(plain_ + column);
    place[0] = make_float4(values[0], values[1], values[2], values[3]);
    place[1] = make_float4(values[4], values[5], values[6], values[7]);
  }

 private:
  // The piece's first part.
  __device__ char* At(std::int64_t column) const {
    const int piece = static_cast<int>(column % kStepElements) / kPiece;
    return tensor_ + column / kStepElements * task_.parts * part_bytes_ +
           (piece ^ swizzle_) * kVectorBytes;
  }

  const OperandTask& task_;
  int swizzle_;
  int part_bytes_;
  char* tensor_;
  float* plain_;
};

template <typename T>
__device__ inline void LoadPiece(const OperandTask& task, const T* source, std::int64_t column,
                                 float (&values)[kPiece]) {
#pragma unroll
  for (int i = 0; i < kPiece; ++i) values[i] = 0;
  if (source == nullptr || column >= task.columns) return;
  const std::int64_t left = task.columns - column;
  LoadParamsOf<T>(source, column, left < kPiece ? static_cast<int>(left) : kPiece, values);
}

__device__ inline float Largest(const float (&values)[kPiece], float largest) {
#pragma unroll
  for (int i = 0; i < kPiece; ++i) largest = fmaxf(largest, fabsf(values[i]));
  return largest;
}

// kHolds: rows of at most kResident elements, read once.
template <typename T, bool kHolds>
__global__ void __launch_bounds__(kThreads)
    OperandKernel(const __grid_constant__ OperandTask task) {
  LetNextKernelBegin();
  const std::int64_t row = blockIdx.x;
  const T* const source = FindSource<T>(task, row);
  const RowPlace place(task, row);
  const std::int64_t begin = std::int64_t{threadIdx.x} * kPiece;
  float held[kHolds ? kHeld : 1][kPiece];
  if constexpr (kHolds) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) LoadPiece(task, source, begin + i * kStride, held[i]);
  }
  int exponent = 0;
  if (task.format == OperandFormat::kSplitFloat16 && !std::is_same_v<T, Half>) {
    float largest = 0;
    if constexpr (kHolds) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) largest = Largest(held[i], largest);
    } else {
      for (std::int64_t column = begin; column < task.columns; column += kStride) {
        LoadPiece(task, source, column, held[0]);
        largest = Largest(held[0], largest);
      }
    }
    exponent = ScaleExponent(BlockMax(largest));
  }
  const float scale = __int_as_float((exponent + 127) << 23);
  if (threadIdx.x == 0) task.exponents[row] = exponent;
  if constexpr (kHolds) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (begin + i * kStride < task.k) place.Store(begin + i * kStride, scale, held[i]);
    }
  } else {
    for (std::int64_t column = begin; column < task.k; column += kStride) {
      LoadPiece(task, source, column, held[0]);
      place.Store(column, scale, held[0]);
    }
  }
}

template <typename T>
cudaError_t Launch(const OperandTask& task, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(task.rows);
  if (task.k <= kResident) {
    OperandKernel<T, true><<<blocks, kThreads, 0, stream>>>(task);
  } else {
    OperandKernel<T, false><<<blocks, kThreads, 0, stream>>>(task);
  }
  return cudaGetLastError();
}

__global__ void BiasKernel(ParamVector source, std::int64_t present, std::int64_t rows,
                           float* bias) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < rows) bias[row] = row < present ? LoadParam(source, row, 0.f) : 0.f;
}

}  // namespace

cudaError_t LaunchOperand(const OperandTask& task, cudaStream_t stream) {
  switch (task.dtype) {
    case DType::kFloat64: return Launch<double>(task, stream);
    case DType::kFloat16: return Launch<Half>(task, stream);
    case DType::kBFloat16: return Launch<BFloat>(task, stream);
    default: return Launch<float>(task, stream);
  }
}

cudaError_t LaunchBias(const ParamVector& source, std::int64_t present, std::int64_t rows,
                       float* bias, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  BiasKernel<<<blocks, kThreads, 0, stream>>>(source, present, rows, bias);
  return cudaGetLastError();
}

}  // namespace normd::norm::cuda
