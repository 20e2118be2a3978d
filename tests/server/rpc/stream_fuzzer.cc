// libFuzzer over a stream's call: decoder, pieces and driver. Built with -DNORMD_FUZZ=ON (clang).
// Each input is a script; see stream_script.h.
//
//   stream_fuzzer_seeds FOLDER && stream_fuzzer FOLDER

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "google/protobuf/stubs/logging.h"
#include "tests/server/rpc/stream_script.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  const std::string broken =
      normd::testing::PlayStreamScript({reinterpret_cast<const char*>(data), size});
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n", broken.c_str());
    std::abort();
  }
  return 0;
}
