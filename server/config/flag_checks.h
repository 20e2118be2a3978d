// Checks of the values of the server's flags, beside flags/flag_checks.h. A check returns what it
// wants instead, or an empty string if the value is valid.

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
std::string BeAddressesOrNone(const std::string& value);
std::string BeOriginsOrNone(const std::string& value);
std::string BeAnAddressOrNone(const std::string& value);
// Also a unix socket.
std::string BeAListenAddress(const std::string& value);
// Or several, separated by commas.
std::string BeListenAddresses(const std::string& value);
std::string BeALogLevel(const std::string& value);
std::string BeOnOffOrAuto(const std::string& value);

}  // namespace normd

#endif  // NORMD_SERVER_CONFIG_FLAG_CHECKS_H_
