// Every backend against PyTorch: float32 is never twice as far from float64. That the reference has
// PyTorch's results is tested in tests/client/verify, that backends have the reference's in
// stages_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

// PyTorch float32's distance from its float64 on data of MakeGoldenData.
struct GoldenError {
  std::string op;
  std::string data;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  double max = 0;
  double rms = 0;
};

// 24 uniform bits for each index.
double Hashed(std::uint64_t index, std::uint64_t stream) {
  std::uint64_t v = (index * 8 + stream) * 0x9E3779B97F4A7C15u;
  v ^= v >> 32;
  v *= 0xD6E8FEB86659FD93u;
  return static_cast<double>(v >> 40);
}

// Reads golden.txt of `folder`; throws std::runtime_error if it is broken.
std::vector<GoldenError> ReadGolden(const std::string& folder) {
  std::ifstream text(folder + "/golden.txt");
  if (!text) throw std::runtime_error("no golden.txt in " + folder);
  std::vector<GoldenError> golden;
  for (std::string record; std::getline(text, record);) {
    if (record[0] == '#') continue;
    std::istringstream line(record);
    GoldenError& e = golden.emplace_back();
    line >> e.op >> e.data >> e.rows >> e.length >> e.max >> e.rms;
    if (line.fail()) throw std::runtime_error("golden.txt: cannot read: " + record);
  }
  return golden;
}

// The spec of an op by make_golden.py's name for it.
NormSpec GoldenSpec(const std::string& op, std::int64_t channels, std::int64_t groups) {
  if (op == "instance_norm") return InstanceNormSpec(channels, DType::kFloat32);
  if (op == "group_norm") return GroupNormSpec(channels, groups, DType::kFloat32);
  if (op == "layer_norm") return LayerNormSpec(channels, DType::kFloat32);
  if (op == "rms_norm") return RmsNormSpec(channels, DType::kFloat32);
  throw std::runtime_error("golden.txt: unknown op " + op);
}

// make_golden.py's data_set(): rows * length float32 elements.
Tensor MakeGoldenData(const std::string& data, std::int64_t rows, std::int64_t length) {
  Tensor x(DType::kFloat32, rows * length);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const std::uint64_t index = static_cast<std::uint64_t>(i);
    double sum = 0;
    for (std::uint64_t stream = 0; stream < 4; ++stream) sum += Hashed(index, stream);
    const double normal = (sum / 16777216 - 2) * std::sqrt(3.0);
    double value = normal;
    if (data == "uniform") {
      value = Hashed(index, 0) / 16777216;
    } else if (data == "large_mean") {
      value = 1e4 + normal;
    } else if (data == "constant") {
      value = 3.3;
    } else if (data == "outlier") {
      if (i == length / 3) value = 1e6;
    } else if (data == "front") {
      value = i % length < 100 ? 5 + normal : 0.7;
    } else if (data != "normal") {
      throw std::runtime_error("golden.txt: unknown data " + data);
    }
    x.Set(i, value);
  }
  return x;
}

// NORMD_TEST_GOLDEN names the folder where the tests run away from the source tree.
std::string GoldenFolder() {
  const char* folder = std::getenv("NORMD_TEST_GOLDEN");
  return folder != nullptr ? folder : NORMD_GOLDEN_FOLDER;
}

class KernelGoldenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
};

TEST_F(KernelGoldenTest, Float32IsNeverTwiceAsFarFromFloat64AsPyTorch) {
  const std::vector<GoldenError> golden = ReadGolden(GoldenFolder());
  ASSERT_GT(golden.size(), 50u);
  for (const GoldenError& e : golden) {
    SCOPED_TRACE(::testing::Message()
                 << e.op << " " << e.data << " " << e.rows << " x " << e.length);
    const Tensor x = MakeGoldenData(e.data, e.rows, e.length);
    const bool elementwise = e.op == "layer_norm" || e.op == "rms_norm";
    const std::int64_t channels = elementwise ? e.length : e.rows;
    const std::int64_t samples = elementwise ? e.rows : 1;
    const std::int64_t spatial = elementwise ? 1 : e.length;
    const NormSpec spec = GoldenSpec(e.op, channels, e.rows);
    Tensor y(DType::kFloat32, x.count());
    const Segment segment{x.data(), y.data(), samples, spatial};
    ASSERT_TRUE(backend_->Normalize(spec, {}, &segment, 1).ok());
    std::vector<double> expected(static_cast<std::size_t>(x.count()));
    ASSERT_TRUE(NormalizeReference(spec, {}, segment, expected.data()).ok());
    double max = 0;
    double squares = 0;
    double largest = 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double error = std::fabs(y.Get(i) - expected[static_cast<std::size_t>(i)]);
      max = std::max(max, error);
      squares += error * error;
      largest = std::max(largest, std::fabs(expected[static_cast<std::size_t>(i)]));
    }
    const double rms = std::sqrt(squares / static_cast<double>(x.count()));
    RecordProperty(e.op + "_" + e.data + "_" + std::to_string(e.length),
                   std::to_string(max / std::max(e.max, 1e-30)));
    // PyTorch is exact by luck on some data: one rounding of the largest result is always allowed.
    const double rounding = largest * 0x1p-24;
    EXPECT_LE(max, std::max(2 * e.max, 2 * rounding)) << "PyTorch: " << e.max;
    EXPECT_LE(rms, std::max(2 * e.rms, rounding)) << "PyTorch: " << e.rms;
  }
}

}  // namespace
}  // namespace normd::norm::testing
