// The CPU backend: Highway for SIMD with run-time dispatch, oneTBB for cores.

#ifndef NORMD_KERNELS_CPU_NORMALIZE_H_
#define NORMD_KERNELS_CPU_NORMALIZE_H_

#include <cstddef>
#include <memory>

#include "kernels/norm.h"

namespace normd::norm::cpu {

struct Workers;  // Its threads.

// A set of threads that computes batches. Thread-safe: calls may overlap and then share the
// threads.
class Executor {
 public:
  // At most `max_threads` threads compute at once, including the caller's; 0: as many as the
  // process may use.
  explicit Executor(int max_threads = 0);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int max_threads() const;

  // Computes a batch of host memory and returns when it is done. Small batches run on the caller's
  // thread alone.
  // Accumulation: groups of eight in float32 (float64 for float64), the groups in double, over
  // fixed chunks that are merged as (count, mean, M2) in a fixed order. The affine step is in
  // float32 (float64) with the mean to twice that precision.
  // Errors: InvalidArgument as ValidateSpec and ValidateSegments say, before anything is written;
  // OutOfMemory if the workspace cannot be allocated: a few bytes per thousand elements, and with
  // channels last some tens of bytes per channel and thread.
  Status Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                   std::size_t count) const;

 private:
  friend class LinearNorm;  // Computes on the same threads.
  std::unique_ptr<Workers> workers_;
};

// The name of the instruction set that Highway selected on this machine, such as "AVX3".
const char* SimdTargetName();

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_NORMALIZE_H_
