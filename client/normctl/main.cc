#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "client/normctl/commands.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return normd::client::RunNormctl(arguments, std::cout, std::cerr, isatty(STDERR_FILENO) != 0);
}
