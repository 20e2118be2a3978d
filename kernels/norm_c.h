/* The C ABI of the kernels, in libnorm_kernels.so: for callers that link no C++, such as ctypes.
 *
 * It says nothing about the computation that kernels/norm.h and kernels/linear_norm.h do not: the
 * structures and values here are those of the C++ contracts, field by field.
 *
 * Every function that can fail returns a norm_result. After a failure norm_last_error() of the same
 * thread names the field, what came and what was wanted. No exception leaves the library. Nothing
 * takes ownership of a caller's memory. Functions are thread-safe; objects may be shared by threads
 * and must outlive the calls that use them.
 *
 * Compatibility, from release 1.0 on: structures with a struct_size grow at their end alone; the
 * caller sets struct_size to its own sizeof, and what it does not know is taken as zero. norm_batch
 * says how large the caller's tensors are, which grow likewise. The other structures do not change.
 * All functions are there in every build; those of a backend that the build lacks return
 * NORM_UNSUPPORTED. */

#ifndef NORMD_KERNELS_NORM_C_H_
#define NORMD_KERNELS_NORM_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NORM_C_API __attribute__((visibility("default")))

/* Counts up when something is added; the releases before 1.0 have version 1. */
#define NORM_C_ABI_VERSION 1

typedef int32_t norm_result;
enum {
  NORM_OK = 0,
  NORM_INVALID_ARGUMENT = 1, /* The call is wrong whatever the machine. */
  NORM_UNSUPPORTED = 2,      /* The call is right, but this device or build cannot do it. */
  NORM_OUT_OF_MEMORY = 3,    /* The workspace is too small, or an allocation failed. */
  NORM_DEVICE_ERROR = 4      /* The device reported an error; its context may be unusable. */
};

enum { NORM_FLOAT32 = 1, NORM_FLOAT64 = 2, NORM_FLOAT16 = 3, NORM_BFLOAT16 = 4 };
enum { NORM_CHANNELS_FIRST = 0, NORM_CHANNELS_LAST = 1, NORM_MIXED_RUNS = 2 };
enum {
  NORM_MEAN_VARIANCE = 0,
  NORM_MEAN_SQUARE = 1,
  NORM_GIVEN = 2,
  NORM_SUM_OF_ABSOLUTES = 3,
  NORM_ROOT_OF_SQUARES = 4,
  NORM_LARGEST_ABSOLUTE = 5
};
enum {
  NORM_NO_ACTIVATION = 0,
  NORM_RELU = 1,
  NORM_LEAKY_RELU = 2,
  NORM_SILU = 3,
  NORM_GELU_ERF = 4,
  NORM_GELU_TANH = 5
};

/* The stages beside the statistics. */
enum { NORM_ROWS_GROUP = 0, NORM_ROWS_POSITION = 1 };
enum {
  NORM_COMBINE_NONE = 0,
  NORM_COMBINE_ADD = 1,
  NORM_COMBINE_MULTIPLY = 2,
  NORM_COMBINE_MULTIPLY_SILU = 3,
  NORM_COMBINE_MULTIPLY_SIGMOID = 4
};
enum { NORM_STYLE_NONE = 0, NORM_STYLE_INDEX = 1, NORM_STYLE_MIX = 2, NORM_STYLE_TENSOR = 3 };
enum { NORM_QUANTIZATION_NONE = 0, NORM_QUANTIZATION_INT8 = 1, NORM_QUANTIZATION_FLOAT8_E4M3 = 2 };
enum { NORM_SCALE_STATIC = 0, NORM_SCALE_ROW = 1, NORM_SCALE_BLOCK = 2 };

