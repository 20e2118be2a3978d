// The CPU lane on operations with inputs of several shapes: whatever pieces they lie in, results
// have the same bits, and agree with float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/interleaved.h"
#include "kernels/reference.h"
#include "kernels/segment_tensors.h"
#include "operations/kernel_program.h"
#include "tests/server/exec/cpu_lane_fixture.h"
#include "tests/support/models.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using norm::DType;
using norm::testing::Data;
using norm::testing::Tensor;
using norm::testing::TestSeed;
using Dims = std::vector<std::int64_t>;

struct Case {
  const char* name;
  std::string config;
  std::vector<Dims> parameters;  // Shapes of weight and bias, as many as there are.
  std::vector<std::vector<Dims>> requests;
};

std::vector<Case> CasesOfAxesApart() {
  return {
      {"LayerNormOfAxesApart",
       "layer_norm { normalized_shape: [6, 5] axes: [1, 3] }",
       {{6, 5}, {6, 5}},
       {{{3, 6, 9, 5}}, {{1, 6, 1, 5}}, {{2, 6, 70, 5, 3}}, {{0, 6, 2, 5}}}},
      {"RmsNormOfAxesFromTheEnd",
       "rms_norm { normalized_shape: [6, 5] axes: [-4, -2] } activation: SILU",
       {{6, 5}},
       {{{2, 3, 6, 9, 5, 4}}, {{6, 40, 5, 17}}}},
      {"LpNormalizeOfAxesApartQuantized",
       "lp_normalize { normalized_shape: [6, 5] axes: [1, 3] } quantization { dtype: INT8 scales: "
       "PER_ROW }",
       {},
       {{{3, 6, 9, 5}}, {{2, 6, 7, 5, 11}}}},
  };
}

std::vector<Case> Cases() {
  return {
      {"RmsNormGemma", "rms_norm { normalized_shape: 40 weight_offset: 1 }", {{40}}, {{{7, 40}}}},
      {"RmsNormOfChannels",
       "rms_norm { normalized_shape: 12 axes: 1 }",
       {{12}},
       {{{3, 12, 5, 9}}, {{1, 12}}, {{2, 12, 200}}}},
      {"LayerNormOfTwoAxes",
       "layer_norm { normalized_shape: [3, 4] axes: [2, 3] }",
       {{3, 4}, {3, 4}},
       {{{2, 3, 3, 4, 33}}, {{4, 1, 3, 4}}}},
      {"AddLayerNorm",
       "add_layer_norm { normalized_shape: 40 }",
       {{40}, {40}},
       {{{7, 40}, {7, 40}}, {{1, 40}, {1, 40}}}},
      {"GatedRmsNorm",
       "gated_rms_norm { normalized_shape: 40 group_size: 8 }",
       {{40}},
       {{{7, 40}, {7, 40}}}},
      {"GatedRmsNormAfter",
       "gated_rms_norm { normalized_shape: 40 norm_before_gate: true }",
       {{40}},
       {{{7, 40}, {7, 40}}}},
      {"LpNormalize1", "lp_normalize { normalized_shape: 40 p: 1 }", {}, {{{7, 40}}}},
      {"LpNormalize2", "lp_normalize { normalized_shape: 40 } activation: RELU", {}, {{{7, 40}}}},
      {"LpNormalizeInf",
       "lp_normalize { normalized_shape: 40 p: inf axes: 1 }",
       {},
       {{{2, 40, 7}}}},
      {"ScaleNorm",
       "scale_norm { normalized_shape: 40 } parameter_names { key: 'g' value: 'weight' }",
       {{1}},
       {{{7, 40}}, {{2, 3, 40}}}},
      {"AdaptiveLayerNorm",
       "adaptive_layer_norm { features: 24 }",
       {},
       {{{3, 17, 24}, {3, 24}, {3, 24}}, {{5, 24}, {5, 24}, {5, 24}}}},
      {"AdaptiveLayerNormGated",
       "adaptive_layer_norm { features: 24 affine: true gated_residual: true }",
       {{24}, {24}},
       {{{3, 17, 24}, {3, 17, 24}, {3, 24}, {3, 24}, {3, 24}}}},
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
       {{5, 6}, {5, 6}},
       {{{3, 6, 30}, {3, 5}}, {{1, 6, 300}, {1, 5}}}},
      {"ConditionalInstanceNormByIndex",
       "conditional_instance_norm { channels: 6 styles: 5 by_index: true }",
       {{5, 6}, {5, 6}},
       {{{3, 6, 30}, {3}}, {{1, 6, 300}, {1}}}},
      {"RmsNormToFloat8",
       "rms_norm { normalized_shape: 40 } quantization { dtype: FLOAT8_E4M3 scales: PER_ROW }",
       {{40}},
       {{{7, 40}}, {{2, 3, 40}}}},
      {"AddRmsNormToInt8InBlocks",
       "add_rms_norm { normalized_shape: 300 } quantization { dtype: INT8 scales: PER_BLOCK }",
       {{300}},
       {{{7, 300}, {7, 300}}}},
      {"GroupNormToInt8",
       "group_norm { channels: 12 groups: 4 affine: false } quantization { dtype: INT8 scale: 0.02 "
       "}",
       {},
       {{{3, 12, 5, 5}}}},
  };
}

