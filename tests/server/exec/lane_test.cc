// What every lane does with the requests of a batch, whichever way it computes them: float64's
// results, and the same bits in every company and every layout of the inputs.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/metrics/metrics.h"
#include "tests/support/lane_backend.h"
#include "tests/support/models.h"

namespace normd {
namespace {

using norm::DType;
using norm::testing::kFloatTypes;
using norm::testing::TestSeed;

struct Case {
  const char* name;
  std::string config;
  ParameterShapes parameters;
  std::vector<std::vector<Dims>> requests;  // The first dimension of the first one's are samples.
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

ParameterShapes Affine(const Dims& dims) { return {{"weight", dims}, {"bias", dims}}; }

// Sizes that no vector width divides, and few channels.
std::vector<Case> Norms() {
  return {
      {"InstanceNorm", "instance_norm { channels: 7 affine: true }", Affine({7}), {{{2, 7, 33}}}},
      {"GroupNorm",
       "group_norm { channels: 6 groups: 2 } activation: SILU",
       Affine({6}),
       {{{3, 6, 10}}}},
      {"GroupNormOfChannelsLast",
       "group_norm { channels: 12 groups: 4 } activation: SILU layout: CHANNELS_LAST",
       Affine({12}),
       {{{3, 10, 12}}}},
      {"LayerNormOfASample",
       "layer_norm { normalized_shape: [6, 10] }",
       {{"weight", {6, 10}}},
       {{{3, 6, 10}}}},
      {"BatchNorm",
       "batch_norm { channels: 6 }",
       {{"weight", {6}}, {"bias", {6}}, {"running_mean", {6}}, {"running_var", {6}}},
       {{{3, 6, 10}}}},
      {"RmsNormGemma",
       "rms_norm { normalized_shape: 40 weight_offset: 1 }",
       {{"weight", {40}}},
       {{{7, 40}}}},
      {"RmsNormOfChannels",
       "rms_norm { normalized_shape: 12 axes: 1 }",
       {{"weight", {12}}},
       {{{3, 12, 5, 9}}, {{1, 12}}, {{2, 12, 200}}}},
      {"LayerNormOfChannels",
       "layer_norm { normalized_shape: 3 axes: 1 affine: false }",
       {},
       {{{1, 3, 11}}}},
      {"LayerNormOfTwoAxes",
       "layer_norm { normalized_shape: [3, 4] axes: [2, 3] }",
       Affine({3, 4}),
       {{{4, 1, 3, 4}}, {{2, 3, 3, 4, 33}}}},
      {"LpNormalize1", "lp_normalize { normalized_shape: 40 p: 1 }", {}, {{{7, 40}}}},
      {"LpNormalize2", "lp_normalize { normalized_shape: 40 } activation: RELU", {}, {{{7, 40}}}},
      {"LpNormalizeInf",
       "lp_normalize { normalized_shape: 40 p: inf axes: 1 }",
       {},
       {{{2, 40, 7}}}},
      // Not by parameter_names: protobuf's maps have another layout under ThreadSanitizer.
      {"ScaleNorm", "scale_norm { normalized_shape: 40 }", {{"g", {1}}}, {{{7, 40}}, {{2, 3, 40}}}},
  };
}

std::vector<Case> NormsOfAxesApart() {
  return {
      {"LayerNormOfAxesApart",
       "layer_norm { normalized_shape: [6, 5] axes: [1, 3] }",
       Affine({6, 5}),
       {{{3, 6, 9, 5}}, {{1, 6, 1, 5}}, {{2, 6, 70, 5, 3}}, {{0, 6, 2, 5}}}},
      {"RmsNormOfAxesFromTheEnd",
       "rms_norm { normalized_shape: [6, 5] axes: [-4, -2] } activation: SILU",
       {{"weight", {6, 5}}},
       {{{2, 2, 6, 3, 5, 2}}, {{2, 3, 6, 9, 5, 4}}, {{6, 40, 5, 17}}}},
      {"LpNormalizeOfAxesApartQuantized",
       "lp_normalize { normalized_shape: [6, 5] axes: [1, 3] } quantization { dtype: INT8 scales: "
       "PER_ROW }",
       {},
       {{{3, 6, 9, 5}}, {{2, 6, 7, 5, 11}}}},
  };
}

// A residual or a gate of x's shape, and the fused layer.
std::vector<Case> OfTwoTensors() {
  return {
      {"AddLayerNorm",
       "add_layer_norm { normalized_shape: 40 }",
       Affine({40}),
       {{{7, 40}, {7, 40}}, {{1, 40}, {1, 40}}}},
      {"AddRmsNorm",
       "add_rms_norm { normalized_shape: 19 eps: 0.5 } activation: SILU",
       {{"weight", {19}}},
       {{{5, 19}, {5, 19}}, {{0, 19}, {0, 19}}, {{1, 19}, {1, 19}}, {{23, 19}, {23, 19}}}},
      {"AddRmsNormOfOne",
       "add_rms_norm { normalized_shape: 1 eps: 1e-6 } activation: SILU",
       {{"weight", {1}}},
       {{{2, 1}, {2, 1}}, {{0, 1}, {0, 1}}, {{1, 1}, {1, 1}}, {{23, 1}, {23, 1}}}},
      {"AddRmsNormOfTwo",
       "add_rms_norm { normalized_shape: 2 eps: 1e-6 } activation: SILU",
       {{"weight", {2}}},
       {{{2, 2}, {2, 2}}, {{0, 2}, {0, 2}}, {{1, 2}, {1, 2}}, {{23, 2}, {23, 2}}}},
      {"GatedRmsNorm",
       "gated_rms_norm { normalized_shape: 40 group_size: 8 }",
       {{"weight", {40}}},
       {{{7, 40}, {7, 40}}}},
      {"GatedRmsNormWithoutWeight",
       "gated_rms_norm { normalized_shape: 12 eps: 0.5 affine: false }",
       {},
       {{{3, 12}, {3, 12}}}},
      {"GatedRmsNormAfter",
       "gated_rms_norm { normalized_shape: 40 norm_before_gate: true }",
       {{"weight", {40}}},
       {{{7, 40}, {7, 40}}}},
      {"LinearNorm",
       "linear_norm { in_features: 19 out_features: 37 epilogue { add: true multiply: true } }",
       {{"linear.weight", {37, 19}}, {"linear.bias", {37}}},
       {{{5, 19}, {5, 37}}, {{0, 19}, {0, 37}}, {{70, 19}, {70, 37}}}},
      {"LinearNormOfOneInput",
       "linear_norm { in_features: 19 out_features: 37 }",
       {{"linear.weight", {37, 19}}, {"linear.bias", {37}}},
       {{{4, 19}}, {{1, 19}}, {{64, 19}}}},
  };
}

// Tensors of other shapes beside x.
std::vector<Case> Conditional() {
  return {
      {"AdaptiveLayerNorm",
       "adaptive_layer_norm { features: 24 }",
       {},
       {{{3, 17, 24}, {3, 24}, {3, 24}}, {{5, 24}, {5, 24}, {5, 24}}}},
      {"AdaptiveLayerNormGated",
       "adaptive_layer_norm { features: 24 affine: true gated_residual: true }",
       Affine({24}),
       {{{3, 17, 24}, {3, 17, 24}, {3, 24}, {3, 24}, {3, 24}}}},
      {"AdaptiveLayerNormGatedWithoutWeight",
       "adaptive_layer_norm { features: 6 gated_residual: true }",
       {},
       {{{1, 5, 6}, {1, 5, 6}, {1, 6}, {1, 6}, {1, 6}}}},
      {"AdaptiveGroupNorm",
       "adaptive_group_norm { channels: 12 groups: 4 } activation: SILU",
       {},
       {{{3, 12, 5, 5}, {3, 12}, {3, 12}}}},
      {"AdaptiveGroupNormLast",
       "adaptive_group_norm { channels: 12 groups: 4 scale_offset: 0 } layout: CHANNELS_LAST",
       {},
       {{{3, 5, 5, 12}, {3, 12}, {3, 12}}}},
      {"AdaptiveInstanceNorm",
       "adaptive_instance_norm { channels: 6 }",
       {},
       {{{3, 6, 30}, {3, 6, 4, 4}}, {{1, 6, 300}, {1, 6, 2}}}},
      {"ConditionalInstanceNorm",
       "conditional_instance_norm { channels: 6 styles: 5 }",
       Affine({5, 6}),
       {{{3, 6, 30}, {3, 5}}, {{1, 6, 300}, {1, 5}}}},
      {"ConditionalInstanceNormByIndex",
       "conditional_instance_norm { channels: 6 styles: 5 by_index: true }",
       Affine({5, 6}),
       {{{3, 6, 30}, {3}}, {{1, 6, 300}, {1}}}},
  };
}

std::vector<Case> Quantized() {
  return {
      {"RmsNormToFloat8",
       "rms_norm { normalized_shape: 40 } quantization { dtype: FLOAT8_E4M3 scales: PER_ROW }",
       {{"weight", {40}}},
       {{{7, 40}}, {{2, 3, 40}}}},
      {"LayerNormToFloat8",
       "layer_norm { normalized_shape: 12 affine: false } quantization { dtype: FLOAT8_E4M3 "
       "scale: 0.01 }",
       {},
       {{{2, 12}}}},
      {"AddRmsNormToInt8",
       "add_rms_norm { normalized_shape: 12 affine: false } quantization { dtype: INT8 scales: "
       "PER_ROW }",
       {},
       {{{3, 12}, {3, 12}}}},
      {"AddRmsNormToInt8InBlocks",
       "add_rms_norm { normalized_shape: 300 } quantization { dtype: INT8 scales: PER_BLOCK }",
       {{"weight", {300}}},
       {{{7, 300}, {7, 300}}}},
      {"GroupNormToInt8",
       "group_norm { channels: 12 groups: 4 affine: false } quantization { dtype: INT8 scale: "
       "0.02 }",
       {},
       {{{3, 12, 5, 5}}}},
  };
}

// `shapes` with other samples.
std::vector<Dims> WithSamples(std::vector<Dims> shapes, std::int64_t samples) {
  for (Dims& dims : shapes) dims[0] = samples;
  return shapes;
}

class LaneTest : public ::testing::TestWithParam<std::tuple<std::string, Case>> {
 protected:
  void SetUp() override {
    if (backend_ == nullptr) GTEST_SKIP() << "no such device on this machine";
    const Case& test = std::get<1>(GetParam());
    model_ = MakeModel("m", test.config, metrics_, MakeParameters(test.parameters));
    const_cast<Model&>(*model_).set_backend_state(*backend_->Prepare(*model_));
  }

