// Inflates compressed messages within limits.

#ifndef NORMD_SERVER_ACCEPT_INFLATE_H_
#define NORMD_SERVER_ACCEPT_INFLATE_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"

namespace normd {

enum class Encoding { kIdentity, kDeflate, kGzip };  // As grpc-encoding and HTTP name them.

struct InflateTarget {
  std::int64_t max_bytes;  // The limit of the inflated message.
  // The memory for this many more bytes, at most 64 KiB; an error ends the inflating. The memory
  // given before may move by then.
  absl::FunctionRef<absl::StatusOr<MutableBytes>(std::int64_t bytes)> room;
  absl::string_view header;  // Where the protocol names the encoding.
};

// Inflates `compressed` into the target's memory, which is filled in order, and returns the number
// of inflated bytes. Never asks for more than the limit and one byte. InvalidArgument for a message
// that is larger or not of that encoding (kDeflate is zlib's format) and for bytes after its end;
// the errors of `room`. May throw std::bad_alloc. Requires an encoding that is not kIdentity.
absl::StatusOr<std::int64_t> Inflate(Encoding encoding, absl::Span<const ConstBytes> compressed,
                                     const InflateTarget& target);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_INFLATE_H_
