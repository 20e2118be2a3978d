// Borrowed runs of bytes.

#ifndef NORMD_BASE_BYTES_H_
#define NORMD_BASE_BYTES_H_

#include <cstddef>

#include "absl/types/span.h"

namespace normd {

using ConstBytes = absl::Span<const std::byte>;
using MutableBytes = absl::Span<std::byte>;

}  // namespace normd

#endif  // NORMD_BASE_BYTES_H_