  const std::vector<std::vector<Dims>>& Shapes() const { return std::get<1>(GetParam()).requests; }
  std::vector<DType> Types() const {
    std::vector<DType> types(std::begin(kFloatTypes), std::end(kFloatTypes));
    if (model_->config().has_linear_norm()) types.erase(types.begin() + 1);  // No float64.
    return types;
  }
  Split AnySplit() { return kSplits[random_() % std::size(kSplits)]; }

  void Run(absl::Span<LaneRequest* const> requests) {
    ASSERT_TRUE(backend_->lane().Execute(BatchOf(requests)).ok());
    backend_->lane().Flush();
  }
  // The same request in one piece and a batch of its own, with everything that can be asked for.
  LaneRequest Alone(const std::vector<Dims>& shapes, DType dtype, std::uint64_t seed = 0) {
    LaneRequest alone(model_, shapes, dtype, seed);
    alone.AskForStatistics();
    LaneRequest* const batch[] = {&alone};
    Run(batch);
    return alone;
  }
  // Every pair of splits for two inputs, and some of the combinations for more.
  std::vector<std::vector<Split>> Splits(std::size_t inputs) {
    std::vector<std::vector<Split>> all;
    for (const Split first : kSplits) {
      for (const Split second : kSplits) {
        std::vector<Split> splits(inputs, second);
        splits[0] = first;
        for (std::size_t i = 2; i < inputs; ++i) splits[i] = AnySplit();
        if (inputs > 1 || first == second) all.push_back(splits);
      }
    }
    return all;
  }
  // The requests as one batch are right and have the bits that each has alone. About half of them
  // ask for statistics, which changes nothing of the others.
  void ExpectBitsOfEachAlone(const std::vector<std::vector<Dims>>& shapes, DType dtype) {
    std::deque<LaneRequest> together;
    std::vector<LaneRequest*> batch;
    for (const std::vector<Dims>& one : shapes) {
      batch.push_back(&together.emplace_back(model_, one, dtype, together.size()));
      if (random_() % 2 == 0) batch.back()->AskForStatistics();
      std::vector<Split> splits(one.size());
      std::generate(splits.begin(), splits.end(), [this] { return AnySplit(); });
      batch.back()->Lay(splits);
    }
    const std::int64_t batches = metrics_.Totals().batches;
    Run(batch);
    EXPECT_EQ(metrics_.Totals().batches, batches + 1);
    for (std::size_t i = 0; i < together.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(norm::Name(dtype), " request ", i, " of ", together.size()));
      EXPECT_EQ(together[i].completion().batch.requests, static_cast<std::int64_t>(batch.size()));
      EXPECT_EQ(together[i].Wrong(backend_->closeness()), "");
      EXPECT_EQ(together[i].Differs(Alone(shapes[i], dtype, i)), "");
    }
  }

