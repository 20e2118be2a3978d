// Inputs of a case and the check of its outputs, in host memory.

#ifndef NORMD_KERNELS_BENCH_DATA_H_
#define NORMD_KERNELS_BENCH_DATA_H_

#include <cstdint>
#include <vector>

#include "kernels/bench/case.h"

namespace normd::norm::bench {

inline constexpr std::int64_t kPoolElements = std::int64_t{1} << 16;
inline constexpr std::int64_t kPoolChunkElements = 4096;

// `elements` values of `dtype`, uniform in [low, high), drawn from `seed`.
std::vector<char> RandomElements(DType dtype, std::int64_t elements, double low, double high,
                                 std::uint64_t seed);

// The place in a pool of kPoolElements at which the values of a tensor's chunk begin. Large tensors
// are filled with chunks of kPoolChunkElements from one pool: as fast as a copy, and no two rows
// are alike.
constexpr std::int64_t PoolOffset(std::int64_t chunk, std::uint64_t seed) {
  std::uint64_t z = (static_cast<std::uint64_t>(chunk) + seed) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::int64_t>((z >> 31) %
                                   static_cast<std::uint64_t>(kPoolElements - kPoolChunkElements));
}

// The parameters of a case: gamma and beta, and the others where the case needs them.
struct HostParams {
  HostParams(const Case& c, DType dtype, std::uint64_t seed);
  NormParams view() const;

  DType dtype;
  std::vector<char> gamma, beta, mean, variance, input_bias;  // Any may be empty.
};

// StagedMaxError over whole rows at even distances, including the first and the last, of about
// `max_elements` elements together; for specs that are not plain, over whole samples. Adds the
// number of elements to *checked.
double MaxError(const NormSpec& spec, const NormParams& params, const Segment& segment,
                std::int64_t max_elements, std::int64_t* checked);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_DATA_H_
