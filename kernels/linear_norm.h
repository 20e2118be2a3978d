// The contract of the fused layer: a matrix product, an instance norm over its features, and an
// epilogue with a second input.
//
//   z   = x W^T + b                          x [B, I], W [F, I], b [F]
//   n   = (z - mean(z)) / sqrt(var(z) + eps)    over the F features of each sample
//   out = activation(epilogue(n, y))         y, out [B, F]
//
// The variance is the population variance (divided by F).
//
// A batch is a list of segments that share the spec and the parameters and differ in sample count.
// A sample's result depends on the sample, the spec and the parameters alone: never on B, on the
// batch, or on its place in it.
//
// This header is C++17 and needs no library.

#ifndef NORMD_KERNELS_LINEAR_NORM_H_
#define NORMD_KERNELS_LINEAR_NORM_H_

#include <cstddef>
#include <cstdint>

#include "kernels/norm.h"
#include "kernels/status.h"

namespace normd::norm {

// How the products are formed. Sums, statistics and the epilogue are float32 in all of them.
enum class Precision : std::uint8_t {
  kFloat32 = 0,   // Error of the class of plain float32; tensor cores where the device has them.
  kTf32 = 1,      // One product of values rounded to 10 bits of mantissa.
  kBFloat16 = 2,  // One product of values rounded to 7 bits of mantissa.
  kFloat32Strict = 3,  // Plain float32 arithmetic.
};
// "float32", "tf32", "bf16", "float32_strict"; "invalid" for a value that is not a Precision.
const char* Name(Precision precision);

// The types that x, y and out may have.
constexpr bool IsLinearNormDType(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// The steps after the norm, applied in this order; the activation comes last.
struct Epilogue {
  bool add = false;       // v = v + y
  bool multiply = false;  // v = v * y
  Activation activation = Activation::kNone;
  float leaky_slope = 0.01f;

  bool needs_y() const { return add || multiply; }
};

// Constant over all batches of a model. x, y and out have `dtype`.
struct LinearNormSpec {
  std::int64_t in_features = 0;   // I > 0
  std::int64_t out_features = 0;  // F > 0
  DType dtype = DType::kFloat32;
  double eps = 1e-5;  // Finite, >= 0
  Precision precision = Precision::kFloat32;
  Epilogue epilogue;
};

struct LinearNormParams {
  ParamVector weight;  // [F, I], row-major; required.
  ParamVector bias;    // [F]; absent: 0.
};

// One request. Borrowed; all three are aligned to their element. `out` overlaps no input and no
// other output of the batch, but may be exactly this segment's y. y is null exactly when the
// epilogue needs none. samples == 0 is allowed and writes nothing; the pointers may then be null.
struct LinearNormSegment {
  const void* x = nullptr;
  const void* y = nullptr;
  void* out = nullptr;
  std::int64_t samples = 0;
};

// InvalidArgument, with the field, what came and what was wanted, if the spec, the parameters or
// the segments break a condition stated above or their sizes in bytes overflow 63 bits.
Status ValidateLinearNorm(const LinearNormSpec& spec, const LinearNormParams& params);
Status ValidateLinearNormSegments(const LinearNormSpec& spec, const LinearNormSegment* segments,
                                  std::size_t count);

}  // namespace normd::norm

#endif  // NORMD_KERNELS_LINEAR_NORM_H_
