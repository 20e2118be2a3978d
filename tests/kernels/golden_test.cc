// Every backend against PyTorch: the same results, and float32 never twice as far from float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/norm.h"
#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

// The vectors of tests/support/golden: PyTorch's results, and their errors.

struct GoldenCase {
  std::string name;  // The output is tensor "<name>.y".
  std::string op;
  std::string activation;
  std::string inputs;  // Tensors "<inputs>.x", ".gamma", ".beta", ".mean" and ".variance".
  std::int64_t samples = 0;
  std::int64_t channels = 0;
  std::int64_t groups = 0;
  std::int64_t spatial = 0;
};

// PyTorch float32's distance from its float64 on data of MakeGoldenData.
struct GoldenError {
  std::string op;
  std::string data;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  double max = 0;
  double rms = 0;
};

struct Golden {
  std::map<std::string, Tensor> tensors;
  std::vector<GoldenCase> cases;
  std::vector<GoldenError> errors;
};

DType ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (name == Name(dtype)) return dtype;
  }
  throw std::runtime_error("golden.txt: unknown dtype " + name);
}

void ReadTensor(std::istringstream& line, const std::string& blob, Golden* golden) {
  std::string name;
  std::string dtype;
  std::int64_t count = 0;
  std::size_t offset = 0;
  line >> name >> dtype >> count >> offset;
  Tensor tensor(ParseDType(dtype), count);
  if (offset + tensor.bytes() > blob.size()) {
    throw std::runtime_error("golden.bin: too short for " + name);
  }
  std::memcpy(tensor.data(), blob.data() + offset, tensor.bytes());
  golden->tensors.emplace(name, std::move(tensor));
}

// 24 uniform bits for each index.
double Hashed(std::uint64_t index, std::uint64_t stream) {
  std::uint64_t v = (index * 8 + stream) * 0x9E3779B97F4A7C15u;
  v ^= v >> 32;
  v *= 0xD6E8FEB86659FD93u;
  return static_cast<double>(v >> 40);
}

// Reads golden.txt and golden.bin of `folder`; throws std::runtime_error if they are broken.
Golden ReadGolden(const std::string& folder) {
  std::ifstream binary(folder + "/golden.bin", std::ios::binary);
  std::ifstream text(folder + "/golden.txt");
  if (!binary || !text) throw std::runtime_error("no golden vectors in " + folder);
  const std::string blob((std::istreambuf_iterator<char>(binary)),
                         std::istreambuf_iterator<char>());
  Golden golden;
  for (std::string record; std::getline(text, record);) {
    std::istringstream line(record);
    std::string kind;
    line >> kind;
    if (kind == "#") continue;
    if (kind == "tensor") {
      ReadTensor(line, blob, &golden);
    } else if (kind == "case") {
      GoldenCase c;
      line >> c.name >> c.op >> c.activation >> c.inputs >> c.samples >> c.channels >> c.groups >>
          c.spatial;
      golden.cases.push_back(c);
    } else if (kind == "error") {
      GoldenError e;
      line >> e.op >> e.data >> e.rows >> e.length >> e.max >> e.rms;
      golden.errors.push_back(e);
    }
    if (line.fail()) throw std::runtime_error("golden.txt: cannot read: " + record);
  }
  return golden;
}

