// Text from outside: whether it is a name, and how a log line or an error message shows it.

#ifndef NORMD_BASE_PRINTABLE_H_
#define NORMD_BASE_PRINTABLE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace normd {

// Whether it is 1 to `max_bytes` letters, digits and any of `marks`, beginning with a letter or a
// digit.
bool IsName(absl::string_view text, std::size_t max_bytes, absl::string_view marks);

// `text` on one line of printable ASCII, for every string that a client or a file supplied. Every
// other byte becomes \n, \t, \r or \xNN, and what exceeds `max_bytes` of the original becomes
// "...". A backslash is doubled, so that nothing from outside can look like an escape; quotes stay.
std::string Printable(absl::string_view text, std::size_t max_bytes = 256);

}  // namespace normd

#endif  // NORMD_BASE_PRINTABLE_H_
