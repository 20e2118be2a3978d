// Compressed messages, inflated within bounds.

#ifndef NORMD_SERVER_RPC_INFLATE_H_
#define NORMD_SERVER_RPC_INFLATE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "grpcpp/support/slice.h"

namespace normd {

enum class Encoding { kIdentity, kDeflate, kGzip };  // As grpc-encoding names them.

struct InflateLimits {
  std::int64_t max_bytes;  // Of the inflated message.
  // Asked before so many bytes more are allocated; an error ends the inflating.
  absl::FunctionRef<absl::Status(std::int64_t bytes)> take;
};

// Appends what `compressed` inflates to, in slices of at most 64 KiB. Allocates no more than
// `limits` let it, whatever comes. InvalidArgument for what is larger or not of that encoding
// (kDeflate is zlib's format) and for bytes behind its end; the errors of `take`. May throw
// std::bad_alloc. Requires an encoding that is not kIdentity.
absl::Status Inflate(Encoding encoding, absl::Span<const ConstBytes> compressed,
                     const InflateLimits& limits, std::vector<grpc::Slice>& inflated);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFLATE_H_
