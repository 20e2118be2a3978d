// A case of norm_bench: one operation on one tensor, described by short text.

#ifndef NORMD_KERNELS_BENCH_CASE_H_
#define NORMD_KERNELS_BENCH_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/norm.h"

namespace normd::norm::bench {

struct Case {
  std::string op;  // In MakeCase's form, such as "group_norm:32+silu".
  NormSpec spec;
  bool input_bias = false;
  bool statistics = false;  // mean_out, if there is a mean, and rstd_out are results too.
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  RunSizes spatial_runs = {};
  std::vector<std::int64_t> dims;  // The user's dimensions; the leading one is the samples.

  std::int64_t elements() const { return samples * spec.channels * spatial; }
  std::int64_t rows() const { return samples * RowsOfSample(spec, spatial); }
  std::int64_t tensor_bytes() const {
    return elements() * static_cast<std::int64_t>(SizeOf(spec.dtype));
  }
  // Whether there is a second input of x's shape.
  bool has_second() const {
    return spec.residual || spec.takes_other() || spec.style == Style::kTensor;
  }
  // Bytes of tensors of x's shape that a call reads and writes, for the ratio to a copy.
  std::int64_t moved_bytes() const;
  std::string shape() const;  // "112x64x512x512"
  std::string name() const;   // "group_norm:8 float32 first 112x64x512x512", what --filter matches
};

// Makes a case from text.
//   operation  instance_norm, batch_norm, group_norm:G, layer_norm, rms_norm, l1_norm, l2_norm,
//              max_norm, and at each position position_layer_norm, position_rms_norm;
//              layer_norm:1.3 and rms_norm:1.3 over these dimensions, ascending, of which 0 is
//              none; each with any of
//              +relu, +leaky_relu, +silu, +gelu, +gelu_tanh  an activation
//              +residual           a residual, and their sum as an output
//              +gate, +scale, +shift  by sample and channel
//              +styles:K           an index of K gammas and betas for each sample
//              +input_bias
//              +input_multiply, +input_multiply_silu  a second tensor for x
//              +style_tensor       a second tensor's mean and deviation of each channel
//              +multiply, +multiply_silu              one for the result
//              +statistics         mean and rstd of each row as outputs
//              +int8, +e4m3, each with :row or :block  quantized; else by a static scale
//   shape      dimensions with x between them: N x C x trailing..., and for layer_norm and those
//              after it rows x normalized elements
//   dtype      float32, float64, float16, bfloat16 (or f32, f64, f16, bf16)
//   layout     first, last
// InvalidArgument names the part that does not parse.
Status MakeCase(const std::string& operation, const std::string& dtype, const std::string& layout,
                const std::string& shape, Case* out);

// The seeds' tensors, the comparison table's lines and a few boundary shapes.
std::vector<Case> DefaultSuite();
// The suite of docs/experiments.md.
std::vector<Case> FullSuite();

// Halves the number of samples until the tensor has at most `max_bytes`; keeps at least one.
void ScaleTo(std::int64_t max_bytes, Case* c);

const char* Name(Layout layout);  // "first", "last", "mixed_runs"

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_CASE_H_