typedef struct norm_spec {
  uint32_t struct_size; /* sizeof(norm_spec) */
  uint8_t statistics;   /* NORM_MEAN_VARIANCE, ... */
  uint8_t dtype;        /* NORM_FLOAT32, ...; of x and y */
  uint8_t layout;       /* NORM_CHANNELS_FIRST, ... */
  uint8_t activation;   /* NORM_NO_ACTIVATION, ... */
  int64_t channels;
  int64_t groups;
  double eps;
  double leaky_slope; /* For NORM_LEAKY_RELU. */
  /* The stages; 0: the stage is absent. 1: each segment has a residual, and v = x + residual,
   * rounded to dtype, takes the place of x. */
  uint8_t residual;
  uint8_t residual_out;       /* 1: v is also written. Only with residual or an input bias. */
  uint8_t gate;               /* 1: each segment has one. Only with residual. */
  uint8_t scale;              /* 1: each segment has one. */
  uint8_t shift;              /* 1: each segment has one. */
  uint8_t rows;               /* NORM_ROWS_GROUP, ... */
  uint8_t style;              /* NORM_STYLE_NONE, ... */
  uint8_t combine_input;      /* NORM_COMBINE_NONE, ... */
  uint8_t combine_output;     /* NORM_COMBINE_NONE, ... */
  uint8_t quantization;       /* NORM_QUANTIZATION_NONE, ... */
  uint8_t quantization_scale; /* NORM_SCALE_STATIC, ... */
  uint8_t reserved[5];        /* 0 */
  int64_t styles;             /* > 0 with NORM_STYLE_INDEX and NORM_STYLE_MIX, else 0. */
  double weight_offset;
  /* Exactly this value is added to `scale`. NormSpec's default is 1; here a structure of zeros has
   * 0, which makes `scale` the factor itself. Adaptive norms want 1. */
  double scale_offset;
  double output_scale; /* With NORM_SCALE_STATIC and a quantization. */
  /* With NORM_MIXED_RUNS: > 0, their product channels; else 0. A sample is
   * channel_runs[0] x spatial_runs[0] x channel_runs[1] x spatial_runs[1] x ... */
  int64_t channel_runs[4];
} norm_spec;

/* One element per channel, gamma and beta `styles` times as many with a table of styles; data ==
 * NULL: absent. */
typedef struct norm_vector {
  const void* data;
  uint32_t dtype;    /* NORM_FLOAT32, ...; need not be the spec's. */
  uint32_t reserved; /* 0 */
} norm_vector;

typedef struct norm_params {
  uint32_t struct_size; /* sizeof(norm_params) */
  uint32_t reserved;    /* 0 */
  norm_vector gamma;
  norm_vector beta;
  norm_vector mean; /* With variance: NORM_GIVEN, and only then. */
  norm_vector variance;
  norm_vector input_bias;
} norm_params;

/* One tensor of the batch: samples x channels x spatial, or samples x spatial x channels; not with
 * NORM_MIXED_RUNS. */
typedef struct norm_segment {
  const void* x;
  void* y;
  int64_t samples;
  int64_t spatial;
} norm_segment;

/* A tensor of the batch with all that may come with it. */
typedef struct norm_tensors {
  const void* x;
  void* y;
  int64_t samples;
  int64_t spatial;
  const void* residual;      /* With norm_spec.residual, and only then. */
  void* residual_out;        /* With norm_spec.residual_out, and only then. */
  const norm_params* params; /* In place of the batch's; NULL: the batch's. */
  /* Each of the following is set with its stage, and only then. */
  const void* other; /* With combine_input or combine_output. */
  const void* gate;  /* This, scale and shift: samples x channels. */
  const void* scale;
  const void* shift;
  const int64_t* style_index; /* samples */
  const void* style_weights;  /* samples x styles, of x's dtype */
  const void* style_tensor;   /* samples x channels x style_spatial, in x's layout. */
  int64_t style_spatial;      /* > 0 with style_tensor, else 0. */
  /* One per row, float for all dtypes but NORM_FLOAT64; NULL if they are not wanted. */
  void* mean_out;
  void* rstd_out;
  float* scale_out; /* With NORM_SCALE_ROW and NORM_SCALE_BLOCK. */
  /* With NORM_MIXED_RUNS: their product is spatial; else 0. */
  int64_t spatial_runs[4];
  /* Elements from the beginning of a sample to that of the next; 0: samples lie together. */
  int64_t x_pitch;
  int64_t y_pitch;
} norm_tensors;

