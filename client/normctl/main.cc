#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/normctl/commands.h"

int main(int argc, char** argv) {
  // gRPC's own lines would come beside the one message in which each error ends.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return normd::client::RunNormctl(arguments, std::cout, std::cerr, isatty(STDERR_FILENO) != 0);
}
