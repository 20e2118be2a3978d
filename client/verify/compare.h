// Compares a response with the float64 reference.

#ifndef NORMD_CLIENT_VERIFY_COMPARE_H_
#define NORMD_CLIENT_VERIFY_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "client/tensor/tensor.h"
#include "client/verify/reference_model.h"
#include "kernels/types.h"

namespace normd::client {

struct Comparison {
  std::int64_t elements = 0;
  std::int64_t wrong = 0;  // Outside the tolerance.
  // Largest |y - expected| / max(1, |expected|), for quantized elements only where they are not the
  // rounded expectation; infinite if one of the two is a NaN or an infinity and the other is not
  // the same.
  double max_error = 0;
  // The element with that error.
  std::int64_t worst_index = -1;
  double worst_expected = 0;
  double worst_got = 0;

  bool ok() const { return wrong == 0; }
};

// Compares `pieces`, which together hold expected.size() elements of `dtype` in order and may be
// split anywhere, with the unrounded results. Tolerances: float32 1e-4 and float64 1e-9 of max(1,
// |expected|); float16 and bfloat16 one unit in the last place of the rounded expectation, or 1e-5
// where cancellation leaves results near zero; int8 and float8 the rounding of any number within
// 2e-4 of max(1, |expected|) of the expectation. Two NaNs agree, and an int8 of 0 agrees with a
// NaN. Cost: one thread, about 2 ns an element.
Comparison Compare(norm::DType dtype, absl::Span<const absl::Span<const std::byte>> pieces,
                   absl::Span<const double> expected);

// Merges the comparison of later elements into `whole`.
void Add(const Comparison& part, Comparison& whole);

// One output of a response; borrows.
struct ReceivedTensor {
  const TensorSpec* spec = nullptr;
  absl::Span<const ConstBytes> pieces;
};

// A response in `tensors`; borrows both.
class ReceivedTensors {
 public:
  ReceivedTensors(absl::Span<const TensorSpec> specs, absl::Span<const Tensor> tensors);
  absl::Span<const ReceivedTensor> tensors() const { return tensors_; }

 private:
  std::vector<ConstBytes> bytes_;
  std::vector<ReceivedTensor> tensors_;
};

// Compares all outputs of a response, which come in the reference's order, as Compare does. The
// name of an only output does not matter. DataLoss, describing the response, for outputs of another
// number, name, type or shape.
absl::StatusOr<Comparison> CompareOutputs(absl::Span<const ReceivedTensor> received,
                                          absl::Span<const ReferenceOutput> expected);

// "max error 2.4e-07 over 33554432 elements", and the mismatch if there is any.
std::string Describe(const Comparison& comparison);

}  // namespace normd::client

#endif  // NORMD_CLIENT_VERIFY_COMPARE_H_
