// Borrowed runs of bytes.

#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace normd {

using ConstBytes = absl::Span<const std::byte>;
using MutableBytes = absl::Span<std::byte>;

}  // namespace normd
