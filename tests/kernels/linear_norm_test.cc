// Every backend's fused layer against the float64 reference, and a sample's bits in every batch.

#include "kernels/linear_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/reference.h"
#include "tests/support/linear_norm_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

// Weights of order 1 / sqrt(I), so that z is of order 1 for inputs of order 1.
struct Layer {
  Layer(std::int64_t in, std::int64_t out, DType dtype, DType param_dtype = DType::kFloat32,
        bool with_bias = true)
      : weight(param_dtype, in * out), bias(param_dtype, out), has_bias(with_bias) {
    spec.in_features = in;
    spec.out_features = out;
    spec.dtype = dtype;
    spec.epilogue.add = spec.epilogue.multiply = true;
    weight.Fill(Data::kNormal, TestSeed() + 100);
    const double scale = 1 / std::sqrt(static_cast<double>(in));
    for (std::int64_t i = 0; i < weight.count(); ++i) weight.Set(i, scale * weight.Get(i));
    bias.Fill(Data::kNormal, TestSeed() + 101);
  }

  LinearNormParams params() const {
    LinearNormParams params;
    params.weight = {weight.data(), weight.dtype()};
    if (has_bias) params.bias = {bias.data(), bias.dtype()};
    return params;
  }

  LinearNormSpec spec;
  Tensor weight;
  Tensor bias;
  bool has_bias;
};

struct Request {
  Request(const LinearNormSpec& spec, std::int64_t samples_of, std::uint64_t seed,
          std::int64_t offset = 0)
      : samples(samples_of),
        has_y(spec.epilogue.needs_y()),
        x(spec.dtype, samples * spec.in_features, offset),
        y(spec.dtype, samples * spec.out_features, 3 * offset),
        out(spec.dtype, samples * spec.out_features, 2 * offset) {
    x.Fill(Data::kNormal, TestSeed() + seed);
    y.Fill(Data::kNormal, TestSeed() + seed + 1);
    out.Poison();
  }
  LinearNormSegment View() { return {x.data(), has_y ? y.data() : nullptr, out.data(), samples}; }

  std::int64_t samples;
  bool has_y;
  Tensor x;
  Tensor y;
  Tensor out;
};

// The largest error that the precision's promise leaves on these data, over float32's: the products
// of I terms of order 1 / sqrt(I), each wrong by half a unit of the format, add up at random.
Tolerance ToleranceOf(DType dtype, Precision precision) {
  Tolerance tolerance = TightTolerance(dtype);
  double error = 2e-5;
  if (precision == Precision::kTf32) error = 1e-2;
  if (precision == Precision::kBFloat16) error = 8e-2;
  tolerance.absolute = error;
  if (dtype == DType::kFloat32) tolerance.relative = error;
  return tolerance;
}

class LinearNormTest : public ::testing::TestWithParam<std::tuple<DType, Precision>> {
 protected:
  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }

  DType dtype() const { return std::get<0>(GetParam()); }
  Layer MakeLayer(std::int64_t in, std::int64_t out, DType param_dtype = DType::kFloat32,
                  bool with_bias = true) const {
    Layer layer(in, out, dtype(), param_dtype, with_bias);
    layer.spec.precision = std::get<1>(GetParam());
    return layer;
  }

  void Run(const Layer& layer, Request& request) {
    const LinearNormSegment segment = request.View();
    const Status status = backend_->LinearNorm(layer.spec, layer.params(), &segment, 1);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Computes the request and checks out, its guards, and that the inputs are untouched.
  void Check(const Layer& layer, Request& request) {
    SCOPED_TRACE(::testing::Message()
                 << backend_->Name() << " samples " << request.samples << " in "
                 << layer.spec.in_features << " out " << layer.spec.out_features);
    Tensor x(request.x.dtype(), request.x.count());
    x.CopyFrom(request.x);
    Tensor y(request.y.dtype(), request.y.count());
    y.CopyFrom(request.y);
    std::vector<double> expected(static_cast<std::size_t>(request.out.count()));
    const LinearNormSegment segment = request.View();
    const Status status = LinearNormReference(layer.spec, layer.params(), segment, expected.data());
    ASSERT_TRUE(status.ok()) << status.message();
    Run(layer, request);
    EXPECT_EQ(Compare(request.out, expected, ToleranceOf(dtype(), layer.spec.precision)), "");
    EXPECT_TRUE(request.out.GuardsIntact());
    EXPECT_TRUE(request.x.SameBytes(x) && request.y.SameBytes(y));
  }

  std::unique_ptr<LinearNormBackend> backend_ = MakeLinearNormBackend();
};

TEST_P(LinearNormTest, AgreesWithReferenceAroundVectorAndBlockLengths) {
  for (const std::int64_t in : {1, 7, 16, 31, 33, 64, 100, 129, 520}) {
    for (const std::int64_t out : {2, 15, 32, 33, 65, 130, 257}) {
      const Layer layer = MakeLayer(in, out);
      Request request(layer.spec, 3, 1);
      Check(layer, request);
    }
  }
}

