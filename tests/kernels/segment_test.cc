// Every backend: what a segment brings beside x and y, a residual input, the sum as a second
// output, and parameters of its own.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

// Where the outputs go: a letter each for y and residual_out; x and r are in place of the inputs.
enum class Placement { kApart, kYInX, kYInResidual, kBothInPlace, kCrossed, kNoSum, kNoSumInX };

constexpr Placement kPlacements[] = {
    Placement::kApart,   Placement::kYInX,  Placement::kYInResidual, Placement::kBothInPlace,
    Placement::kCrossed, Placement::kNoSum, Placement::kNoSumInX};

struct SegmentShape {
  const char* name;
  NormSpec (*spec)(std::int64_t length, DType dtype);
  std::int64_t (*spatial)(std::int64_t length);
};

const SegmentShape kShapes[] = {
    {"RmsNorm", [](std::int64_t n, DType t) { return RmsNormSpec(n, t); },
     [](std::int64_t) { return std::int64_t{1}; }},
    {"LayerNorm", [](std::int64_t n, DType t) { return LayerNormSpec(n, t); },
     [](std::int64_t) { return std::int64_t{1}; }},
    {"GroupNorm", [](std::int64_t, DType t) { return GroupNormSpec(6, 3, t); },
     [](std::int64_t n) { return (n + 1) / 2; }},
    {"GroupNormOfElements", [](std::int64_t n, DType t) { return GroupNormSpec(2 * n, 2, t); },
     [](std::int64_t) { return std::int64_t{1}; }},
    {"InstanceNorm", [](std::int64_t, DType t) { return InstanceNormSpec(5, t); },
     [](std::int64_t n) { return n; }},
    {"BatchNorm", [](std::int64_t, DType t) { return BatchNormSpec(5, t); },
     [](std::int64_t n) { return n; }},
    {"BatchNormOfElements", [](std::int64_t n, DType t) { return BatchNormSpec(n, t); },
     [](std::int64_t) { return std::int64_t{1}; }},
};

// Around the CPU backend's vectors, runs, chunks and parts.
const std::int64_t kLengths[] = {1, 2, 7, 16, 33, 255, 256, 257, 2048, 2049, 16383, 16385, 65537};
// Longer rows are tried in two of the placements.
constexpr std::int64_t kShortLength = 300;

class SegmentTest : public ::testing::TestWithParam<std::tuple<int, DType, Layout>> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  const SegmentShape& shape() const { return kShapes[std::get<0>(GetParam())]; }
  NormSpec Spec(std::int64_t length) const {
    NormSpec spec = shape().spec(length, std::get<1>(GetParam()));
    spec.layout = std::get<2>(GetParam());
    return spec;
  }
  std::int64_t Draw(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(generator_);
  }

  // The bits of a call without a residual, whose x is the sum, or on a device its results.
  void CheckResidual(NormSpec spec, std::int64_t spatial, Placement placement) {
    const std::int64_t samples = Draw(1, spatial * spec.channels > 20000 ? 2 : 5);
    const std::int64_t count = samples * spec.channels * spatial;
    Tensor x(spec.dtype, count, Draw(0, 1) * Draw(1, 9));
    Tensor residual(spec.dtype, count, Draw(0, 1) * Draw(1, 9));
    x.Fill(Data::kNormal, TestSeed() + 1);
    residual.Fill(Data::kHalfOverflow, TestSeed() + 2);
    const ParamSet params(spec, Draw(0, 1) == 0 ? DType::kFloat32 : spec.dtype, TestSeed() + 3,
                          Draw(0, 3) != 0);

    Tensor sum(spec.dtype, count);
    for (std::int64_t i = 0; i < count; ++i) sum.Set(i, x.Get(i) + residual.Get(i));
    Tensor expected(spec.dtype, count);
    expected.Poison();
    const Segment summed{sum.data(), expected.data(), samples, spatial};
    ASSERT_TRUE(backend_->Normalize(spec, params.View(), &summed, 1).ok());

    spec.residual = true;
    spec.residual_out = placement != Placement::kNoSum && placement != Placement::kNoSumInX;
    Tensor y(spec.dtype, count, Draw(0, 1) * Draw(1, 9));
    Tensor out(spec.dtype, count, Draw(0, 1) * Draw(1, 9));
    y.Poison();
    out.Poison();
    Tensor* to_y = &y;
    Tensor* to_sum = &out;
    if (placement == Placement::kYInX || placement == Placement::kBothInPlace ||
        placement == Placement::kNoSumInX) {
      to_y = &x;
    }
    if (placement == Placement::kYInResidual || placement == Placement::kCrossed) to_y = &residual;
    if (placement == Placement::kBothInPlace) to_sum = &residual;
    if (placement == Placement::kCrossed) to_sum = &x;
    Segment segment{x.data(), to_y->data(), samples, spatial, residual.data()};
    if (spec.residual_out) segment.residual_out = to_sum->data();
    const Status status = backend_->Normalize(spec, params.View(), &segment, 1);
    ASSERT_TRUE(status.ok()) << status.message();
    if (backend_->Name().substr(0, 4) == "cuda") {
      // Rows with a residual have kernels of their own there.
      std::vector<double> reference(static_cast<std::size_t>(count));
      NormSpec plain = spec;
      plain.residual = plain.residual_out = false;
      ASSERT_TRUE(NormalizeReference(plain, params.View(), summed, reference.data()).ok());
      EXPECT_EQ(Compare(*to_y, reference, TightTolerance(spec.dtype)), "") << "y";
    } else {
      EXPECT_TRUE(to_y->SameBytes(expected)) << "y";
    }
    if (spec.residual_out) {
      EXPECT_TRUE(to_sum->SameBytes(sum)) << "residual_out";
    }
    for (const Tensor* tensor : {&x, &residual, &y, &out}) EXPECT_TRUE(tensor->GuardsIntact());
  }

  std::mt19937_64 generator_{TestSeed() + 50};
  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend(3);
};

