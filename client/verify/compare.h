// An answer against the float64 reference.

#ifndef NORMD_CLIENT_VERIFY_COMPARE_H_
#define NORMD_CLIENT_VERIFY_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "kernels/norm.h"

namespace normd::client {

struct Comparison {
  std::int64_t elements = 0;
  std::int64_t wrong = 0;  // Outside the tolerance.
  // Largest |y - expected| / max(1, |expected|); infinite where one of the two is a NaN or an
  // infinity and the other is not the same.
  double max_error = 0;
  // Of the element with that error.
  std::int64_t worst_index = -1;
  double worst_expected = 0;
  double worst_got = 0;

  bool ok() const { return wrong == 0; }
};

// Compares `pieces`, which together hold expected.size() elements of `dtype` in order and may be
// split anywhere, with the unrounded results. Tolerances: float32 1e-4 and float64 1e-9 of
// max(1, |expected|); float16 and bfloat16 one unit in the last place of the rounded expectation,
// or 1e-5 where cancellation leaves results near zero. Two NaNs agree. Cost: one thread, about 2 ns
// an element.
Comparison Compare(norm::DType dtype, absl::Span<const absl::Span<const std::byte>> pieces,
                   absl::Span<const double> expected);

// "max error 2.4e-07 over 33554432 elements", and what is wrong if anything is.
std::string Describe(const Comparison& comparison);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_COMPARE_H_
