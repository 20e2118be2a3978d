// What stands behind Executor, for the parts of the CPU backend that share its threads.

#ifndef NORMD_KERNELS_CPU_EXECUTOR_H_
#define NORMD_KERNELS_CPU_EXECUTOR_H_

#include <oneapi/tbb/task_arena.h>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/normalize.h"

namespace normd::norm::cpu {

struct Executor::Impl {
  explicit Impl(int max_threads);

  int threads;
  mutable tbb::task_arena arena;
  CacheSizes caches;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_EXECUTOR_H_
