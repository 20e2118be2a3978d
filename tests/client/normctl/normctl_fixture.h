// normctl within the test, against a fake server with one model, whose parameters and an input lie
// in a folder.

#ifndef NORMD_TESTS_CLIENT_NORMCTL_NORMCTL_FIXTURE_H_
#define NORMD_TESTS_CLIENT_NORMCTL_NORMCTL_FIXTURE_H_

#include <sstream>
#include <string>
#include <vector>

#include "client/normctl/commands.h"
#include "client/tensor/npy.h"
#include "client/tensor/random.h"
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
    v1::ModelConfig config;
    config.mutable_group_norm()->set_channels(8);
    config.mutable_group_norm()->set_groups(2);
    config.set_activation(v1::SILU);
    server_.AddModel("group", config, test::AffineParameters(8));
    test::WriteModel(folder_.path(), "group", config, test::AffineParameters(8));
    const Tensor x =
        RandomTensor(norm::DType::kFloat32, Shape::Create({2, 8, 5}).value(), 0, 1, 1).value();
    EXPECT_TRUE(WriteNpy(folder_.File("x.npy"), x.view()).ok());
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
