// A kernel that begins while its predecessor in the stream still runs (programmatic dependent
// launch, compute capability 9.0; elsewhere kernels follow one another and both calls do nothing).

#ifndef NORMD_KERNELS_CUDA_OVERLAP_CUH_
#define NORMD_KERNELS_CUDA_OVERLAP_CUH_

#include <cuda_runtime_api.h>

namespace normd::norm::cuda {

// The next kernel may begin once every block has called this or has ended.
__device__ inline void LetNextKernelBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous kernel has ended and its writes are seen. Every thread that uses them
// calls it; what older kernels wrote is there without it if the previous kernel was not allowed to
// overlap them.
__device__ inline void AwaitPreviousKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The launch attribute that allows a kernel to overlap its predecessor.
inline cudaLaunchAttribute OverlapPrevious(bool allowed) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = allowed ? 1 : 0;
  return attribute;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_OVERLAP_CUH_
