// What the values of flags have to be. Each check returns what it wants instead; empty: the value
// will do.

#ifndef NORMD_SERVER_CONFIG_FLAG_CHECKS_H_
#define NORMD_SERVER_CONFIG_FLAG_CHECKS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "flags/flag_set.h"

namespace normd {

inline constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

FlagCheck<std::int64_t> From(std::int64_t low, std::int64_t high = kUnbounded);
// From 0.
FlagCheck<absl::Duration> UpTo(absl::Duration high);
// A duration that is not without end.
FlagCheck<absl::Duration> From1MsTo(absl::Duration high);
// 0, or at least 10 ms.
FlagCheck<absl::Duration> BeOffOrFrom10MsTo(absl::Duration high);
FlagCheck<std::string> BeOneOf(std::vector<std::string> known);

// Above 0, at most 1.
std::string BeAShare(double value);
// Paths, separated by commas.
std::string BeFolders(const std::string& value);
std::string BeAnAddress(const std::string& value);
std::string BeAnAddressOrNone(const std::string& value);
// A unix socket, too.
std::string BeAListenAddress(const std::string& value);
// Or several, with commas between them.
std::string BeListenAddresses(const std::string& value);
std::string BeALogLevel(const std::string& value);
std::string BeOnOffOrAuto(const std::string& value);

}  // namespace normd

#endif  // NORMD_SERVER_CONFIG_FLAG_CHECKS_H_
