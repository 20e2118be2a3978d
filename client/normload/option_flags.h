// The flags of normload: each is declared here, once, with its unit and its help.

#ifndef NORMD_CLIENT_NORMLOAD_OPTION_FLAGS_H_
#define NORMD_CLIENT_NORMLOAD_OPTION_FLAGS_H_

#include <string>

#include "client/normload/options.h"
#include "flags/flag_set.h"

namespace normd::load {

// The flags of a load test. What they set is a member of `o`, which outlives `flags`.
void AddFlags(ProgramOptions& o, FlagSet& flags);

// Those of the reports alone, likewise.
void AddFileFlags(ReportFiles& files, FlagSet& flags);

// What --help prints.
std::string HelpText();

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_OPTION_FLAGS_H_