struct Sent {
  std::vector<Tensor> inputs;
  int done = 0;
  Completion completion;
};

class CpuOperationsTest : public CpuLaneFixture, public ::testing::WithParamInterface<Case> {
 protected:
  CpuOperationsTest() {
    std::vector<Parameter> parameters;
    for (const Dims& dims : GetParam().parameters) {
      Parameter parameter;
      parameter.name = parameters.empty() ? "weight" : "bias";
      parameter.shape = *Shape::Create(dims);
      const std::int64_t count = parameter.shape.elements();
      std::shared_ptr<std::byte[]> data(new std::byte[static_cast<std::size_t>(count) * 4]);
      for (std::int64_t i = 0; i < count; ++i) {
        norm::StoreElement(DType::kFloat32, data.get(), i,
                           0.5 + 0.01 * static_cast<double>(i % 97));
      }
      parameter.data = std::move(data);
      parameters.push_back(std::move(parameter));
    }
    model_ = OnCpu(MakeModel("m", GetParam().config, metrics_, std::move(parameters)), kernels_);
  }

  std::vector<TensorType> Types(const std::vector<Dims>& shapes, DType dtype) {
    std::vector<TensorType> types;
    for (const Dims& dims : shapes) {
      const DType of_input = DTypeOf(model_->inputs()[types.size()], dtype);
      types.push_back({of_input, *Shape::Create(dims)});
    }
    return types;
  }

