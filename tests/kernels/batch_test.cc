// Every backend on batches: a sample's bits are its own, whatever it rides with and wherever it
// lies.

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

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
  Request(DType dtype, std::int64_t samples_of, std::int64_t spatial_of, std::int64_t offset)
      : samples(samples_of),
        spatial(spatial_of),
        x(dtype, samples * 8 * spatial, offset),
        y(dtype, x.count(), 2 * offset) {
    x.Fill(Data::kNormal, TestSeed() + static_cast<std::uint64_t>(x.count()));
    y.Poison();
  }
  Segment View() { return {x.data(), y.data(), samples, spatial}; }

  std::int64_t samples;
  std::int64_t spatial;
  Tensor x;
  Tensor y;
};

std::vector<Request> MixedRequests(DType dtype, std::int64_t offset) {
  std::vector<Request> requests;
  for (const std::int64_t spatial : {1, 49, 1, 3136, 5, 1024, 30000}) {
    for (const std::int64_t samples : {1, 3}) {
      requests.emplace_back(dtype, samples, spatial, offset);
    }
  }
  return requests;
}

TEST_P(KernelBatchTest, GivesEachRequestTheBitsItHasAlone) {
  for (const NormSpec& spec : Specs()) {
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 20);
    std::vector<Request> together = MixedRequests(dtype(), 0);
    std::vector<Segment> segments;
    for (Request& request : together) segments.push_back(request.View());
    ASSERT_TRUE(backend_->Normalize(spec, params.View(), segments.data(), segments.size()).ok());
    std::vector<Request> alone = MixedRequests(dtype(), 0);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const Segment segment = alone[i].View();
      ASSERT_TRUE(backend_->Normalize(spec, params.View(), &segment, 1).ok());
      EXPECT_TRUE(alone[i].y.SameBytes(together[i].y)) << "request " << i;
      EXPECT_TRUE(together[i].y.GuardsIntact()) << "request " << i;
    }
  }
}

TEST_P(KernelBatchTest, GivesEachSampleTheBitsItHasAlone) {
  for (const NormSpec& spec : Specs()) {
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 21);
    for (const std::int64_t spatial : {1, 50, 9000}) {
      constexpr std::int64_t kSamples = 9;
      Request request(dtype(), kSamples, spatial, 0);
      const Segment whole = request.View();
      ASSERT_TRUE(backend_->Normalize(spec, params.View(), &whole, 1).ok());
      Tensor alone(dtype(), request.x.count());
      const std::size_t sample_bytes = request.x.bytes() / kSamples;
      for (std::int64_t i = 0; i < kSamples; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * sample_bytes;
        const Segment segment{static_cast<const char*>(request.x.data()) + at,
                              static_cast<char*>(alone.data()) + at, 1, spatial};
        ASSERT_TRUE(backend_->Normalize(spec, params.View(), &segment, 1).ok());
      }
      EXPECT_TRUE(alone.SameBytes(request.y)) << "spatial " << spatial;
    }
  }
}

TEST_P(KernelBatchTest, GivesTheSameBitsAtAnyAlignment) {
  for (const NormSpec& spec : Specs()) {
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 22);
    for (const std::int64_t spatial : {1, 333, 5000}) {
      Request aligned(dtype(), 2, spatial, 0);
      const Segment segment = aligned.View();
      ASSERT_TRUE(backend_->Normalize(spec, params.View(), &segment, 1).ok());
      for (const std::int64_t offset : {1, 2, 7}) {
        Request shifted(dtype(), 2, spatial, offset);
        const Segment shifted_segment = shifted.View();
        ASSERT_TRUE(backend_->Normalize(spec, params.View(), &shifted_segment, 1).ok());
        EXPECT_TRUE(shifted.y.SameBytes(aligned.y)) << "offset " << offset;
        EXPECT_TRUE(shifted.y.GuardsIntact());
      }
    }
  }
}

TEST_P(KernelBatchTest, WritesNothingForEmptyTensors) {
  for (const NormSpec& spec : Specs()) {
    const ParamSet params(spec, DType::kFloat32, TestSeed() + 23);
    EXPECT_TRUE(backend_->Normalize(spec, params.View(), nullptr, 0).ok());
    Request request(dtype(), 1, 10, 0);
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
  Request good(dtype(), 1, 10, 0);
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
