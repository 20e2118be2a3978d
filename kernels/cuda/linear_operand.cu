// What the fused layer's products read: x of a batch, or the weights, once at load. One block takes
// a row, a thread eight elements at a time.
//
// float16 has 11 bits, two of them 22, but nothing below 2^-24. So a row is first multiplied with
// the power of two that takes its largest element to [2^14, 2^15): elements down to 2^-16 of that
// keep all 22 bits, and none loses more than 2^-39 of the largest. Powers of two are taken out of
// the product again, exactly. Rows of float16 stay as they are.

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/linear_launch.h"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr int kPiece = 8;  // Elements; 16 bytes of a part.

__device__ inline ParamVector FindSource(const OperandTask& task, std::int64_t* row) {
  if (task.source.data != nullptr) return task.source;
  std::int32_t begin = 0;
  int segment = 0;
  while (task.batch.segments[segment].end <= *row) begin = task.batch.segments[segment++].end;
  *row -= begin;
  return {task.batch.segments[segment].x, task.dtype};
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

// Of the power of two that takes `largest` to [2^14, 2^15), as far as it is a normal number. A row
// with an infinity or of zeros stays as it is.
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

// Splits values into float16 and what its rounding leaves.
__device__ inline void Split(const float (&values)[kPiece], Granule* high, Granule* low) {
  float rest[kPiece];
  *high = Pack<Half>(values);
  Unpack<Half>(*high, rest);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) rest[i] = values[i] - rest[i];
  *low = Pack<Half>(rest);
}

// Where a piece of a row lies in the first part of its block of rows.
__device__ inline char* PieceAt(const OperandTask& task, std::int64_t row, std::int64_t column) {
  const std::int64_t block = row / task.block_rows;
  const int in_block = static_cast<int>(row % task.block_rows);
  const std::int64_t step = block * (task.k / kStepElements) + column / kStepElements;
  const int piece = static_cast<int>(column % kStepElements) / kPiece;
  return static_cast<char*>(task.operand) + step * task.parts * task.block_rows * kStepBytes +
         in_block * kStepBytes + (piece ^ (in_block % 8)) * kGranuleBytes;
}

__device__ inline void StorePiece(const OperandTask& task, std::int64_t row, std::int64_t column,
                                  float scale, float (&values)[kPiece]) {
  if (task.format == OperandFormat::kBFloat16) {
    *reinterpret_cast<Granule*>(PieceAt(task, row, column)) = Pack<BFloat>(values);
    return;
  }
  if (task.format == OperandFormat::kSplitFloat16) {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] *= scale;
    Granule high, low;
    Split(values, &high, &low);
    char* const place = PieceAt(task, row, column);
    *reinterpret_cast<Granule*>(place) = high;
    if (task.parts == 2) {
      *reinterpret_cast<Granule*>(place + task.block_rows * kStepBytes) = low;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPiece; ++i) values[i] = RoundPlain(values[i], task.format);
  float4* const place =
      reinterpret_cast<float4*>(static_cast<float*>(task.operand) + row * task.k + column);
  place[0] = make_float4(values[0], values[1], values[2], values[3]);
  place[1] = make_float4(values[4], values[5], values[6], values[7]);
}

__global__ void __launch_bounds__(kThreads)
    OperandKernel(const __grid_constant__ OperandTask task) {
  const std::int64_t row = blockIdx.x;
  std::int64_t source_row = row;
  const bool present = row < task.present;
  const ParamVector source = present ? FindSource(task, &source_row) : ParamVector();
  const auto load = [&](std::int64_t column, float(&values)[kPiece]) {
    const std::int64_t left = task.columns - column;
    LoadParams(source, source_row * task.columns + column,
               static_cast<int>(left < 0        ? 0
                                : left < kPiece ? left
                                                : kPiece),
               0.f, values);
  };
  const std::int64_t begin = std::int64_t{threadIdx.x} * kPiece;
  constexpr std::int64_t kStride = kThreads * kPiece;
  float values[kPiece];
  int exponent = 0;
  if (task.format == OperandFormat::kSplitFloat16 && task.dtype != DType::kFloat16) {
    float largest = 0;
    for (std::int64_t column = begin; present && column < task.columns; column += kStride) {
      load(column, values);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) largest = fmaxf(largest, fabsf(values[i]));
    }
    exponent = ScaleExponent(BlockMax(largest));
  }
  const float scale = __int_as_float((exponent + 127) << 23);
  if (threadIdx.x == 0) task.exponents[row] = exponent;
  for (std::int64_t column = begin; column < task.k; column += kStride) {
    load(column, values);
    StorePiece(task, row, column, scale, values);
  }
}

__global__ void BiasKernel(ParamVector source, std::int64_t present, std::int64_t rows,
                           float* bias) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < rows) bias[row] = row < present ? LoadParam(source, row, 0.f) : 0.f;
}

}  // namespace

cudaError_t LaunchOperand(const OperandTask& task, cudaStream_t stream) {
  OperandKernel<<<static_cast<unsigned>(task.rows), kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t LaunchBias(const ParamVector& source, std::int64_t present, std::int64_t rows,
                       float* bias, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  BiasKernel<<<blocks, kThreads, 0, stream>>>(source, present, rows, bias);
  return cudaGetLastError();
}

}  // namespace normd::norm::cuda