TEST_P(LinearNormTest, AgreesWithReferenceForLongSumsAndManySamples) {
  for (const auto& [in, out, samples] :
       {std::tuple{2050, 40, 5}, {40, 2050, 5}, {96, 48, 67}, {96, 48, 130}, {24, 24, 513}}) {
    const Layer layer = MakeLayer(in, out);
    Request request(layer.spec, samples, 2);
    Check(layer, request);
  }
}

TEST_P(LinearNormTest, AgreesWithReferenceForEveryEpilogue) {
  Layer layer = MakeLayer(50, 70);
  for (const int uses : {0, 1, 2, 3}) {
    layer.spec.epilogue = {};
    layer.spec.epilogue.add = (uses & 1) != 0;
    layer.spec.epilogue.multiply = (uses & 2) != 0;
    for (const Activation activation :
         {Activation::kNone, Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
          Activation::kGeluErf, Activation::kGeluTanh}) {
      SCOPED_TRACE(::testing::Message()
                   << "uses " << uses << " activation " << static_cast<int>(activation));
      layer.spec.epilogue.activation = activation;
      Request request(layer.spec, 4, 3);
      Check(layer, request);
    }
  }
}

TEST_P(LinearNormTest, AgreesWithReferenceForParametersOfEveryTypeAndWithoutBias) {
  for (const DType param : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const bool with_bias : {true, false}) {
      const Layer layer = MakeLayer(37, 41, param, with_bias);
      Request request(layer.spec, 3, 4);
      Check(layer, request);
    }
  }
}

TEST_P(LinearNormTest, AgreesWithReferenceAtAnyAlignment) {
  const Layer layer = MakeLayer(37, 41);
  for (const std::int64_t offset : {1, 3, 5}) {
    for (const std::int64_t samples : {1, 70}) {
      Request request(layer.spec, samples, 5, offset);
      Check(layer, request);
    }
  }
}

TEST_P(LinearNormTest, NormalizesAConstantRowAndOneFeatureToTheEpilogueAlone) {
  Layer constant = MakeLayer(8, 16);
  for (std::int64_t i = 0; i < constant.weight.count(); ++i) constant.weight.Set(i, 0.25);
  for (std::int64_t i = 0; i < constant.bias.count(); ++i) constant.bias.Set(i, 1);
  Layer one = MakeLayer(8, 1);
  for (const Layer* layer : {&constant, &one}) {
    Request request(layer->spec, 3, 6);
    Check(*layer, request);
  }
}

// The first features are no guide to the mean of all.
TEST_P(LinearNormTest, AgreesWithReferenceWhereTheFirstFeaturesAreFarFromTheOthers) {
  Layer layer = MakeLayer(16, 1200);
  for (std::int64_t i = 0; i < layer.bias.count(); ++i) layer.bias.Set(i, i < 128 ? 0 : 1000);
  Request request(layer.spec, 3, 12);
  Check(layer, request);
}

// Features of z that the product leaves as they are, whose squares overflow float32.
TEST_P(LinearNormTest, FeaturesWhoseSquaresOverflowAreFiniteOrNaN) {
  const bool is_cuda = backend_->Name() == "cuda";
  if (dtype() == DType::kFloat16) GTEST_SKIP() << "has no such numbers";
  for (const std::int64_t features : {2, 61, 64, 300}) {
    for (const double magnitude : {1e10, 1e19, 3e19, 1e37}) {
      Layer layer(1, features, dtype(), DType::kFloat32, /*with_bias=*/false);
      layer.spec.epilogue = {};
      for (std::int64_t i = 0; i < features; ++i) layer.weight.Set(i, i % 2 == 0 ? 1 : -1);
      Request request(layer.spec, 1, 40);
      request.x.Set(0, magnitude);
      Run(layer, request);
      for (std::int64_t i = 0; i < features; ++i) {
        if (is_cuda && magnitude > 1e18) {  // In float32: NaN, or a number where the sum fits.
          ASSERT_TRUE(std::isnan(request.out.Get(i)) || magnitude < 2e19) << i;
          continue;
        }
        const double mean = features % 2 == 0 ? 0 : 1.0 / static_cast<double>(features);
        const double rstd = 1 / std::sqrt(1 - mean * mean);
        ASSERT_NEAR(request.out.Get(i), ((i % 2 == 0 ? 1 : -1) - mean) * rstd, 1e-2)
            << features << " features of " << magnitude << ", " << i;
      }
    }
  }
}

