// Checks of flag values, for any program. A check returns what it wants instead, or an empty string
// if the value is valid.

#ifndef NORMD_FLAGS_FLAG_CHECKS_H_
#define NORMD_FLAGS_FLAG_CHECKS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "flags/flag_set.h"

namespace normd {

inline constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

FlagCheck<std::int64_t> From(std::int64_t low, std::int64_t high = kUnbounded);
FlagCheck<double> FromReal(double low, double high = std::numeric_limits<double>::infinity());
FlagCheck<absl::Duration> FromTime(absl::Duration low,
                                   absl::Duration high = absl::InfiniteDuration());
// From 0.
FlagCheck<absl::Duration> UpTo(absl::Duration high);
FlagCheck<std::string> BeOneOf(std::vector<std::string> known);

// A number above 0 and at most 1.
std::string BeAShare(double value);
// A time above 0; it may be infinite.
std::string BePositive(absl::Duration value);

// Whether both paths lead to one regular file, which need not exist yet. Two writers of a device or
// a pipe do not overwrite each other.
bool IsSameFile(const std::string& a, const std::string& b);

struct FileFlag {
  std::string flag;  // "--json"
  std::string path;  // Empty: none.
};
// InvalidArgument if two of these flags would write to one file.
absl::Status CheckFilesDiffer(absl::Span<const FileFlag> files);

}  // namespace normd

#endif  // NORMD_FLAGS_FLAG_CHECKS_H_
