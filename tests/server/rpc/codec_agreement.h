// Holds the codec against the generated messages, which are its specification.

#ifndef NORMD_TESTS_SERVER_RPC_CODEC_AGREEMENT_H_
#define NORMD_TESTS_SERVER_RPC_CODEC_AGREEMENT_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "server/rpc/codec.h"

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

// Decodes `wire`, cut at `cuts`, with the codec and with the generated class. Empty if both accept
// it and read the same, or both refuse it, or the codec refuses it for one of its caps; otherwise
// what differs.
std::string Disagreement(absl::string_view wire, absl::Span<const std::size_t> cuts);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_CODEC_AGREEMENT_H_
