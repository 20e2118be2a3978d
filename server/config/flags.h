// The server's flags.

#pragma once

#include "flags/flag_set.h"
#include "server/config/config.h"

namespace normd {

// The flags write to `config`, which outlives them.
FlagSet ServerFlags(ServerConfig& config);

// Conditions between two flags.
absl::Status CheckTogether(const ServerConfig& config);

}  // namespace normd
