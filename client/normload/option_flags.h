// normload's flags: each is declared here, once, with its unit and its help.

#ifndef NORMD_CLIENT_NORMLOAD_OPTION_FLAGS_H_
#define NORMD_CLIENT_NORMLOAD_OPTION_FLAGS_H_

#include <string>

#include "client/normload/options.h"
#include "flags/flag_set.h"

namespace normd::load {

// The flags of a load test. They set members of `o`, which outlives `flags`.
void AddFlags(ProgramOptions& o, FlagSet& flags);

// The flags of the reports alone, likewise.
void AddFileFlags(ReportFiles& files, FlagSet& flags);

// The text of --help.
std::string HelpText();

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_OPTION_FLAGS_H_