  // With what comes on request, or without.
  Geometry GeometryOf(const std::vector<Dims>& shapes, DType dtype, bool statistics) {
    const std::vector<TensorType> types = Types(shapes, dtype);
    Geometry geometry = *model_->Check(types);
    const auto outputs = model_->Outputs(types);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!model_->outputs()[i].on_request || !statistics) continue;
      geometry.outputs[i].bytes =
          outputs[i].shape.elements() * static_cast<std::int64_t>(norm::SizeOf(outputs[i].dtype));
    }
    return geometry;
  }

  std::unique_ptr<Request> MakeRequest(const std::vector<Dims>& shapes, DType dtype, Sent& sent,
                                       const std::vector<Split>& splits, bool statistics = true) {
    auto request = std::make_unique<Request>();
    request->model = model_;
    request->dtype = dtype;
    request->geometry = GeometryOf(shapes, dtype, statistics);
    auto memory = std::make_shared<std::vector<std::vector<std::byte>>>(shapes.size());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const TensorSize& size = request->geometry.inputs[i];
      const auto count = size.bytes / static_cast<std::int64_t>(norm::SizeOf(size.dtype));
      Tensor& tensor = sent.inputs.emplace_back(size.dtype, count);
      const std::int64_t values = model_->inputs()[i].values;
      if (values == 0) tensor.Fill(Data::kNormal, TestSeed() + i);
      for (std::int64_t k = 0; k < count && values > 0; ++k) {
        tensor.Set(k, static_cast<double>((7 * k + 3) % values));
      }
      const std::int64_t sample_bytes =
          size.bytes / std::max<std::int64_t>(request->geometry.samples, 1);
      request->inputs.push_back(
          {Lay(tensor, static_cast<std::size_t>(sample_bytes), splits[i], (*memory)[i]), {}});
    }
    request->input_owner = std::move(memory);
    request->done = [&sent](Completion completion) {
      ++sent.done;
      sent.completion = std::move(completion);
    };
    return request;
  }

  std::vector<Tensor> OutputsOf(const Sent& sent) {
    EXPECT_EQ(sent.done, 1);
    std::vector<Tensor> outputs;
    for (std::size_t i = 0; i < sent.completion.outputs.size(); ++i) {
      const Buffer& output = sent.completion.outputs[i];
      const DType dtype = DTypeOf(model_->outputs()[i], sent.inputs.front().dtype());
      const auto count = output.size() / norm::SizeOf(dtype);
      outputs.push_back(
          OutputOf(sent.completion, i, Tensor(dtype, static_cast<std::int64_t>(count))));
    }
    return outputs;
  }

  void ExpectRight(const std::vector<Dims>& shapes, const Sent& sent,
                   const std::vector<Tensor>& outputs) {
    const Tensor& x = sent.inputs.front();
    const auto& program = std::get<NormProgram>(model_->program());
    const norm::NormSpec& spec = program.Spec(x.dtype());
    const Geometry geometry = GeometryOf(shapes, x.dtype(), true);
    norm::Segment segment;
    segment.samples = geometry.samples;
    segment.spatial = geometry.spatial;
    segment.spatial_runs = geometry.spatial_runs;
    const auto roles = norm::InputsOf(spec);
    for (std::size_t i = 0; i < roles.size(); ++i) {
      norm::SetInput(spec, roles[i], sent.inputs[i].data(), geometry.inputs[i].bytes, segment);
    }
    std::vector<double> expected(static_cast<std::size_t>(x.count()));
    std::vector<double> mean(static_cast<std::size_t>(geometry.rows));
    std::vector<double> rstd(static_cast<std::size_t>(geometry.rows));
    const bool has_mean = spec.statistics == norm::Statistics::kMeanVariance;
    const norm::Status status = norm::NormalizeReference(
        spec, program.params, segment,
        norm::ReferenceOutputs{expected.data(), has_mean ? mean.data() : nullptr, rstd.data()});
    ASSERT_TRUE(status.ok()) << status.message();
    const auto kinds = norm::OutputsOf(spec);
    ASSERT_EQ(outputs.size(), kinds.size());
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const Tensor& got = outputs[k];
      const auto tolerance = norm::testing::TightTolerance(got.dtype());
      switch (kinds[k]) {
        case norm::SegmentOutput::kY:
          if (spec.quantization == norm::Quantization::kNone) {
            EXPECT_EQ(norm::testing::Compare(got, expected, tolerance), "");
          } else {
            ExpectQuantized(spec, segment, expected, got);
          }
          break;
        case norm::SegmentOutput::kResidualOut:
          for (std::int64_t i = 0; i < x.count() && !spec.gate; ++i) {  // Rounded first, or not.
            ASSERT_EQ(got.Get(i), norm::NormalizedElement(spec, program.params, segment, i));
          }
          break;
        case norm::SegmentOutput::kScale:
          EXPECT_EQ(norm::testing::Compare(
                        got, norm::ReferenceScales(spec, segment, expected.data()), tolerance),
                    "");
          break;
        case norm::SegmentOutput::kMean:
          EXPECT_EQ(norm::testing::Compare(got, mean, tolerance), "");
          break;
        case norm::SegmentOutput::kRstd:
          EXPECT_EQ(norm::testing::Compare(got, rstd, tolerance), "");
          break;
      }
    }
  }

  // The row of element i of a tensor, and which of the row's it is.
  static std::pair<std::size_t, std::size_t> PlaceOf(const norm::NormSpec& spec,
                                                     const norm::Segment& segment, std::size_t i) {
    if (spec.layout != norm::Layout::kInterleaved) {  // Rows that lie together.
      const auto row = static_cast<std::size_t>(norm::RowLength(spec, segment.spatial));
      return {i / row, i % row};
    }
    const norm::InterleavedPlaces places = {spec.channel_runs, segment.spatial_runs};
    const std::int64_t sample_elements = spec.channels * segment.spatial;
    const auto element = static_cast<std::int64_t>(i);
    const std::int64_t row =
        element / sample_elements * segment.spatial + places.PositionAt(element % sample_elements);
    return {static_cast<std::size_t>(row),
            static_cast<std::size_t>(places.ChannelAt(element % sample_elements))};
  }

  // Each value is at most a step from the exact one's.
  static void ExpectQuantized(const norm::NormSpec& spec, const norm::Segment& segment,
                              const std::vector<double>& y, const Tensor& got) {
    const bool is_static = spec.quantization_scale == norm::QuantizationScale::kStatic;
    const bool in_blocks = spec.quantization_scale == norm::QuantizationScale::kBlock;
    const auto row_length = static_cast<std::size_t>(norm::RowLength(spec, segment.spatial));
    const std::size_t length = in_blocks ? 128 : row_length;  // The elements that share a scale.
    const std::size_t scales_of_row = (row_length + length - 1) / length;
    std::vector<double> scales;
    if (!is_static) scales = norm::ReferenceScales(spec, segment, y.data());
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto [row, at] = PlaceOf(spec, segment, i);
      const double scale =
          is_static ? spec.output_scale : scales[row * scales_of_row + at / length];
      const double exact = y[i] / scale;
      const bool int8 = spec.quantization == norm::Quantization::kInt8;
      const double step = int8 ? 1 : std::max(std::fabs(exact) / 8, 0x1p-9);
      const double held =
          int8 ? std::clamp(exact, -128.0, 127.0) : std::clamp(exact, -448.0, 448.0);
      ASSERT_NEAR(got.Get(static_cast<std::int64_t>(i)), held, 0.5001 * step) << i;
    }
  }

  std::shared_ptr<const Model> model_;
};

