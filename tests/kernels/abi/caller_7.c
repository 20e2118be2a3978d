/* A caller as it was compiled against version 7 of kernels/norm_c.h, which lies here as it was. */
#include "norm_c_7.h"

#include "caller.inc"

#include "batch_caller.inc"

int call_as_version_7(const float* x, float* y, int64_t samples, int64_t elements, float slope) {
  return call(x, y, samples, elements, slope);
}

int call_batch_as_version_7(const float* x, const float* residual, float* y, float* sum,
                            int64_t elements) {
  return call_batch(x, residual, y, sum, elements);
}
