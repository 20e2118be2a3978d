// What a shell is told of the commands, to complete a command line.

#ifndef NORMD_CLIENT_NORMCTL_COMPLETION_H_
#define NORMD_CLIENT_NORMCTL_COMPLETION_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace normd::client {

struct CommandWords {
  std::string name;
  std::vector<std::string> flags;  // "--name=", or "--name" where it takes no value.
};

// A script that bash sources: it completes commands, their flags, and otherwise files.
std::string BashCompletion(absl::Span<const CommandWords> commands);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_COMPLETION_H_
