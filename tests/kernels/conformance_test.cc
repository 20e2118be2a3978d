// Every backend against the float64 reference: operations x types x layouts x shapes.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

enum class Op { kInstanceNorm, kInstanceNormGiven, kGroupNorm, kLayerNorm, kRmsNorm, kBatchNorm };

struct Shape {
  std::int64_t samples;
  std::int64_t channels;
  std::int64_t groups;  // For kGroupNorm.
  std::int64_t spatial;
};

NormSpec MakeSpec(Op op, const Shape& shape, DType dtype, Layout layout) {
  NormSpec spec;
  switch (op) {
    case Op::kInstanceNorm: spec = InstanceNormSpec(shape.channels, dtype); break;
    case Op::kInstanceNormGiven:
      spec = InstanceNormSpec(shape.channels, dtype);
      spec.statistics = Statistics::kGiven;
      break;
    case Op::kGroupNorm: spec = GroupNormSpec(shape.channels, shape.groups, dtype); break;
    case Op::kLayerNorm: spec = LayerNormSpec(shape.channels, dtype); break;
    case Op::kRmsNorm: spec = RmsNormSpec(shape.channels, dtype); break;
    case Op::kBatchNorm: spec = BatchNormSpec(shape.channels, dtype); break;
  }
  spec.layout = layout;
  return spec;
}

class KernelConformanceTest : public ::testing::TestWithParam<std::tuple<Op, DType, Layout>> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  Op op() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  Layout layout() const { return std::get<2>(GetParam()); }

  // Normalizes x (filled by the caller) and checks y, the guards, and that x is untouched.
  void Check(const NormSpec& spec, const ParamSet& params, const Shape& shape, const Tensor& x,
             std::int64_t y_offset, Tolerance tolerance) {
    SCOPED_TRACE(::testing::Message()
                 << backend_->Name() << " " << Name(spec.dtype) << " samples " << shape.samples
                 << " channels " << spec.channels << " groups " << spec.groups << " spatial "
                 << shape.spatial << " y_offset " << y_offset);
    Tensor before(spec.dtype, x.count());
    before.CopyFrom(x);
    Tensor y(spec.dtype, x.count(), y_offset);
    y.Poison();
    const Segment segment{x.data(), y.data(), shape.samples, shape.spatial};
    std::vector<double> expected(static_cast<std::size_t>(x.count()));
    ASSERT_TRUE(NormalizeReference(spec, params.View(), segment, expected.data()).ok());
    const Status status = backend_->Normalize(spec, params.View(), &segment, 1);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(Compare(y, expected, tolerance), "");
    EXPECT_TRUE(y.GuardsIntact());
    EXPECT_TRUE(x.SameBytes(before));
  }

  void CheckShape(const Shape& shape, std::int64_t x_offset = 0, std::int64_t y_offset = 0) {
    const NormSpec spec = MakeSpec(op(), shape, dtype(), layout());
    Tensor x(dtype(), shape.samples * shape.channels * shape.spatial, x_offset);
    x.Fill(Data::kNormal, TestSeed() + static_cast<std::uint64_t>(x.count()));
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 1);
    Check(spec, params, shape, x, y_offset, TightTolerance(dtype()));
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
};

TEST_P(KernelConformanceTest, AgreesWithReferenceAroundVectorAndBlockLengths) {
  for (const std::int64_t length : {1,  2,  3,   7,   8,   15,  16,  17,  31,   32,   33,   63,
                                    64, 65, 127, 129, 255, 257, 511, 513, 1023, 1024, 1025, 2049}) {
    CheckShape({2, 4, 2, length});
    CheckShape({3, length, 1, 1});
  }
}

TEST_P(KernelConformanceTest, AgreesWithReferenceAroundChunkAndPartLengths) {
  // Chunks of 4096 elements, parts of 65536, in one channel and over several.
  for (const std::int64_t length : {4095, 4096, 4097, 65535, 65536, 65537, 140001}) {
    CheckShape({1, 2, 1, length});
  }
  CheckShape({1, 70001, 1, 1});
  CheckShape({1, 6, 2, 50001});
}

