// From a launch to kernels: the element type becomes a template argument, and the segments become
// row batches that fit into kernel parameters. Everything else stays a run-time value.

#ifndef NORMD_KERNELS_CUDA_DISPATCH_CUH_
#define NORMD_KERNELS_CUDA_DISPATCH_CUH_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/sample_range.h"

namespace normd::norm::cuda {

template <typename T>
struct ElementType {
  using Type = T;
};

// Calls function(ElementType<T>()) for the type that `dtype` names.
template <typename Function>
auto WithElementType(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat64: return function(ElementType<double>());
    case DType::kFloat16: return function(ElementType<Half>());
    case DType::kBFloat16: return function(ElementType<BFloat>());
    default: return function(ElementType<float>());
  }
}

// The same for kernels that do not take float64.
template <typename Function>
auto WithNarrowType(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat16: return function(ElementType<Half>());
    case DType::kBFloat16: return function(ElementType<BFloat>());
    default: return function(ElementType<float>());
  }
}

// Whether every row of the batch, in x, in y and in what modulates it, begins and ends on a
// multiple of 16 bytes.
inline bool IsAligned(const RowBatch& batch) {
  if ((batch.x_gap | batch.y_gap) % kVectorBytes != 0) return false;
  for (int i = 0; i < batch.segment_count; ++i) {
    const RowSegment& segment = batch.segments[i];
    const auto bits = reinterpret_cast<std::uintptr_t>(segment.x) |
                      reinterpret_cast<std::uintptr_t>(segment.y) |
                      reinterpret_cast<std::uintptr_t>(segment.scale) |
                      reinterpret_cast<std::uintptr_t>(segment.shift) |
                      static_cast<std::uintptr_t>(segment.row_bytes);
    if (bits % kVectorBytes != 0) return false;
  }
  return true;
}

// Calls function(ElementType<T>()) for every type, until it returns an error.
template <typename Function>
cudaError_t ForEachElementType(Function function) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const cudaError_t error = WithElementType(dtype, function);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Lets a kernel use all dynamic shared memory that a block of the device may take.
template <typename Kernel>
cudaError_t AllowSharedBytes(Kernel kernel, const DeviceLimits& limits) {
  const std::size_t bytes = limits.shared_bytes_per_block - kReservedSharedBytes;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// Whether the rows of a launch have Lowering::kModulated with gamma and beta.
inline bool IsModulatedByGamma(const NormSpec& spec) {
  return spec.weight_offset != 0 && !spec.scale;
}
inline bool IsModulated(const NormSpec& spec) { return spec.scale || IsModulatedByGamma(spec); }

// Whether the rows of a launch are divided by a norm of theirs (RowSums::kNorms).
inline bool IsNorm(const Launch& launch) { return launch.spec.statistics > Statistics::kGiven; }

inline RowBatch EmptyRowBatch(const Launch& launch) {
  RowBatch batch = {};
  batch.groups = Divisor(static_cast<std::uint32_t>(launch.spec.groups));
  // A norm has no parameters, and so one channel.
  batch.channels_per_group = IsNorm(launch) ? 1 : launch.spec.channels / launch.spec.groups;
  batch.gamma = launch.params.gamma;
  batch.beta = launch.params.beta;
  batch.eps = Constant(launch.spec.eps);
  batch.scale_offset =
      Addend(IsModulatedByGamma(launch.spec) ? launch.spec.weight_offset : launch.spec.scale_offset)
          .narrow;
  batch.leaky_slope = Constant(launch.spec.leaky_slope);
  batch.activation = launch.spec.activation;
  batch.centered = launch.spec.statistics == Statistics::kMeanVariance;
  batch.norm = launch.spec.statistics;
  const auto element = static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
  batch.has_gaps = launch.gaps.any();
  batch.x_gap = launch.gaps.x * element;
  batch.y_gap = launch.gaps.y * element;
  batch.gap_rows = Divisor(static_cast<std::uint32_t>(launch.gap_rows));
  return batch;
}

// Appends as many samples of `segment` as the batch has room for, all or none if there are gaps;
// returns their number.
inline std::int64_t AppendSamples(const NormSpec& spec, const Segment& segment, std::int64_t done,
                                  int max_segments, RowBatch* batch) {
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();
  const std::int64_t sample_rows = RowsOfSample(spec, segment.spatial);
  const std::int64_t samples =
      std::min(segment.samples - done, (kMaxRows - batch->rows) / sample_rows);
  if (samples <= 0 || batch->segment_count == max_segments) return 0;
  if (batch->has_gaps && samples < segment.samples) return 0;
  const Segment rest = SamplesOf(spec, segment, done, samples);
  RowSegment& entry = batch->segments[batch->segment_count++];
  entry.x = static_cast<const char*>(rest.x);
  entry.y = static_cast<char*>(rest.y);
  entry.scale = spec.scale ? static_cast<const char*>(rest.scale) : nullptr;
  entry.shift = spec.shift ? static_cast<const char*>(rest.shift) : nullptr;
  entry.elements = RowLength(spec, segment.spatial);
  entry.row_bytes = entry.elements * static_cast<std::int64_t>(SizeOf(spec.dtype));
  entry.spatial = spec.rows == Rows::kPosition ? 1 : segment.spatial;
  entry.sample_rows = Divisor(static_cast<std::uint32_t>(sample_rows));
  if (IsModulatedByGamma(spec)) {  // As if they were one sample's.
    entry.scale = static_cast<const char*>(batch->gamma.data);
    entry.shift = static_cast<const char*>(batch->beta.data);
    entry.sample_rows = Divisor(static_cast<std::uint32_t>(kMaxRows));
  }
  entry.mean_out = rest.mean_out;
  entry.rstd_out = rest.rstd_out;
  batch->statistics_out |= rest.mean_out != nullptr || rest.rstd_out != nullptr;
  if (entry.elements <= kMaxRows) {
    entry.spatial_divisor = Divisor(static_cast<std::uint32_t>(segment.spatial));
  }
  batch->rows += static_cast<std::uint32_t>(samples * sample_rows);
  entry.end_row = batch->rows;
  return samples;
}

// Cuts the launch's segments into row batches and calls enqueue(ElementType<T>(), aligned, batch),
// which returns a cudaError_t, for each; aligned is true_type or false_type, as IsAligned says. One
// sample has fewer than 2^31 rows.
template <typename Enqueue>
Status ForEachRowBatch(const Launch& launch, const char* what, Enqueue enqueue,
                       int max_segments = kMaxRowSegments) {
  RowBatch batch = EmptyRowBatch(launch);
  const auto flush = [&]() -> cudaError_t {
    const bool aligned = IsAligned(batch);
    const cudaError_t error = WithElementType(launch.spec.dtype, [&](auto element) -> cudaError_t {
      return aligned ? enqueue(element, std::true_type(), batch)
                     : enqueue(element, std::false_type(), batch);
    });
    batch.segment_count = 0;
    batch.rows = 0;
    return error;
  };
  for (std::size_t i = 0; i < launch.count; ++i) {
    for (std::int64_t done = 0; done < launch.segments[i].samples;) {
      const std::int64_t taken =
          AppendSamples(launch.spec, launch.segments[i], done, max_segments, &batch);
      done += taken;
      if (taken > 0) continue;
      if (const Status status = ToStatus(flush(), what); !status.ok()) return status;
    }
  }
  return batch.rows == 0 ? Status() : ToStatus(flush(), what);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DISPATCH_CUH_
