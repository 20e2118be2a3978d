#include "client/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/reference.h"

namespace normd::client {
namespace {

// |y - expected| / max(1, |expected|); the header defines it for NaNs and infinities.
double ErrorOf(double got, double expected) {
  if (std::isnan(got) && std::isnan(expected)) return 0;
  if (got == expected) return 0;
  if (!std::isfinite(got) || !std::isfinite(expected)) {
    return std::numeric_limits<double>::infinity();
  }
  return std::fabs(got - expected) / std::max(1.0, std::fabs(expected));
}

// The number's place on the line of all numbers of its 16-bit format.
int Place(std::uint16_t bits) {
  const int magnitude = bits & 0x7fff;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool WithinOneUnit(norm::DType dtype, const std::byte* got, double expected) {
  std::uint16_t got_bits = 0;
  std::uint16_t expected_bits = 0;
  std::memcpy(&got_bits, got, sizeof(got_bits));
  norm::StoreElement(dtype, &expected_bits, 0, expected);
  return std::abs(Place(got_bits) - Place(expected_bits)) <= 1;
}

double Rounded(norm::DType dtype, double value) {
  std::byte element[1];
  norm::StoreElement(dtype, element, 0, value);
  return norm::LoadElement(dtype, element, 0);
}

bool IsQuantized(norm::DType dtype) {
  return dtype == norm::DType::kInt8 || dtype == norm::DType::kFloat8E4M3;
}

bool IsRounding(norm::DType dtype, double got, double expected) {
  if (std::isnan(expected)) return got == Rounded(dtype, expected) || std::isnan(got);
  const double slack = 2e-4 * std::max(1.0, std::fabs(expected));
  return got >= Rounded(dtype, expected - slack) && got <= Rounded(dtype, expected + slack);
}

// What of the element differs from its rounded expectation.
double ErrorOfQuantized(norm::DType dtype, double got, double expected) {
  const double rounded = Rounded(dtype, expected);
  return got == rounded || (std::isnan(got) && std::isnan(rounded)) ? 0 : ErrorOf(got, expected);
}

bool Right(norm::DType dtype, const std::byte* element, double error, double expected) {
  switch (dtype) {
    case norm::DType::kFloat32: return error <= 1e-4;
    case norm::DType::kFloat64: return error <= 1e-9;
    case norm::DType::kFloat16:
    case norm::DType::kBFloat16:
      if (error <= 1e-5) return true;
      // A finite result beyond the format's range rounds to infinity, one unit above its largest.
      return !std::isnan(expected) && WithinOneUnit(dtype, element, expected);
    case norm::DType::kInt8:
    case norm::DType::kFloat8E4M3:
      return IsRounding(dtype, norm::LoadElement(dtype, element, 0), expected);
    case norm::DType::kInt64: return error == 0;
  }
  return false;
}

}  // namespace

Comparison Compare(norm::DType dtype, absl::Span<const absl::Span<const std::byte>> pieces,
                   absl::Span<const double> expected) {
  Comparison result;
  const std::size_t size = norm::SizeOf(dtype);
  std::byte element[8] = {};
  std::size_t filled = 0;  // Bytes so far of an element that two pieces share.
  const auto check = [&](const std::byte* at) {
    const double want = expected[static_cast<std::size_t>(result.elements)];
    const double got = norm::LoadElement(dtype, at, 0);
    const double error =
        IsQuantized(dtype) ? ErrorOfQuantized(dtype, got, want) : ErrorOf(got, want);
    if (!Right(dtype, at, error, want)) ++result.wrong;
    if (error > result.max_error || result.worst_index < 0) {
      result.max_error = error;
      result.worst_index = result.elements;
      result.worst_expected = want;
      result.worst_got = got;
    }
    ++result.elements;
  };
  for (absl::Span<const std::byte> piece : pieces) {
    while (!piece.empty() && result.elements < static_cast<std::int64_t>(expected.size())) {
      if (filled == 0 && piece.size() >= size) {
        check(piece.data());
        piece.remove_prefix(size);
        continue;
      }
      element[filled++] = piece.front();
      piece.remove_prefix(1);
      if (filled == size) {
        check(element);
        filled = 0;
      }
    }
  }
  // Elements that did not come are wrong.
  const std::int64_t missing = static_cast<std::int64_t>(expected.size()) - result.elements;
  result.wrong += missing;
  if (missing > 0) result.max_error = std::numeric_limits<double>::infinity();
  return result;
}

void Add(const Comparison& part, Comparison& whole) {
  if (part.max_error > whole.max_error || whole.worst_index < 0) {
    whole.max_error = part.max_error;
    whole.worst_index = part.worst_index < 0 ? -1 : whole.elements + part.worst_index;
    whole.worst_expected = part.worst_expected;
    whole.worst_got = part.worst_got;
  }
  whole.elements += part.elements;
  whole.wrong += part.wrong;
}

ReceivedTensors::ReceivedTensors(absl::Span<const TensorSpec> specs,
                                 absl::Span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) bytes_.push_back(tensor.bytes());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    tensors_.push_back({&specs[i], absl::MakeConstSpan(&bytes_[i], 1)});
  }
}

absl::StatusOr<Comparison> CompareOutputs(absl::Span<const ReceivedTensor> received,
                                          absl::Span<const ReferenceOutput> expected) {
  if (received.size() != expected.size()) {
    return absl::DataLossError(
        absl::StrCat("the response has ", received.size(), " outputs, wanted ", expected.size()));
  }
  Comparison whole;
  for (std::size_t i = 0; i < received.size(); ++i) {
    const TensorSpec& got = *received[i].spec;
    const TensorSpec& wanted = expected[i].spec;
    const bool is_named = received.size() == 1 || got.name == wanted.name;
    if (!is_named || got.dtype != wanted.dtype || !(got.shape == wanted.shape)) {
      return absl::DataLossError(absl::StrCat("the response is ", got.name,
                                              got.name.empty() ? "" : " ", norm::Name(got.dtype),
                                              " ", got.shape.ToString()));
    }
    Add(Compare(got.dtype, received[i].pieces, expected[i].elements), whole);
  }
  return whole;
}

std::string Describe(const Comparison& c) {
  std::string text = absl::StrFormat("max error %.2g over %d elements", c.max_error, c.elements);
  if (!c.ok()) {
    absl::StrAppendFormat(&text, ", %d wrong; element %d: got %.9g, expected %.9g", c.wrong,
                          c.worst_index, c.worst_got, c.worst_expected);
  }
  return text;
}

}  // namespace normd::client