TEST_P(SegmentTest, AResidualIsAddedBeforeTheRowIsLookedAt) {
  for (const std::int64_t length : kLengths) {
#ifdef NORMD_SANITIZED
    if (length > 2049) continue;  // Several times slower there, which looks for other things.
#endif
    const std::int64_t skipped = length > kShortLength ? Draw(0, 3) : 0;
    for (const Placement placement : kPlacements) {
      if (length > kShortLength && static_cast<std::int64_t>(placement) % 4 != skipped) continue;
      NormSpec spec = Spec(length);
      if (Draw(0, 2) == 0) spec.activation = Activation::kSilu;
      SCOPED_TRACE(::testing::Message()
                   << "row of " << length << ", placement " << static_cast<int>(placement)
                   << ", activation " << static_cast<int>(spec.activation));
      CheckResidual(spec, shape().spatial(length), placement);
      if (HasFatalFailure() || IsSkipped()) return;
    }
  }
}

TEST_P(SegmentTest, ParametersOfItsOwnTakeThePlaceOfTheBatchs) {
  for (const std::int64_t length : {1, 33, 257, 2049, 8193}) {
    SCOPED_TRACE(length);
    const NormSpec spec = Spec(length);
    const std::int64_t spatial = shape().spatial(length);
    const std::int64_t count = spec.channels * spatial;
    constexpr std::size_t kSegments = 4;
    std::vector<ParamSet> params;
    std::vector<NormParams> views;
    std::vector<Tensor> x;
    std::vector<Tensor> y;
    for (std::size_t i = 0; i < kSegments; ++i) {
      params.emplace_back(spec, i % 2 == 0 ? DType::kFloat32 : spec.dtype, TestSeed() + 10 + i);
      x.emplace_back(spec.dtype, count);
      y.emplace_back(spec.dtype, count);
      x.back().Fill(Data::kNormal, TestSeed() + 20 + i);
      y.back().Poison();
    }
    for (const ParamSet& set : params) views.push_back(set.View());
    std::vector<Segment> batch;
    for (std::size_t i = 0; i < kSegments; ++i) {
      batch.push_back({x[i].data(), y[i].data(), 1, spatial});
      if (i > 0) batch.back().params = &views[i / 2];  // Two share theirs.
    }
    ASSERT_TRUE(backend_->Normalize(spec, views[3], batch.data(), batch.size()).ok());
    for (std::size_t i = 0; i < kSegments; ++i) {
      Tensor expected(spec.dtype, count);
      const Segment alone{x[i].data(), expected.data(), 1, spatial};
      ASSERT_TRUE(backend_->Normalize(spec, i > 0 ? views[i / 2] : views[3], &alone, 1).ok());
      EXPECT_TRUE(y[i].SameBytes(expected)) << "segment " << i;
    }
  }
}

