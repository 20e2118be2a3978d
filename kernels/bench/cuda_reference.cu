#include "kernels/bench/cuda_reference.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/bench/data.h"

namespace normd::norm::bench {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kPieceElements = std::int64_t{1} << 16;  // A block's share of a row.
constexpr std::int64_t kMaxBlocksPerDimension = 65535;

__device__ double Load(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<const float*>(data)[index];
    case DType::kFloat64: return static_cast<const double*>(data)[index];
    case DType::kFloat16: return __half2float(static_cast<const __half*>(data)[index]);
    case DType::kBFloat16: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
  }
  return 0;
}

__device__ double LoadOr(const ParamVector& param, std::int64_t index, double absent) {
  return param.data == nullptr ? absent : Load(param.dtype, param.data, index);
}

__device__ double Activate(const NormSpec& spec, double v) {
  switch (spec.activation) {
    case Activation::kNone: return v;
    case Activation::kRelu: return v < 0 ? 0 : v;
    case Activation::kLeakyRelu: return v < 0 ? spec.leaky_slope * v : v;
    case Activation::kSilu: return v / (1 + exp(-v));
    case Activation::kGeluErf: return 0.5 * v * (1 + erf(v * 0.70710678118654752440));
    case Activation::kGeluTanh:
      return 0.5 * v * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
  }
  return v;
}

struct Statistics64 {
  double sum;
  // Sum of the squares of the deviations from the mean, or of the values; or of the absolutes, or
  // the largest of these.
  double squares;
};

__device__ bool IsNorm(const NormSpec& spec) { return spec.statistics > Statistics::kGiven; }

// The factor of a row, by its Statistics64::squares.
__device__ double ReciprocalOf(const NormSpec& spec, double squares, double length) {
  if (!IsNorm(spec)) return 1 / sqrt(squares / length + spec.eps);
  return 1 / max(spec.statistics == Statistics::kRootOfSquares ? sqrt(squares) : squares, spec.eps);
}

// The least error that counts: half the distance of the smallest results of a norm's type.
__device__ double LeastError(const NormSpec& spec) {
  return IsNorm(spec) && spec.dtype == DType::kFloat16 ? 0x1p-25 : 0;
}

// Calls visit(element of the tensor, channel) for the thread's share of one piece of one row.
template <typename Visit>
__device__ void ForPiece(const NormSpec& spec, std::int64_t spatial, std::int64_t row,
                         Visit visit) {
  const std::int64_t channels = spec.channels / spec.groups;
  const std::int64_t length = channels * spatial;
  const std::int64_t sample = row / spec.groups;
  const std::int64_t first = row % spec.groups * channels;
  for (std::int64_t piece = blockIdx.x; piece * kPieceElements < length; piece += gridDim.x) {
    const std::int64_t end = min((piece + 1) * kPieceElements, length);
    for (std::int64_t i = piece * kPieceElements + threadIdx.x; i < end; i += kThreads) {
      if (spec.layout == Layout::kChannelsFirst) {
        visit(row * length + i, first + i / spatial);
      } else {
        const std::int64_t position = i / channels;
        const std::int64_t channel = first + (i - position * channels);
        visit((sample * spatial + position) * spec.channels + channel, channel);
      }
    }
  }
}

// Replaces *largest by a value that is greater; both are at least 0, and their bits in order.
__device__ void TakeLarger(double value, double* largest) {
  atomicMax(reinterpret_cast<unsigned long long*>(largest),
            static_cast<unsigned long long>(__double_as_longlong(value)));
}

__device__ void AddToBlockSum(double value, double* sum) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, value);
}

template <bool kDeviations>
__global__ void SumRows(NormSpec spec, const void* x, std::int64_t spatial, std::int64_t rows,
                        Statistics64* statistics) {
  const double length = static_cast<double>(spec.channels / spec.groups * spatial);
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const double mean =
        spec.statistics == Statistics::kMeanVariance ? statistics[row].sum / length : 0;
    double sum = 0, largest = 0;
    ForPiece(spec, spatial, row, [&](std::int64_t i, std::int64_t) {
      const double v = Load(spec.dtype, x, i);
      largest = max(largest, fabs(v));
      sum += !kDeviations                                     ? v
             : spec.statistics == Statistics::kSumOfAbsolutes ? fabs(v)
                                                              : (v - mean) * (v - mean);
    });
    if (spec.statistics == Statistics::kLargestAbsolute) {
      TakeLarger(largest, &statistics[row].squares);
      continue;
    }
    AddToBlockSum(sum, kDeviations ? &statistics[row].squares : &statistics[row].sum);
  }
}