TEST_P(KernelConformanceTest, AgreesWithReferenceForManyChannelCounts) {
  for (const Shape& shape :
       {Shape{2, 1, 1, 37}, Shape{2, 3, 1, 333}, Shape{1, 3, 3, 100}, Shape{2, 6, 3, 49},
        Shape{1, 20, 5, 64}, Shape{2, 64, 8, 49}, Shape{1, 65, 5, 40}, Shape{1, 257, 1, 33},
        Shape{1, 320, 32, 64}, Shape{1, 515, 5, 17}, Shape{9, 8, 4, 5}, Shape{40, 3, 3, 2}}) {
    CheckShape(shape);
  }
}

TEST_P(KernelConformanceTest, AgreesWithReferenceAtAnyAlignment) {
  for (const std::int64_t offset : {1, 3, 5, 9}) {
    CheckShape({2, 6, 3, 77}, offset, 0);
    CheckShape({2, 6, 3, 77}, 0, offset);
    CheckShape({3, 1027, 1, 1}, offset, offset + 1);
  }
}

TEST_P(KernelConformanceTest, AgreesWithReferenceForParametersOfEveryType) {
  const Shape shape{2, 20, 4, 19};
  const NormSpec spec = MakeSpec(op(), shape, dtype(), layout());
  Tensor x(dtype(), shape.samples * shape.channels * shape.spatial);
  x.Fill(Data::kUniform, TestSeed() + 2);
  for (const DType param : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    Check(spec, ParamSet(spec, param, TestSeed() + 3), shape, x, 0, TightTolerance(dtype()));
  }
  Check(spec, ParamSet(spec, DType::kFloat32, TestSeed(), false), shape, x, 0,
        TightTolerance(dtype()));
}

TEST_P(KernelConformanceTest, AgreesWithReferenceForEveryActivation) {
  const Shape shape{2, 12, 3, 67};
  NormSpec spec = MakeSpec(op(), shape, dtype(), layout());
  const ParamSet params(spec, DType::kFloat32, TestSeed() + 4);
  Tensor x(dtype(), shape.samples * shape.channels * shape.spatial);
  x.Fill(Data::kNormal, TestSeed() + 5);
  // With given statistics these reach far into both tails of the activations.
  for (std::int64_t i = 0; i < x.count(); i += 3) x.Set(i, 8 * x.Get(i));
  for (const Activation activation : {Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
                                      Activation::kGeluErf, Activation::kGeluTanh}) {
    SCOPED_TRACE(static_cast<int>(activation));
    spec.activation = activation;
    Check(spec, params, shape, x, 0, TightTolerance(dtype()));
  }
}

std::string ParamName(const ::testing::TestParamInfo<std::tuple<Op, DType, Layout>>& info) {
  static constexpr const char* kOps[] = {"InstanceNorm", "InstanceNormGiven", "GroupNorm",
                                         "LayerNorm",    "RmsNorm",           "BatchNorm"};
  return std::string(kOps[static_cast<int>(std::get<0>(info.param))]) + "_" +
         Name(std::get<1>(info.param)) + "_" +
         (std::get<2>(info.param) == Layout::kChannelsFirst ? "first" : "last");
}

INSTANTIATE_TEST_SUITE_P(
    All, KernelConformanceTest,
    ::testing::Combine(::testing::Values(Op::kInstanceNorm, Op::kInstanceNormGiven, Op::kGroupNorm,
                                         Op::kLayerNorm, Op::kRmsNorm, Op::kBatchNorm),
                       ::testing::Values(DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                         DType::kBFloat16),
                       ::testing::Values(Layout::kChannelsFirst, Layout::kChannelsLast)),
    ParamName);

}  // namespace
}  // namespace normd::norm::testing