  ModelMetrics metrics_;
  std::unique_ptr<LaneBackend> backend_ = MakeLaneBackend(std::get<0>(GetParam()));
  std::shared_ptr<const Model> model_;
  std::mt19937_64 random_{TestSeed()};
};

TEST_P(LaneTest, GivesTheSameBitsHoweverTheInputsLie) {
  for (const std::vector<Dims>& shapes : Shapes()) {
    for (const DType dtype : Types()) {
      const LaneRequest whole = Alone(shapes, dtype);
      EXPECT_EQ(whole.Wrong(backend_->closeness()), "") << norm::Name(dtype);
      for (const std::vector<Split>& splits : Splits(shapes.size())) {
        LaneRequest request(model_, shapes, dtype);
        request.AskForStatistics();
        request.Lay(splits);
        LaneRequest* const batch[] = {&request};
        Run(batch);
        std::string text = norm::Name(dtype);
        for (const Split split : splits) absl::StrAppend(&text, " ", static_cast<int>(split));
        EXPECT_EQ(request.Differs(whole), "") << text;
        EXPECT_TRUE(request.InputsReleasedBeforeDone()) << text;
      }
    }
  }
}

TEST_P(LaneTest, RequestsShareABatchAndKeepTheirBits) {
  for (const DType dtype : Types()) {
    std::vector<std::vector<Dims>> shapes;
    for (const std::vector<Dims>& one : Shapes()) shapes.insert(shapes.end(), 3, one);
    ExpectBitsOfEachAlone(shapes, dtype);
    for (const Dims& sizes :
         {Dims{1}, Dims{3, 1, 2}, Dims{40}, Dims{2, 0, 60, 1}, Dims{1, 70, 3, 0, 1, 64, 2}}) {
      shapes.clear();
      for (const std::int64_t samples : sizes) {
        shapes.push_back(WithSamples(Shapes().front(), samples));
      }
      ExpectBitsOfEachAlone(shapes, dtype);
    }
  }
}

TEST_P(LaneTest, GathersLargeInputsInParts) {
  std::int64_t sample_bytes = 0;
  for (const Dims& dims : WithSamples(Shapes().front(), 1)) {
    const std::int64_t bytes = Shape::Create(dims)->elements() * std::int64_t{sizeof(float)};
    sample_bytes = std::max(sample_bytes, bytes);
  }
  const std::int64_t samples = backend_->LargeBytes() / sample_bytes;
  const std::vector<Dims> shapes = WithSamples(Shapes().front(), samples);
  const LaneRequest whole = Alone(shapes, DType::kFloat32);
  LaneRequest request(model_, shapes);
  request.AskForStatistics();
  request.Lay(Split::kAnywhere);
  LaneRequest* const batch[] = {&request};
  Run(batch);
  EXPECT_EQ(request.Differs(whole), "");
}

TEST_P(LaneTest, EndsWhatNobodyWantsWithoutComputing) {
  LaneRequest wanted(model_, Shapes().front());
  LaneRequest cancelled(model_, Shapes().front());
  LaneRequest expired(model_, Shapes().front());
  cancelled.request()->cancelled = std::make_shared<std::atomic<bool>>(true);
  expired.request()->deadline = TimePoint{};
  LaneRequest* const batch[] = {&cancelled, &wanted, &expired};
  Run(batch);
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(expired.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(wanted.Wrong(backend_->closeness()), "");
  EXPECT_EQ(wanted.completion().batch.requests, 1);
  EXPECT_EQ(metrics_.Totals().by_size.front().most_requests, 1) << "only what is computed counts";
}

std::string NameOf(const ::testing::TestParamInfo<LaneTest::ParamType>& test) {
  return std::get<0>(test.param) + std::get<1>(test.param).name;
}

std::vector<Case> Cases() {
  std::vector<Case> all;
  for (const auto& some :
       {Norms(), NormsOfAxesApart(), OfTwoTensors(), Conditional(), Quantized()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, LaneTest,
                         ::testing::Combine(::testing::ValuesIn(LanePaths()),
                                            ::testing::ValuesIn(Cases())),
                         NameOf);

}  // namespace
}  // namespace normd