// What the service promises to everybody: alone or in company, first or last, the same bits.
TEST_P(LinearNormTest, GivesASampleTheSameBitsInEveryBatchAndPlace) {
  for (const auto& [in, out] : {std::pair{48, 80}, {129, 67}, {512, 96}}) {
    const Layer layer = MakeLayer(in, out);
    constexpr std::int64_t kSamples = 302;
    Request all(layer.spec, kSamples, 7);
    Run(layer, all);
    const auto in_bytes = static_cast<std::size_t>(in) * SizeOf(dtype());
    const auto out_bytes = static_cast<std::size_t>(out) * SizeOf(dtype());
    std::mt19937_64 random(TestSeed() + 8);
    for (std::int64_t batch = 1; batch <= kSamples; batch += batch < 70 ? 1 : 58) {
      // Any samples, in any order, at any place.
      std::vector<std::size_t> chosen(static_cast<std::size_t>(batch));
      for (std::size_t& sample : chosen) sample = random() % kSamples;
      Request some(layer.spec, batch, 9);
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        std::memcpy(static_cast<char*>(some.x.data()) + i * in_bytes,
                    static_cast<const char*>(all.x.data()) + chosen[i] * in_bytes, in_bytes);
        std::memcpy(static_cast<char*>(some.y.data()) + i * out_bytes,
                    static_cast<const char*>(all.y.data()) + chosen[i] * out_bytes, out_bytes);
      }
      Run(layer, some);
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        ASSERT_EQ(std::memcmp(static_cast<const char*>(some.out.data()) + i * out_bytes,
                              static_cast<const char*>(all.out.data()) + chosen[i] * out_bytes,
                              out_bytes),
                  0)
            << "in " << in << " out " << out << ": sample " << chosen[i] << " at place " << i
            << " of " << batch;
      }
    }
  }
}

TEST_P(LinearNormTest, GivesEachRequestOfABatchTheBitsItHasAlone) {
  const Layer layer = MakeLayer(75, 52);
  std::vector<Request> together;
  std::vector<LinearNormSegment> segments;
  const std::int64_t sizes[] = {1, 3, 0, 64, 1, 17, 130, 2, 31, 1};
  for (const std::int64_t samples : sizes) {
    together.emplace_back(layer.spec, samples, 10 + together.size(), together.size() % 3);
  }
  for (Request& request : together) segments.push_back(request.View());
  ASSERT_TRUE(
      backend_->LinearNorm(layer.spec, layer.params(), segments.data(), segments.size()).ok());
  for (std::size_t i = 0; i < together.size(); ++i) {
    Request alone(layer.spec, sizes[i], 10 + i);
    Run(layer, alone);
    EXPECT_TRUE(alone.out.SameBytes(together[i].out)) << "request " << i;
    EXPECT_TRUE(together[i].out.GuardsIntact()) << "request " << i;
  }
}

TEST_P(LinearNormTest, GivesTheSameBitsWhereOutIsExactlyY) {
  const Layer layer = MakeLayer(40, 72);
  for (const std::int64_t samples : {1, 5, 70}) {
    Request apart(layer.spec, samples, 11);
    Run(layer, apart);
    Request same(layer.spec, samples, 11);
    const LinearNormSegment in_place{same.x.data(), same.y.data(), same.y.data(), samples};
    ASSERT_TRUE(backend_->LinearNorm(layer.spec, layer.params(), &in_place, 1).ok());
    EXPECT_TRUE(same.y.SameBytes(apart.out)) << samples;
  }
}

TEST_P(LinearNormTest, KeepsANaNAndAnInfinityInTheirOwnSample) {
  const Layer layer = MakeLayer(33, 48);
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Request clean(layer.spec, 9, 12);
    Run(layer, clean);
    Request dirty(layer.spec, 9, 12);
    dirty.x.Set(4 * 33 + 7, bad);
    Run(layer, dirty);
    for (std::int64_t i = 0; i < dirty.out.count(); ++i) {
      if (i / 48 == 4) {
        EXPECT_TRUE(std::isnan(dirty.out.Get(i))) << i;
      } else {
        EXPECT_EQ(dirty.out.Get(i), clean.out.Get(i)) << i;
      }
    }
  }
}

TEST_P(LinearNormTest, WritesNothingForEmptyOrInvalidBatches) {
  const Layer layer = MakeLayer(16, 24);
  Request request(layer.spec, 2, 13);
  Tensor untouched(dtype(), request.out.count());
  untouched.Poison();
  EXPECT_TRUE(backend_->LinearNorm(layer.spec, layer.params(), nullptr, 0).ok());
  const LinearNormSegment empties[] = {{},
                                       {request.x.data(), request.y.data(), request.out.data()}};
  EXPECT_TRUE(backend_->LinearNorm(layer.spec, layer.params(), empties, 2).ok());
  LinearNormSegment no_y[] = {request.View(), request.View()};
  no_y[1].y = nullptr;
  EXPECT_EQ(backend_->LinearNorm(layer.spec, layer.params(), no_y, 2).code(),
            StatusCode::kInvalidArgument);
  LinearNormParams no_weight = layer.params();
  no_weight.weight.data = nullptr;
  EXPECT_EQ(backend_->LinearNorm(layer.spec, no_weight, no_y, 1).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(request.out.SameBytes(untouched));
}

INSTANTIATE_TEST_SUITE_P(
    All, LinearNormTest,
    ::testing::Combine(::testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                       ::testing::Values(Precision::kFloat32, Precision::kTf32,
                                         Precision::kBFloat16, Precision::kFloat32Strict)),
    [](const auto& test) {
      return std::string(Name(std::get<0>(test.param))) + "_" + Name(std::get<1>(test.param));
    });

}  // namespace
}  // namespace normd::norm::testing
