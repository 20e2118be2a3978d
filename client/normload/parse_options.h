// normload's command line. Each flag is declared once, in parse_options.cc, with its unit, its help
// and its check.

#ifndef NORMD_CLIENT_NORMLOAD_PARSE_OPTIONS_H_
#define NORMD_CLIENT_NORMLOAD_PARSE_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/normload/options.h"

namespace normd::load {

// InvalidArgument names the flag, what came and what was wanted. With --help nothing else is
// checked.
absl::StatusOr<ProgramOptions> ParseOptions(absl::Span<const std::string> arguments);

// "normload merge": the reports to merge, at least one, and the result's files.
struct MergeOptions {
  std::vector<std::string> reports;
  ReportFiles files;
};

absl::StatusOr<MergeOptions> ParseMergeOptions(absl::Span<const std::string> arguments);

// The text of --help.
std::string HelpText();

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PARSE_OPTIONS_H_
