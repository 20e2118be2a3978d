// normctl's command line: `normctl COMMAND [arguments] [flags]`.

#ifndef NORMD_CLIENT_NORMCTL_COMMANDS_H_
#define NORMD_CLIENT_NORMCTL_COMMANDS_H_

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace normd::client {

// Exit codes.
inline constexpr int kExitOk = 0;
// The call failed, the response is wrong (--verify), health is not SERVING, or stdout cannot be
// written.
inline constexpr int kExitFailed = 1;
// The command line is wrong; nothing was sent.
inline constexpr int kExitUsage = 2;

// Runs one command line, without the program's name; blocks. Results go to `out`, errors to `err`,
// each on one line that begins with "normctl: ". `terminal`: `err` is a terminal, and may show
// progress.
int RunNormctl(absl::Span<const std::string> arguments, std::ostream& out, std::ostream& err,
               bool terminal);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_COMMANDS_H_