// The spec of an op by make_golden.py's name for it.
NormSpec GoldenSpec(const std::string& op, std::int64_t channels, std::int64_t groups,
                    DType dtype) {
  NormSpec spec;
  if (op == "instance_norm") {
    spec = InstanceNormSpec(channels, dtype);
  } else if (op == "instance_norm_given") {
    spec = InstanceNormSpec(channels, dtype);
    spec.statistics = Statistics::kGiven;
  } else if (op == "group_norm") {
    spec = GroupNormSpec(channels, groups, dtype);
  } else if (op == "layer_norm") {
    spec = LayerNormSpec(channels, dtype);
  } else if (op == "rms_norm") {
    spec = RmsNormSpec(channels, dtype);
  } else if (op == "batch_norm") {
    spec = BatchNormSpec(channels, dtype);
  } else {
    throw std::runtime_error("golden.txt: unknown op " + op);
  }
  return spec;
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

Activation ParseActivation(const std::string& name) {
  static const std::map<std::string, Activation> kNames = {{"none", Activation::kNone},
                                                           {"relu", Activation::kRelu},
                                                           {"leaky_relu", Activation::kLeakyRelu},
                                                           {"silu", Activation::kSilu},
                                                           {"gelu_erf", Activation::kGeluErf},
                                                           {"gelu_tanh", Activation::kGeluTanh}};
  return kNames.at(name);
}

// From [N, C, S] to [N, S, C], or back with channels and spatial exchanged.
Tensor Transposed(const Tensor& x, std::int64_t channels, std::int64_t spatial) {
  Tensor y(x.dtype(), x.count());
  const std::int64_t samples = x.count() / (channels * spatial);
  for (std::int64_t n = 0; n < samples; ++n) {
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t s = 0; s < spatial; ++s) {
        y.Set((n * spatial + s) * channels + c, x.Get((n * channels + c) * spatial + s));
      }
    }
  }
  return y;
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

  NormParams Params(const GoldenCase& c, const NormSpec& spec) const {
    const auto param = [&](const char* name) {
      const Tensor& tensor = golden_.tensors.at(c.inputs + "." + name);
      return ParamVector{tensor.data(), tensor.dtype()};
    };
    NormParams params;
    params.gamma = param("gamma");
    if (c.op != "rms_norm") params.beta = param("beta");
    if (spec.statistics == Statistics::kGiven) {
      params.mean = param("mean");
      params.variance = param("variance");
    }
    return params;
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
  Golden golden_ = ReadGolden(GoldenFolder());
};

TEST_F(KernelGoldenTest, AgreesWithPyTorch) {
  ASSERT_GT(golden_.cases.size(), 50u);
  for (const GoldenCase& c : golden_.cases) {
    const Tensor& x = golden_.tensors.at(c.inputs + ".x");
    const Tensor& pytorch = golden_.tensors.at(c.name + ".y");
    NormSpec spec = GoldenSpec(c.op, c.channels, c.groups, x.dtype());
    spec.activation = ParseActivation(c.activation);
    spec.leaky_slope = static_cast<double>(0.01f);  // make_golden.py's.
    std::vector<double> expected;
    for (std::int64_t i = 0; i < pytorch.count(); ++i) expected.push_back(pytorch.Get(i));
    // PyTorch rounds its 16-bit results before the activation and between its steps: it may be a
    // few units off itself. The conformance tests hold ours to one unit of float64's.
    Tolerance tolerance = TightTolerance(x.dtype());
    if (SizeOf(x.dtype()) == 2) {
      tolerance = {x.dtype() == DType::kFloat16 ? 2e-3 : 1.6e-2, 0, 3};
    }
    for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
      SCOPED_TRACE(::testing::Message() << c.name << " layout " << static_cast<int>(layout));
      spec.layout = layout;
      const bool last = layout == Layout::kChannelsLast;
      const Tensor transposed = Transposed(x, c.channels, c.spatial);
      const Tensor& in = last ? transposed : x;
      Tensor out(x.dtype(), x.count());
      const Segment segment{in.data(), out.data(), c.samples, c.spatial};
      const Status status = backend_->Normalize(spec, Params(c, spec), &segment, 1);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(Compare(last ? Transposed(out, c.spatial, c.channels) : std::move(out), expected,
                        tolerance),
                "");
    }
  }
}

TEST_F(KernelGoldenTest, Float32IsNeverTwiceAsFarFromFloat64AsPyTorch) {
  ASSERT_GT(golden_.errors.size(), 50u);
  for (const GoldenError& e : golden_.errors) {
    SCOPED_TRACE(::testing::Message()
                 << e.op << " " << e.data << " " << e.rows << " x " << e.length);
    const Tensor x = MakeGoldenData(e.data, e.rows, e.length);
    const bool elementwise = e.op == "layer_norm" || e.op == "rms_norm";
    const std::int64_t channels = elementwise ? e.length : e.rows;
    const std::int64_t samples = elementwise ? e.rows : 1;
    const std::int64_t spatial = elementwise ? 1 : e.length;
    const NormSpec spec = GoldenSpec(e.op, channels, e.rows, DType::kFloat32);
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
