// A fuzzer that finds something, for the test of the replay.

#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "tests/fuzz/expect.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  normd::testing::Expect(!absl::StrContains(text, "abb"), "no abb", text);
  return 0;
}
