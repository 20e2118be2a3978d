/* A caller as it was compiled against version 5 of kernels/norm_c.h, which lies here as it was. */
#include "norm_c_5.h"

#include "caller.inc"

int call_as_version_5(const float* x, float* y, int64_t samples, int64_t elements, float slope) {
  return call(x, y, samples, elements, slope);
}

/* RMSNorm of x + residual as two tensors of one batch, the second with a gamma of its own, of 3 in
 * place of 2. Behind each structure lies memory that a later version must not read. */
int call_batch_as_version_5(const float* x, const float* residual, float* y, float* sum,
                            int64_t elements) {
  struct {
    norm_spec known;
    unsigned char beyond[64];
  } spec;
  struct {
    norm_params known;
    unsigned char beyond[64];
  } params, own;
  struct {
    norm_tensors known[2];
    unsigned char beyond[128];
  } tensors;
  float two[64];
  float three[64];
  norm_batch batch;
  norm_cpu_executor* executor = NULL;
  memset(&spec, 0xa5, sizeof(spec));
  memset(&params, 0xa5, sizeof(params));
  memset(&own, 0xa5, sizeof(own));
  memset(&tensors, 0xa5, sizeof(tensors));
  memset(&spec.known, 0, sizeof(spec.known));
  memset(&params.known, 0, sizeof(params.known));
  memset(&own.known, 0, sizeof(own.known));
  if (elements > 64) return -1;
  for (int64_t i = 0; i < elements; ++i) {
    two[i] = 2;
    three[i] = 3;
  }
  spec.known.struct_size = sizeof(spec.known);
  spec.known.statistics = NORM_MEAN_SQUARE;
  spec.known.dtype = NORM_FLOAT32;
  spec.known.channels = elements;
  spec.known.groups = 1;
  spec.known.residual = 1;
  spec.known.residual_out = 1;
  params.known.struct_size = own.known.struct_size = sizeof(own.known);
  params.known.gamma.data = two;
  own.known.gamma.data = three;
  params.known.gamma.dtype = own.known.gamma.dtype = NORM_FLOAT32;
  for (int i = 0; i < 2; ++i) {
    tensors.known[i].x = x + i * elements;
    tensors.known[i].y = y + i * elements;
    tensors.known[i].samples = 1;
    tensors.known[i].spatial = 1;
    tensors.known[i].residual = residual + i * elements;
    tensors.known[i].residual_out = sum + i * elements;
    tensors.known[i].params = i == 0 ? NULL : &own.known;
  }
  batch.struct_size = sizeof(batch);
  batch.tensors_size = sizeof(norm_tensors);
  batch.tensors = tensors.known;
  batch.count = 2;
  norm_result result = norm_cpu_executor_create(1, &executor);
  if (result != NORM_OK) return (int)result;
  result = norm_cpu_normalize_batch(executor, &spec.known, &params.known, &batch);
  norm_cpu_executor_destroy(executor);
  return (int)result;
}
