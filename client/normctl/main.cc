#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/normctl/commands.h"

int main(int argc, char** argv) {
  // Each error ends in one message; gRPC's own lines would come beside it.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return normd::client::RunNormctl(arguments, std::cout, std::cerr, isatty(STDERR_FILENO) != 0);
}
