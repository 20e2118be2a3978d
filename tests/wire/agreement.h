// Holds the decoders against the generated messages, which are their specification.

#ifndef NORMD_TESTS_WIRE_AGREEMENT_H_
#define NORMD_TESTS_WIRE_AGREEMENT_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"

namespace normd::testing {

// A message in slices, each in memory of its own and of its exact size, so that a sanitizer sees
// every stray read.
class Slices {
 public:
  // Cuts `wire` at the offsets `cuts` (ascending, repeats give empty slices).
  Slices(absl::string_view wire, absl::Span<const std::size_t> cuts);

  absl::Span<const ConstBytes> views() const { return views_; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<ConstBytes> views_;
};

// The views' bytes in one string.
std::string Join(absl::Span<const ConstBytes> views);

// Decodes `wire`, cut at `cuts`, as a NormalizeRequest or a NormalizeResponse, here and with the
// generated class. Empty if both accept it and read the same, or both refuse it, or it is refused
// here for one of the caps; otherwise what differs.
std::string RequestDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts);
std::string ResponseDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts);
// A ModelInferRequest and a ModelInferResponse likewise.
std::string InferRequestDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts);
std::string InferResponseDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts);
// A NormalizeStreamRequest and a NormalizeStreamResponse: the one part that they have, whose
// message is left as it came.
std::string StreamRequestDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts);
std::string StreamResponseDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts);

}  // namespace normd::testing

#endif  // NORMD_TESTS_WIRE_AGREEMENT_H_
