// normctl within the test, against a fake server with one model, whose parameters and an input lie
// in a folder.

#ifndef NORMD_TESTS_CLIENT_NORMCTL_NORMCTL_FIXTURE_H_
#define NORMD_TESTS_CLIENT_NORMCTL_NORMCTL_FIXTURE_H_

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "client/normctl/commands.h"
#include "client/tensor/npy.h"
#include "gtest/gtest.h"
#include "tests/support/fake_norm_service.h"
#include "tests/support/temp_repository.h"

namespace normd::client {

using ::testing::StartsWith;
using Json = nlohmann::json;

// What a command left behind.
struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

inline Ran Invoke(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = RunNormctl(arguments, out, err, false);
  return {code, out.str(), err.str()};
}

class NormctlTest : public ::testing::Test {
 protected:
  NormctlTest() {
    AddModel("group", "group_norm { channels: 8 groups: 2 } activation: SILU",
             test::AffineParameters(8));
    WriteInput("x.npy", {2, 8, 5});
  }

  // To the server and to the folder.
  void AddModel(const std::string& name, const std::string& config,
                const std::map<std::string, Tensor>& parameters = {}) {
    server_.AddModel(name, test::ConfigOf(config), parameters);
    test::WriteModel(folder_.path(), name, test::ConfigOf(config), parameters);
  }
  void WriteInput(const std::string& name, const std::vector<std::int64_t>& shape,
                  std::uint64_t seed = 1) {
    EXPECT_TRUE(WriteNpy(folder_.File(name), test::RandomFloats(shape, seed).view()).ok());
  }

  // With --server of the fake.
  Ran Call(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server_.target());
    return Invoke(arguments);
  }

  test::FakeNormService server_;
  const test::TempFolder folder_;
};

}  // namespace normd::client

#endif  // NORMD_TESTS_CLIENT_NORMCTL_NORMCTL_FIXTURE_H_