typedef struct norm_batch {
  uint32_t struct_size;  /* sizeof(norm_batch) */
  uint32_t tensors_size; /* sizeof(norm_tensors): the step from one to the next. */
  const norm_tensors* tensors;
  size_t count;
} norm_batch;

/* The fused layer of kernels/linear_norm.h. */
enum {
  NORM_PRECISION_FLOAT32 = 0,
  NORM_PRECISION_TF32 = 1,
  NORM_PRECISION_BFLOAT16 = 2,
  NORM_PRECISION_FLOAT32_STRICT = 3
};

typedef struct norm_linear_spec {
  uint32_t struct_size; /* sizeof(norm_linear_spec) */
  uint8_t dtype;        /* NORM_FLOAT32, NORM_FLOAT16 or NORM_BFLOAT16; of x, y and out */
  uint8_t precision;    /* NORM_PRECISION_FLOAT32, ... */
  uint8_t activation;   /* NORM_NO_ACTIVATION, ...; comes last */
  uint8_t add;          /* 1: v = v + y */
  int64_t in_features;
  int64_t out_features;
  double eps;
  float leaky_slope;   /* For NORM_LEAKY_RELU. */
  uint8_t multiply;    /* 1: v = v * y, after `add` */
  uint8_t reserved[3]; /* 0 */
} norm_linear_spec;

typedef struct norm_linear_params {
  uint32_t struct_size; /* sizeof(norm_linear_params) */
  uint32_t reserved;    /* 0 */
  norm_vector weight;   /* out_features x in_features */
  norm_vector bias;     /* out_features; absent: 0 */
} norm_linear_params;

typedef struct norm_linear_segment {
  const void* x;
  const void* y; /* NULL exactly when neither add nor multiply is set. */
  void* out;     /* May be y. */
  int64_t samples;
} norm_linear_segment;

/* NORM_C_ABI_VERSION of the library, not of the header. */
NORM_C_API uint32_t norm_abi_version(void);

/* Why the calling thread's last failed call failed; "" before the first. Valid until the thread's
 * next call that fails. */
NORM_C_API const char* norm_last_error(void);

/* The CPU backend. x, y and the parameters are host memory. */
typedef struct norm_cpu_executor norm_cpu_executor;
/* max_threads, to 4096: at most as many compute at once; 0: all that the process may use. */
NORM_C_API norm_result norm_cpu_executor_create(int32_t max_threads, norm_cpu_executor** out);
NORM_C_API void norm_cpu_executor_destroy(norm_cpu_executor* executor); /* NULL is allowed. */
/* Blocks until y is written. */
NORM_C_API norm_result norm_cpu_normalize(const norm_cpu_executor* executor, const norm_spec* spec,
                                          const norm_params* params, const norm_segment* segments,
                                          size_t count);

/* The same for a batch. */
NORM_C_API norm_result norm_cpu_normalize_batch(const norm_cpu_executor* executor,
                                                const norm_spec* spec, const norm_params* params,
                                                const norm_batch* batch);

/* A layer with its weight packed for the products; the parameters are not needed after create,
 * the executor is needed until destroy. */
typedef struct norm_cpu_linear norm_cpu_linear;
NORM_C_API norm_result norm_cpu_linear_create(const norm_cpu_executor* executor,
                                              const norm_linear_spec* spec,
                                              const norm_linear_params* params,
                                              norm_cpu_linear** out);
NORM_C_API void norm_cpu_linear_destroy(norm_cpu_linear* linear); /* NULL is allowed. */
/* Blocks until out is written. */
NORM_C_API norm_result norm_cpu_linear_norm(const norm_cpu_linear* linear,
                                            const norm_linear_segment* segments, size_t count);

/* The CUDA backend. x, y, the parameters and the workspace are device memory; the structures are
 * host memory and are not needed after the call. */
