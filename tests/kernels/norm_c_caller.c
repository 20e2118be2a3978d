/* A caller in C: RMSNorm of x + residual as two tensors of one batch, the second with a gamma of its
 * own, of 3 in place of 2. */
#include <string.h>

#include "kernels/norm_c.h"

int normalize_from_c(const float* x, const float* residual, float* y, float* sum,
                     int64_t elements) {
  norm_spec spec;
  norm_params params, own;
  norm_tensors tensors[2];
  norm_batch batch;
  float two[64];
  float three[64];
  norm_cpu_executor* executor = NULL;
  norm_result result = NORM_OK;
  if (elements > 64) return -1;
  for (int64_t i = 0; i < elements; ++i) {
    two[i] = 2;
    three[i] = 3;
  }
  memset(&spec, 0, sizeof(spec));
  spec.struct_size = sizeof(spec);
  spec.statistics = NORM_MEAN_SQUARE;
  spec.dtype = NORM_FLOAT32;
  spec.channels = elements;
  spec.groups = 1;
  spec.residual = 1;
  spec.residual_out = 1;
  memset(&params, 0, sizeof(params));
  params.struct_size = sizeof(params);
  params.gamma.data = two;
  params.gamma.dtype = NORM_FLOAT32;
  own = params;
  own.gamma.data = three;
  memset(tensors, 0, sizeof(tensors));
  for (int i = 0; i < 2; ++i) {
    tensors[i].x = x + i * elements;
    tensors[i].y = y + i * elements;
    tensors[i].samples = 1;
    tensors[i].spatial = 1;
    tensors[i].residual = residual + i * elements;
    tensors[i].residual_out = sum + i * elements;
    tensors[i].params = i == 0 ? NULL : &own;
  }
  batch.struct_size = sizeof(batch);
  batch.tensors_size = sizeof(norm_tensors);
  batch.tensors = tensors;
  batch.count = 2;
  result = norm_cpu_executor_create(1, &executor);
  if (result != NORM_OK) return (int)result;
  result = norm_cpu_normalize_batch(executor, &spec, &params, &batch);
  norm_cpu_executor_destroy(executor);
  return (int)result;
}