TEST_P(CpuOperationsTest, GivesTheSameBitsHoweverTheInputsLie) {
  for (const std::vector<Dims>& shapes : GetParam().requests) {
    for (const DType dtype : kDTypes) {
      Sent whole;
      Run(MakeRequest(shapes, dtype, whole, std::vector<Split>(shapes.size(), Split::kOnePiece)));
      const std::vector<Tensor> expected = OutputsOf(whole);
      ExpectRight(shapes, whole, expected);
      for (int round = 0; round < 12; ++round) {
        std::vector<Split> splits;
        std::string text = norm::Name(dtype);
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          splits.push_back(kSplits[random_() % 5]);
          absl::StrAppend(&text, " ", static_cast<int>(splits.back()));
        }
        SCOPED_TRACE(text);
        Sent sent;
        Run(MakeRequest(shapes, dtype, sent, splits));
        const std::vector<Tensor> outputs = OutputsOf(sent);
        ASSERT_EQ(outputs.size(), expected.size());
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          EXPECT_TRUE(outputs[i].SameBytes(expected[i])) << "output " << i;
        }
      }
    }
  }
}

TEST_P(CpuOperationsTest, RequestsShareABatchAndKeepTheirBits) {
  const DType dtype = kDTypes[TestSeed() % 4];
  std::vector<Sent> together(3 * GetParam().requests.size());
  std::vector<std::unique_ptr<Request>> requests;
  const auto shapes_of = [](std::size_t i) { return GetParam().requests[i / 3]; };
  for (std::size_t i = 0; i < together.size(); ++i) {
    std::vector<Split> splits(shapes_of(i).size(), kSplits[random_() % 5]);
    requests.push_back(MakeRequest(shapes_of(i), dtype, together[i], splits));
  }
  Run(std::move(requests));
  for (std::size_t i = 0; i < together.size(); ++i) {
    Sent alone;
    Run(MakeRequest(shapes_of(i), dtype, alone,
                    std::vector<Split>(shapes_of(i).size(), Split::kOnePiece)));
    const std::vector<Tensor> expected = OutputsOf(alone);
    const std::vector<Tensor> outputs = OutputsOf(together[i]);
    ASSERT_EQ(outputs.size(), expected.size());
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      EXPECT_TRUE(outputs[k].SameBytes(expected[k])) << "request " << i << " output " << k;
    }
  }
}

