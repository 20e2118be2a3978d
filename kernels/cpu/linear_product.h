// z = x W^T + bias for blocks of rows: the only code that uses oneDNN's interface.

#ifndef NORMD_KERNELS_CPU_LINEAR_PRODUCT_H_
#define NORMD_KERNELS_CPU_LINEAR_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/linear_norm.h"

namespace normd::norm::cpu {

// Rows that are multiplied together.
struct RowBlock {
  const float* x = nullptr;  // rows x in_features
  float* z = nullptr;        // rows x tile_columns for each tile in turn.
  std::int64_t rows = 0;     // One of block_rows().
};

// The weight in packed tiles of columns (features of z). Constant after Create, thread-safe.
//
// The bits of a row of z depend on that row of x and on the parameters alone, not on the size of
// its block or its place in it. oneDNN does not promise that, so Create tries every block size with
// the same row at every place, and keeps the sizes whose results agree everywhere.
class LinearProduct {
 public:
  // Errors: OutOfMemory; Unsupported when oneDNN has nothing for this machine.
  static Status Create(std::int64_t in_features, std::int64_t out_features,
                       const LinearNormParams& params, std::unique_ptr<LinearProduct>* out);
  ~LinearProduct();

  // The possible numbers of rows of a block, descending. At least one.
  const std::vector<std::int64_t>& block_rows() const;
  std::int64_t tiles() const;
  // A multiple of 16. In the last tile, columns from out_features on are 0.
  std::int64_t tile_columns() const;

  // Runs tasks [begin, end) of tiles() * blocks.size() on the calling thread alone. Task t is tile
  // t / blocks.size() for block t % blocks.size().
  Status Multiply(const std::vector<RowBlock>& blocks, std::int64_t begin, std::int64_t end) const;

 private:
  struct Impl;
  explicit LinearProduct(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// z = x W^T of a whole batch by one call of oneDNN on its own threads, with the weight packed: the
// reference for norm_bench. Not on any serving path.
class BareProduct {
 public:
  // `weight`: out x in floats, not needed after the call.
  static Status Create(std::int64_t samples, std::int64_t in_features, std::int64_t out_features,
                       const float* weight, std::unique_ptr<BareProduct>* out);
  ~BareProduct();

  // On `threads` threads, which must be the same for every call.
  Status Multiply(const float* x, float* z, int threads);

 private:
  struct Impl;
  explicit BareProduct(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_LINEAR_PRODUCT_H_
