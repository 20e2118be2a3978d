// The interface of the fused layer's kernels to linear_norm.cc. Internal.

#ifndef NORMD_KERNELS_CUDA_LINEAR_LINEAR_LAUNCH_H_
#define NORMD_KERNELS_CUDA_LINEAR_LINEAR_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/linear_norm.h"

namespace normd::norm::cuda {

// Some samples of one segment, numbered through a launch.
struct LinearRows {
  const char* x;
  const char* y;  // Null if the epilogue uses none.
  char* out;
  std::int32_t end;  // Samples of the launch up to and including these.
};
// As many as fit into the 4 KiB of kernel parameters that every device has.
inline constexpr int kMaxLinearSegments = 96;
struct LinearBatch {
  LinearRows segments[kMaxLinearSegments];
  std::int32_t segment_count;
  std::int32_t samples;
};

// Rows of elements, and the operand made of them. The source is `data`, or the batch's x if `data`
// is null.
struct OperandTask {
  ParamVector source;  // Row-major.
  LinearBatch batch;
  std::int64_t columns;  // In a row of the source.
  std::int64_t present;  // Rows of the source; later rows of the operand are zeros.
  std::int64_t rows;     // Rows to write.
  std::int64_t k;        // Elements of a row of the operand; those from `columns` on are zeros.
  int block_rows;        // For the tensor path.
  int parts;             // For the tensor path.
  OperandFormat format;
  DType dtype;  // The source's.
  void* operand;
  int* exponents;  // [rows]
};
cudaError_t LaunchOperand(const OperandTask& task, cudaStream_t stream);
// bias[f] as float32; 0 if it is absent and for `present` <= f < rows.
cudaError_t LaunchBias(const ParamVector& source, std::int64_t present, std::int64_t rows,
                       float* bias, cudaStream_t stream);

// z[s, f] = sum over k of x[s, k] w[f, k], times
// 2^-(x_exponents[s] + weight_exponents[f]), plus bias[f].
struct ProductTask {
  CUtensorMap x_map;  // If x is null: the rows in their own form; their exponents are 0.
  const char* x;
  const int* x_exponents;
  const char* weight;
  const int* weight_exponents;
  const float* bias;
  float* z;
  std::int64_t z_pitch;
  std::int64_t k;  // A multiple of kStepElements.
  std::int32_t samples;
  std::int32_t features;
  int clusters;  // The number of clusters of the plan's size that are resident at once.
};
// With an operand x, the kernel before it in the stream is the one that makes the operand. This
// kernel overlaps it and loads weights meanwhile.
cudaError_t LaunchTensorProduct(const LinearPlan& plan, const ProductTask& task,
                                cudaStream_t stream);
cudaError_t LaunchPlainProduct(const LinearPlan& plan, const ProductTask& task,
                               cudaStream_t stream);
// Lets the tensor kernels use the current device's shared memory.
cudaError_t PrepareTensorProduct();

// out = activation(epilogue(norm of the rows of z, y)).
struct FinishTask {
  LinearBatch batch;
  const float* z;
  std::int64_t z_pitch;
  std::int32_t features;
  float eps;
  DType dtype;
  Epilogue epilogue;
};
// `overlaps`: the kernel before it in the stream is the tensor product, which it may overlap.
cudaError_t LaunchFinish(const FinishTask& task, bool overlaps, cudaStream_t stream);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_LINEAR_LINEAR_LAUNCH_H_
