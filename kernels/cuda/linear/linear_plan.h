// How the fused layer is computed on a device: a pure function, and the layout of its operands.
//
// Everything that decides a sample's bits (path, operands, the order of the sums) depends on the
// spec and on the device alone. Only a block's share of the product depends on the number of
// samples, and that changes no sum. kernels/cuda/README.md explains the paths.
//
// Host code without a CUDA dependency, so that it is tested on any machine.

#ifndef NORMD_KERNELS_CUDA_LINEAR_LINEAR_PLAN_H_
#define NORMD_KERNELS_CUDA_LINEAR_LINEAR_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/strategy.h"
#include "kernels/linear_norm.h"

namespace normd::norm::cuda {

enum class LinearPath : std::uint8_t {
  kTensor = 0,  // Tensor cores, compute capability 9.0: 16-bit operands in tiles.
  // Float32 arithmetic: float32 operands in rows. For kFloat32Strict, and other devices.
  kPlain = 1,
};

// The form in which the product reads x and the weights.
enum class OperandFormat : std::uint8_t {
  kSplitFloat16 = 0,     // Rows times a power of two each, as one float16 or a sum of two.
  kBFloat16 = 1,         // Rounded to bfloat16.
  kFloat32 = 2,          // Unchanged.
  kRoundedTf32 = 3,      // Rounded to 10 bits of mantissa, in float32.
  kRoundedBFloat16 = 4,  // Rounded to bfloat16, in float32.
};

// An operand of the tensor path lies in blocks of rows; a block is a sequence of steps of 64
// elements along the rows. A step is the block's parts one after another, and a part has 128 bytes
// for each row, swizzled as in wgmma.cuh. A block of threads thus always reads one run of memory
// next.
inline constexpr int kStepElements = 64;
inline constexpr int kStepBytes = 128;       // One row of one part.
inline constexpr int kWeightBlockRows = 64;  // Features of one matrix product.
inline constexpr int kMaxFeaturesPerCluster = 256;
// Samples of a call are computed in chunks of at most this many, which bounds the workspace.
inline constexpr std::int64_t kLinearChunkSamples = 1024;

// A block's share of the product, which changes the time and no bit. Narrow: 64 features, and as
// many samples as the name says, or the plan's maximum. Wide: 128 features and the maximum of
// samples; two blocks with the same samples copy them once.
enum class LinearTile : std::uint8_t {
  kAuto = 0,
  kNarrow32,
  kNarrow64,
  kNarrow128,
  kNarrow256,
  kWide,
};
inline constexpr LinearTile kLinearTiles[] = {LinearTile::kAuto,      LinearTile::kNarrow32,
                                              LinearTile::kNarrow64,  LinearTile::kNarrow128,
                                              LinearTile::kNarrow256, LinearTile::kWide};
// "auto", "narrow32" and so on; "invalid" for a value that is not a LinearTile.
const char* Name(LinearTile tile);
// Parses such a name; InvalidArgument lists them.
Status ParseLinearTile(const std::string& name, LinearTile* tile);

struct LinearPlan {
  LinearPath path = LinearPath::kPlain;
  OperandFormat format = OperandFormat::kFloat32;
  int x_parts = 1;       // 1 or 2: the value, or the rounded value and its rounding error.
  int weight_parts = 1;  // The same for the weights.
  // Steps whose products are summed on the tensor cores before the sum moves to float32 registers,
  // because tensor cores truncate; 0: all.
  int steps_per_sum = 0;
  // x has the operand's type: the product reads the batch's rows in place if they are adjacent.
  bool reads_x = false;
  int tile_samples = 0;   // Per block of threads.
  int tile_features = 0;  // Per block of threads.
  int cluster = 1;        // Blocks that copy x into each other's memory: 1 or 2.
};

// The spec must be valid; 0 < samples <= kLinearChunkSamples. `forced` overrides the choice of the
// tile.
LinearPlan MakeLinearPlan(const LinearNormSpec& spec, const DeviceLimits& limits,
                          std::int64_t samples, LinearTile forced = LinearTile::kAuto);

// One line for people, such as "tensor: float16 2 x 2 parts, 128 features x 128 samples, clusters
// of 2, sums of 256".
std::string Describe(const LinearPlan& plan);

// The layout of prepared weights: each part in bytes from the begin, aligned to 256.
struct WeightLayout {
  std::int64_t rows = 0;      // Features, padded with rows of zeros for the kernels.
  std::int64_t k = 0;         // Elements of a row, padded with zeros to a whole step.
  std::size_t bias = 0;       // float[rows]
  std::size_t exponents = 0;  // int[rows]: each row was multiplied with 2 to this power.
  std::size_t weight = 0;
  std::size_t bytes = 0;
};
WeightLayout MakeWeightLayout(const LinearNormSpec& spec, const DeviceLimits& limits);

// The layout of a workspace. `samples` as in MakeLinearPlan.
struct WorkspaceLayout {
  std::int64_t rows = 0;      // Samples, padded to a whole tile. The padding is undefined.
  std::int64_t z_pitch = 0;   // Floats from one row of z to the next, a multiple of 4.
  std::size_t exponents = 0;  // int[rows]
  std::size_t x = 0;
  std::size_t z = 0;  // float[samples, z_pitch]
  std::size_t bytes = 0;
};
WorkspaceLayout MakeWorkspaceLayout(const LinearNormSpec& spec, const LinearPlan& plan,
                                    std::int64_t samples);

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_LINEAR_LINEAR_PLAN_H_
