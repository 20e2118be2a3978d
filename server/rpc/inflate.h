// Inflates compressed messages within limits.

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
  std::int64_t max_bytes;  // The limit of the inflated message.
  // Asked before this many more bytes are allocated; an error ends the inflating.
  absl::FunctionRef<absl::Status(std::int64_t bytes)> take;
};

// Appends the inflated bytes of `compressed`, in slices of at most 64 KiB. Never allocates more
// than `limits` allows. InvalidArgument for a message that is larger or not of that encoding
// (kDeflate is zlib's format) and for bytes after its end; the errors of `take`. May throw
// std::bad_alloc. Requires an encoding that is not kIdentity.
absl::Status Inflate(Encoding encoding, absl::Span<const ConstBytes> compressed,
                     const InflateLimits& limits, std::vector<grpc::Slice>& inflated);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFLATE_H_