std::string SegmentTestName(const ::testing::TestParamInfo<std::tuple<int, DType, Layout>>& info) {
  return std::string(kShapes[std::get<0>(info.param)].name) + "_" + Name(std::get<1>(info.param)) +
         (std::get<2>(info.param) == Layout::kChannelsFirst ? "_first" : "_last");
}

INSTANTIATE_TEST_SUITE_P(
    All, SegmentTest,
    ::testing::Combine(::testing::Range(0, static_cast<int>(std::size(kShapes))),
                       ::testing::Values(DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                         DType::kBFloat16),
                       ::testing::Values(Layout::kChannelsFirst, Layout::kChannelsLast)),
    SegmentTestName);

// Every backend on batches with nothing in them, or with something wrong. bits_test.cc has the
// bits.

class KernelBatchTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  DType dtype() const { return GetParam(); }

  // Own statistics in both layouts, given ones, and one that is elementwise where spatial is 1.
  std::vector<NormSpec> Specs() const {
    std::vector<NormSpec> specs = {InstanceNormSpec(8, dtype()), GroupNormSpec(8, 2, dtype()),
                                   LayerNormSpec(8, dtype()), BatchNormSpec(8, dtype())};
    for (std::size_t i = 0, n = specs.size(); i < n; ++i) {
      specs.push_back(specs[i]);
      specs.back().layout = Layout::kChannelsLast;
    }
    return specs;
  }

  std::unique_ptr<KernelBackend> backend_ = MakeKernelBackend();
};

struct Request {
  Request(DType dtype, std::int64_t samples_of, std::int64_t spatial_of)
      : samples(samples_of),
        spatial(spatial_of),
        x(dtype, samples * 8 * spatial),
        y(dtype, x.count()) {
    x.Fill(Data::kNormal, TestSeed() + static_cast<std::uint64_t>(x.count()));
    y.Poison();
  }
  Segment View() { return {x.data(), y.data(), samples, spatial}; }

  std::int64_t samples;
  std::int64_t spatial;
  Tensor x;
  Tensor y;
};

TEST_P(KernelBatchTest, WritesNothingForEmptyTensors) {
  for (const NormSpec& spec : Specs()) {
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 23);
    EXPECT_TRUE(backend_->Normalize(spec, params.View(), nullptr, 0).ok());
    Request request(dtype(), 1, 10);
    Tensor untouched(dtype(), request.y.count());
    untouched.Poison();
    const Segment empties[] = {{nullptr, nullptr, 0, 10},
                               {request.x.data(), request.y.data(), 0, 10},
                               {request.x.data(), request.y.data(), 1, 0}};
    EXPECT_TRUE(backend_->Normalize(spec, params.View(), empties, 3).ok());
    EXPECT_TRUE(request.y.SameBytes(untouched));

    const Segment mixed[] = {{nullptr, nullptr, 0, 10}, request.View(), {nullptr, nullptr, 3, 0}};
    EXPECT_TRUE(backend_->Normalize(spec, params.View(), mixed, 3).ok());
    EXPECT_FALSE(request.y.SameBytes(untouched));
  }
}

TEST_P(KernelBatchTest, WritesNothingIfAnyPartIsInvalid) {
  const NormSpec spec = InstanceNormSpec(8, dtype());
  Request good(dtype(), 1, 10);
  Tensor untouched(dtype(), good.y.count());
  untouched.Poison();
  const Segment bad_sample[] = {good.View(), {good.x.data(), good.y.data(), -1, 10}};
  EXPECT_EQ(backend_->Normalize(spec, {}, bad_sample, 2).code(), StatusCode::kInvalidArgument);
  const Segment null_output[] = {good.View(), {good.x.data(), nullptr, 1, 10}};
  EXPECT_EQ(backend_->Normalize(spec, {}, null_output, 2).code(), StatusCode::kInvalidArgument);
  NormSpec no_groups = spec;
  no_groups.groups = 0;
  const Segment segment = good.View();
  EXPECT_EQ(backend_->Normalize(no_groups, {}, &segment, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(good.y.SameBytes(untouched));
}

INSTANTIATE_TEST_SUITE_P(All, KernelBatchTest,
                         ::testing::Values(DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                           DType::kBFloat16),
                         [](const auto& test) { return Name(test.param); });

}  // namespace
}  // namespace normd::norm::testing
