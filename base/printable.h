// Text from outside, made fit for a log line or an error message.

#ifndef NORMD_BASE_PRINTABLE_H_
#define NORMD_BASE_PRINTABLE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

// `text` on one line of printable ASCII, for every string that a client or a file supplied. Every
// other byte becomes \n, \t, \r or \xNN, and what exceeds `max_bytes` of the original becomes
// "...". A backslash is doubled, so that nothing from outside can look like an escape; quotes stay.
std::string Printable(absl::string_view text, std::size_t max_bytes = 256);

}  // namespace normd

#endif  // NORMD_BASE_PRINTABLE_H_
