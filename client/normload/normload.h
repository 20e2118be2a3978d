// The program: from the command line to the report.

#ifndef NORMD_CLIENT_NORMLOAD_NORMLOAD_H_
#define NORMD_CLIENT_NORMLOAD_NORMLOAD_H_

#include <ostream>
#include <string>

#include "absl/types/span.h"
#include "client/normload/session.h"

namespace normd::load {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // Unreachable server, a wrong response, or too many errors.
inline constexpr int kExitUsage = 2;   // Nothing was sent, or a report not written.

// Runs one command line, without the program's name; blocks. The report goes to `out`; progress and
// errors go to `err`, progress on one redrawn line if `terminal`.
int RunNormload(absl::Span<const std::string> arguments, Interrupts& interrupts, std::ostream& out,
                std::ostream& err, bool terminal);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_NORMLOAD_H_
