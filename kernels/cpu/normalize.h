// The CPU backend: Highway for SIMD with run-time dispatch, oneTBB for cores.

#ifndef NORMD_KERNELS_CPU_NORMALIZE_H_
#define NORMD_KERNELS_CPU_NORMALIZE_H_

#include <cstddef>
#include <memory>

#include "kernels/norm.h"

namespace norm::cpu {

// A set of threads that computes batches. Thread-safe: calls may overlap and then share the threads.
class Executor {
 public:
  // At most `max_threads` threads compute at once, the caller's among them; 0: all the process may
  // use.
  explicit Executor(int max_threads = 0);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int max_threads() const;

  // Computes a batch of host memory and returns when it is done. Small batches run on the caller's
  // thread alone.
  // Accumulation: float32 for float32, float16 and bfloat16 (pairwise over fixed chunks, merged as
  // (count, mean, M2)), float64 for float64. Errors: InvalidArgument as ValidateSpec and
  // ValidateSegments say, before anything is written.
  Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                   std::size_t count) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The name of the instruction set that Highway chose on this machine, such as "AVX3".
const char* SimdTargetName();

}  // namespace norm::cpu

#endif  // NORMD_KERNELS_CPU_NORMALIZE_H_
