// What the values of the server's flags have to be, beside flags/flag_checks.h. Each check returns
// what it wants instead; empty: the value will do.

#ifndef NORMD_SERVER_CONFIG_FLAG_CHECKS_H_
#define NORMD_SERVER_CONFIG_FLAG_CHECKS_H_

#include <string>

#include "absl/time/time.h"
#include "flags/flag_set.h"

namespace normd {

// 0, or at least 10 ms.
FlagCheck<absl::Duration> BeOffOrFrom10MsTo(absl::Duration high);

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
