// The sums and the affine steps of the columns of a tile whose rows interleave.

#ifndef NORMD_KERNELS_CPU_STAGED_COLUMNS_H_
#define NORMD_KERNELS_CPU_STAGED_COLUMNS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/loop_arguments.h"
#include "kernels/cpu/sample_affine.h"

namespace normd::norm::cpu {

// The affine step of a tile's lines, one element per column.
template <class Acc>
struct ColumnArrays {
  explicit ColumnArrays(std::int64_t columns)
      : center(static_cast<std::size_t>(columns)), scale(center), shift(center) {}

  // Call for each column in turn.
  void Set(std::size_t column, const RowStatistics& statistics, const FactorAndOffset& terms) {
    center[column] = static_cast<Acc>(statistics.mean);
    const double its_scale = statistics.rstd * terms.factor;
    scale[column] = static_cast<Acc>(its_scale);
    shift[column] = static_cast<Acc>(terms.offset + LostShift<Acc>(statistics.mean, its_scale));
    largest_center = std::max(largest_center, std::fabs(statistics.mean));
  }
  // Call for a column that is set, before the next one, if it has a factor other than 1.
  void SetInputFactor(std::size_t column, double input_factor, double its_scale) {
    factors.Add(static_cast<std::int64_t>(column), input_factor);
    scale[column] = static_cast<Acc>(its_scale);
  }

  // Call after every column is set.
  void Finish() {
    factors.Finish(static_cast<std::int64_t>(center.size()));
    factor = CenterFactor<Acc>(largest_center);
    if (factor == 1) return;
    for (std::size_t i = 0; i < center.size(); ++i) {
      center[i] *= static_cast<Acc>(factor);
      scale[i] /= static_cast<Acc>(factor);
    }
  }

  std::vector<Acc> center;
  std::vector<Acc> scale;
  std::vector<Acc> shift;
  double largest_center = 0;
  double factor = 1;
  FactorRuns factors;
};

// Two numbers per block and column: mean and squared deviations, or a sum and an unused one.
class BlockSums {
 public:
  BlockSums(std::int64_t blocks, std::int64_t columns)
      : columns_(columns), values_(static_cast<std::size_t>(2 * blocks * columns)) {}

  double* First(std::int64_t block) { return values_.data() + 2 * block * columns_; }
  double* Second(std::int64_t block) { return First(block) + columns_; }

 private:
  std::int64_t columns_;
  std::vector<double> values_;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_STAGED_COLUMNS_H_
