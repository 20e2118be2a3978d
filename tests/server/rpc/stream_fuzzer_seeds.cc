// Writes the scripts that stream_fuzzer begins with: stream_fuzzer_seeds FOLDER.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/server/rpc/stream_script.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: stream_fuzzer_seeds FOLDER\n");
    return 2;
  }
  std::error_code error;
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder, error);
  int number = 0;
  for (const std::string& seed : normd::testing::StreamScriptSeeds()) {
    std::ofstream file(folder / ("seed_" + std::to_string(number++)), std::ios::binary);
    if (!(file << seed)) {
      std::fprintf(stderr, "stream_fuzzer_seeds: %s cannot be written\n", argv[1]);
      return 1;
    }
  }
  return 0;
}
