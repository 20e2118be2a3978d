// The threads of an Executor, for the parts of the CPU backend that compute on them.

#ifndef NORMD_KERNELS_CPU_WORKERS_H_
#define NORMD_KERNELS_CPU_WORKERS_H_

#include <oneapi/tbb/task_arena.h>

#include "kernels/cpu/batch.h"

namespace normd::norm::cpu {

struct Workers {
  explicit Workers(int max_threads);

  int threads;
  mutable tbb::task_arena arena;
  CacheSizes caches;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_WORKERS_H_