typedef struct norm_cuda_device norm_cuda_device;
NORM_C_API norm_result norm_cuda_device_open(int32_t ordinal, norm_cuda_device** out);
NORM_C_API void norm_cuda_device_close(norm_cuda_device* device); /* NULL is allowed. */
/* Bytes of workspace that norm_cuda_normalize needs for this batch. strategy: NULL or "auto", or
 * the name of a strategy to force (norm_bench --help). */
NORM_C_API norm_result norm_cuda_workspace_bytes(const norm_cuda_device* device,
                                                 const norm_spec* spec,
                                                 const norm_segment* segments, size_t count,
                                                 const char* strategy, size_t* out);
/* Enqueues the preparation of new workspace memory, aligned to 256 bytes. Needed once. */
NORM_C_API norm_result norm_cuda_workspace_init(void* workspace, size_t bytes, void* stream);

typedef struct norm_cuda_launch {
  uint32_t struct_size; /* sizeof(norm_cuda_launch) */
  uint32_t reserved;    /* 0 */
  void* stream;         /* A cudaStream_t of the current device. */
  void* workspace;      /* NULL where norm_cuda_workspace_bytes is 0. */
  size_t workspace_bytes;
  const char* strategy; /* As above. */
  /* 1: the workspace is in any state, and the call enqueues its preparation if its kernels need
   * one. Every replay of a captured call then prepares its own workspace. */
  uint32_t new_workspace;
  uint32_t reserved2; /* 0 */
} norm_cuda_launch;
/* Enqueues the batch on launch->stream and returns. Neither allocates nor synchronises. Calls that
 * may overlap on the device need workspaces of their own. */
NORM_C_API norm_result norm_cuda_normalize(const norm_cuda_device* device, const norm_spec* spec,
                                           const norm_params* params, const norm_segment* segments,
                                           size_t count, const norm_cuda_launch* launch);

/* The same for a batch. NORM_UNSUPPORTED for a stage that the device's kernels do not compute. */
NORM_C_API norm_result norm_cuda_batch_workspace_bytes(const norm_cuda_device* device,
                                                       const norm_spec* spec,
                                                       const norm_batch* batch,
                                                       const char* strategy, size_t* out);
NORM_C_API norm_result norm_cuda_normalize_batch(const norm_cuda_device* device,
                                                 const norm_spec* spec, const norm_params* params,
                                                 const norm_batch* batch,
                                                 const norm_cuda_launch* launch);

/* The fused layer; kernels/cuda/linear_norm.h says more. The bytes of device memory, aligned to 256
 * bytes, that prepare fills with the weights for this spec. */
NORM_C_API norm_result norm_cuda_linear_weight_bytes(const norm_cuda_device* device,
                                                     const norm_linear_spec* spec, size_t* out);
/* Enqueues the preparation on the stream, a cudaStream_t of the current device. */
NORM_C_API norm_result norm_cuda_linear_prepare(const norm_cuda_device* device,
                                                const norm_linear_spec* spec,
                                                const norm_linear_params* params, void* prepared,
                                                size_t bytes, void* stream);
/* tile: NULL or "auto", or another of kernels/cuda/linear/linear_plan.h ("wide"), to force it. */
NORM_C_API norm_result norm_cuda_linear_workspace_bytes(const norm_cuda_device* device,
                                                        const norm_linear_spec* spec,
                                                        int64_t samples, const char* tile,
                                                        size_t* out);
/* Enqueues the batch on launch->stream and returns. launch->strategy is a tile as above; the
 * workspace needs no preparation. */
NORM_C_API norm_result norm_cuda_linear_norm(const norm_cuda_device* device,
                                             const norm_linear_spec* spec, const void* prepared,
                                             const norm_linear_segment* segments, size_t count,
                                             const norm_cuda_launch* launch);

#ifdef __cplusplus
}
#endif

#endif /* NORMD_KERNELS_NORM_C_H_ */
