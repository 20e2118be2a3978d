// The server's flags.

#ifndef NORMD_SERVER_CONFIG_FLAGS_H_
#define NORMD_SERVER_CONFIG_FLAGS_H_

#include "flags/flag_set.h"
#include "server/config/config.h"

namespace normd {

// The flags write to `config`, which outlives them.
FlagSet ServerFlags(ServerConfig& config);

// Conditions between two flags.
absl::Status CheckTogether(const ServerConfig& config);

}  // namespace normd

#endif  // NORMD_SERVER_CONFIG_FLAGS_H_
