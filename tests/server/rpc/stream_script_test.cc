// What stream_fuzzer looks for, over its seeds and as many mutations of them as a test may take.

#include "tests/server/rpc/stream_script.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using testing::PlayStreamScript;
using testing::StreamScriptSeeds;

TEST(StreamScriptTest, EverySeedKeepsThePromises) {
  for (const std::string& seed : StreamScriptSeeds()) {
    ASSERT_EQ(PlayStreamScript(seed), "") << absl::BytesToHexString(seed);
  }
}

TEST(StreamScriptTest, MutatedSeedsKeepThePromises) {
  // Protobuf logs each text that is not UTF-8.
  const google::protobuf::LogSilencer silencer;
  std::mt19937_64 random(norm::testing::TestSeed());
  const std::vector<std::string> seeds = StreamScriptSeeds();
  const auto below = [&random](std::size_t end) {
    return static_cast<std::size_t>(random() % end);
  };
  for (int i = 0; i < 30000; ++i) {
    std::string script = seeds[below(seeds.size())];
    for (std::size_t edits = 1 + below(30); edits > 0; --edits) {
      const std::size_t at = below(script.size() + 1);
      switch (below(4)) {
        case 0: script.insert(at, 1, static_cast<char>(random())); break;
        case 1: script.insert(at, seeds[below(seeds.size())], 1); break;
        case 2: script.insert(at, 1, static_cast<char>(below(13))); break;
        default: script.erase(at, 1);
      }
    }
    ASSERT_EQ(PlayStreamScript(script), "")
        << "script " << i << ": " << absl::BytesToHexString(script);
  }
}

}  // namespace
}  // namespace normd