// What one request asks for changes nothing of another's.
TEST_P(CpuOperationsTest, RequestsWithStatisticsShareABatchWithOthers) {
  const std::vector<Dims>& shapes = GetParam().requests.front();
  std::vector<Sent> together(4);
  std::vector<std::unique_ptr<Request>> requests;
  for (std::size_t i = 0; i < together.size(); ++i) {
    requests.push_back(MakeRequest(shapes, DType::kFloat32, together[i],
                                   std::vector<Split>(shapes.size(), kSplits[i]), i % 2 == 0));
  }
  Run(std::move(requests));
  const std::vector<Tensor> expected = OutputsOf(together[0]);
  ExpectRight(shapes, together[0], expected);
  for (std::size_t i = 1; i < together.size(); ++i) {
    const std::vector<Tensor> outputs = OutputsOf(together[i]);
    ASSERT_EQ(outputs.size(), expected.size());
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      if (model_->outputs()[k].on_request && i % 2 == 1) {
        EXPECT_EQ(outputs[k].count(), 0) << "request " << i << " output " << k;
      } else {
        EXPECT_TRUE(outputs[k].SameBytes(expected[k])) << "request " << i << " output " << k;
      }
    }
  }
}

// More than is gathered at once, of inputs that have no output's place.
TEST_P(CpuOperationsTest, GathersLargeInputsInParts) {
  std::vector<Dims> shapes = GetParam().requests.front();
  std::int64_t bytes = 0;
  for (const Dims& dims : shapes) {
    std::int64_t sample = sizeof(float);
    for (std::size_t i = 1; i < dims.size(); ++i) sample *= dims[i];
    bytes = std::max(bytes, sample);
  }
  for (Dims& dims : shapes) dims[0] = (std::int64_t{6} << 20) / bytes;
  Sent whole;
  Run(MakeRequest(shapes, DType::kFloat32, whole,
                  std::vector<Split>(shapes.size(), Split::kOnePiece)));
  const std::vector<Tensor> expected = OutputsOf(whole);
  Sent sent;
  Run(MakeRequest(shapes, DType::kFloat32, sent,
                  std::vector<Split>(shapes.size(), Split::kAnywhere)));
  const std::vector<Tensor> outputs = OutputsOf(sent);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(outputs[i].SameBytes(expected[i])) << "output " << i;
  }
}

std::string NameOf(const ::testing::TestParamInfo<Case>& test) { return test.param.name; }

INSTANTIATE_TEST_SUITE_P(All, CpuOperationsTest, ::testing::ValuesIn(Cases()), NameOf);
INSTANTIATE_TEST_SUITE_P(AxesApart, CpuOperationsTest, ::testing::ValuesIn(CasesOfAxesApart()),
                         NameOf);

}  // namespace
}  // namespace normd