__global__ void CompareRows(NormSpec spec, NormParams params, const void* x, const void* y,
                            std::int64_t spatial, std::int64_t rows, const Statistics64* statistics,
                            double* worst_error) {
  const double length = static_cast<double>(spec.channels / spec.groups * spatial);
  double worst = 0;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    double mean = spec.statistics == Statistics::kMeanVariance ? statistics[row].sum / length : 0;
    double reciprocal = ReciprocalOf(spec, statistics[row].squares, length);
    const double unit = IsNorm(spec) ? reciprocal : 1;  // A result of 1 before the norm.
    ForPiece(spec, spatial, row, [&](std::int64_t i, std::int64_t channel) {
      if (spec.statistics == Statistics::kGiven) {
        mean = LoadOr(params.mean, channel, 0);
        reciprocal = 1 / sqrt(LoadOr(params.variance, channel, 0) + spec.eps);
      }
      const double v = (Load(spec.dtype, x, i) - mean) * reciprocal;
      const double want =
          Activate(spec, v * LoadOr(params.gamma, channel, 1) + LoadOr(params.beta, channel, 0));
      const double got = Load(spec.dtype, y, i);
      const double error = (fabs(got - want) - LeastError(spec)) / max(unit, fabs(want));
      worst = isnan(error) ? INFINITY : max(worst, error);
    });
  }
  TakeLarger(worst, worst_error);
}

template <typename Word>
__global__ void FillChunks(const Word* pool, std::uint64_t seed, std::int64_t elements, Word* x) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < elements; i += stride) {
    const std::int64_t chunk = i / kPoolChunkElements;
    x[i] = pool[PoolOffset(chunk, seed) + (i - chunk * kPoolChunkElements)];
  }
}

template <typename Word>
void Fill(const void* pool, std::uint64_t seed, std::size_t bytes, void* x, cudaStream_t stream) {
  const auto elements = static_cast<std::int64_t>(bytes / sizeof(Word));
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((elements + kThreads - 1) / kThreads, 1 << 16));
  FillChunks<<<blocks, kThreads, 0, stream>>>(static_cast<const Word*>(pool), seed, elements,
                                              static_cast<Word*>(x));
}

}  // namespace

cudaError_t FillFromPool(const void* pool, DType dtype, std::uint64_t seed, std::size_t bytes,
                         void* x, cudaStream_t stream) {
  switch (SizeOf(dtype)) {
    case 2: Fill<std::uint16_t>(pool, seed, bytes, x, stream); break;
    case 4: Fill<std::uint32_t>(pool, seed, bytes, x, stream); break;
    default: Fill<std::uint64_t>(pool, seed, bytes, x, stream); break;
  }
  return cudaGetLastError();
}

cudaError_t MaxErrorOnDevice(const NormSpec& spec, const NormParams& params, const Segment& segment,
                             cudaStream_t stream, DeviceError* out) {
  const std::int64_t rows = segment.samples * spec.groups;
  const std::int64_t length = RowLength(spec, segment.spatial);
  *out = DeviceError();
  if (rows == 0 || length == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(std::min((length + kPieceElements - 1) / kPieceElements,
                                                 kMaxBlocksPerDimension)),
                  static_cast<unsigned>(std::min(rows, kMaxBlocksPerDimension)));
  void* memory = nullptr;
  const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(Statistics64) + 8;
  cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) return error;
  auto* const worst = static_cast<double*>(memory);
  auto* const statistics = reinterpret_cast<Statistics64*>(worst + 1);
  error = cudaMemsetAsync(memory, 0, bytes, stream);
  if (error == cudaSuccess) {
    if (spec.statistics == Statistics::kMeanVariance) {
      SumRows<false>
          <<<grid, kThreads, 0, stream>>>(spec, segment.x, segment.spatial, rows, statistics);
    }
    if (spec.statistics != Statistics::kGiven) {
      SumRows<true>
          <<<grid, kThreads, 0, stream>>>(spec, segment.x, segment.spatial, rows, statistics);
    }
    CompareRows<<<grid, kThreads, 0, stream>>>(spec, params, segment.x, segment.y, segment.spatial,
                                               rows, statistics, worst);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(&out->max_error, worst, sizeof(*worst), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaFree(memory);
  out->elements = rows * length;
  return error;
}

}  // namespace normd::norm::bench
