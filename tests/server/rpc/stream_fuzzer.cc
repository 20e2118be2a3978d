// A stream's call: decoder, pieces and driver. Each input is a script; see stream_script.h.

#include <cstddef>
#include <cstdint>
#include <string>

#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/expect.h"
#include "tests/server/rpc/stream_script.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  const std::string broken =
      normd::testing::PlayStreamScript({reinterpret_cast<const char*>(data), size});
  normd::testing::Expect(broken.empty(), "a stream keeps its promises", broken);
  return 0;
}
