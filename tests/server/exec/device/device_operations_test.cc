// A lane on a device with operations that have several inputs and outputs, of several shapes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "google/protobuf/text_format.h"
#include "kernels/segment_tensors.h"
#include "tests/server/exec/device/device_lane_fixture.h"

namespace normd {
namespace {

using Dims = std::vector<std::int64_t>;

struct Case {
  const char* name;
  const char* config;
  std::vector<Dims> parameters;  // Weight and bias, if the operation has them.
  std::vector<Dims> inputs;      // For one sample; the first dimension counts samples.
};

const Case kCases[] = {
    {"AddRmsNorm", "add_rms_norm { normalized_shape: 12 eps: 0.5 }", {{12}}, {{1, 12}, {1, 12}}},
    {"GatedRmsNorm",
     "gated_rms_norm { normalized_shape: 12 eps: 0.5 affine: false }",
     {},
     {{1, 12}, {1, 12}}},
    {"ScaleNorm", "scale_norm { normalized_shape: 12 }", {{1}}, {{1, 12}}},
    {"AdaptiveLayerNorm",
     "adaptive_layer_norm { features: 6 gated_residual: true }",
     {},
     {{1, 5, 6}, {1, 5, 6}, {1, 6}, {1, 6}, {1, 6}}},
    {"AdaptiveInstanceNorm", "adaptive_instance_norm { channels: 3 }", {}, {{1, 3, 11}, {1, 3, 4}}},
    {"ConditionalInstanceNorm",
     "conditional_instance_norm { channels: 3 styles: 4 }",
     {{4, 3}, {4, 3}},
     {{1, 3, 11}, {1, 4}}},
    {"ConditionalInstanceNormByIndex",
     "conditional_instance_norm { channels: 3 styles: 4 by_index: true }",
     {{4, 3}, {4, 3}},
     {{1, 3, 11}, {1}}},
    {"AddRmsNormToInt8",
     "add_rms_norm { normalized_shape: 12 affine: false } "
     "quantization { dtype: INT8 scales: PER_ROW }",
     {},
     {{1, 12}, {1, 12}}},
    {"LayerNormToFloat8",
     "layer_norm { normalized_shape: 12 affine: false } "
     "quantization { dtype: FLOAT8_E4M3 scale: 0.01 }",
     {},
     {{1, 12}}},
    {"LayerNormOfChannels",
     "layer_norm { normalized_shape: 3 axes: 1 affine: false }",
     {},
     {{1, 3, 11}}},
    {"LayerNormOfAxesApart",
     "layer_norm { normalized_shape: [3, 2] axes: [1, 3] affine: false }",
     {},
     {{1, 3, 5, 2, 2}}},
};

struct SeveralSent {
  std::vector<std::vector<std::byte>> inputs;
  Geometry geometry;
  int done = 0;
  Completion completion;
};

class DeviceOperationsTest : public DeviceLaneTest, public ::testing::WithParamInterface<Case> {
 protected:
  void Load() {
    v1::ModelConfig config;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(GetParam().config, &config));
    // Not by parameter_names: protobuf's maps have another layout under ThreadSanitizer.
    const char* const first_name = config.has_scale_norm() ? "g" : "weight";
    std::vector<Parameter> parameters;
    for (const Dims& dims : GetParam().parameters) {
      const Shape shape = *Shape::Create(dims);
      std::vector<float> values;
      for (std::int64_t i = 0; i < shape.elements(); ++i) {
        values.push_back(1.5F + 0.125F * static_cast<float>(i));
      }
      parameters.push_back(MakeParameter(parameters.empty() ? first_name : "bias", values));
      parameters.back().shape = shape;
    }
    std::shared_ptr<Model> model =
        *Model::Create("several", 1, config, std::move(parameters), metrics_->ForModel("s", 1));
    model->set_backend_state(*backend_->Prepare(*model));
    model_ = model;
  }

  void AddSeveral(Batch& batch, std::int64_t samples, SeveralSent& sent) {
    std::vector<TensorType> types;
    for (Dims dims : GetParam().inputs) {
      dims[0] = samples;
      const norm::DType dtype = DTypeOf(model_->inputs()[types.size()], norm::DType::kFloat32);
      types.push_back({dtype, *Shape::Create(dims)});
    }
    sent.geometry = *model_->Check(types);
    const auto outputs = model_->Outputs(types);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      // Some requests of a batch ask for statistics.
      if (!model_->outputs()[i].on_request || random_() % 2 == 0) continue;
      sent.geometry.outputs[i].bytes =
          outputs[i].shape.elements() * static_cast<std::int64_t>(norm::SizeOf(outputs[i].dtype));
    }
    auto request = std::make_unique<Request>();
    request->model = model_;
    request->geometry = sent.geometry;
    std::normal_distribution<float> normal(1, 2);
    for (const TensorType& type : types) {
      const std::size_t element = norm::SizeOf(type.dtype);
      std::vector<std::byte>& bytes = sent.inputs.emplace_back();
      bytes.resize(static_cast<std::size_t>(type.shape.elements()) * element);
      for (std::int64_t i = 0; i < type.shape.elements(); ++i) {
        const bool index = type.dtype == norm::DType::kInt64;
        const double value = index ? static_cast<double>(i % 4) : normal(random_);
        norm::StoreElement(type.dtype, bytes.data(), i, value);
      }
    }
    for (const std::vector<std::byte>& values : sent.inputs) {
      const std::byte* bytes = values.data();
      const std::size_t size = values.size();
      request->inputs.emplace_back();
      for (std::size_t at = 0; at < size;) {
        const std::size_t part = std::min<std::size_t>(size - at, random_() % 333 + 1);
        request->inputs.back().views.emplace_back(bytes + at, part);
        at += part;
      }
    }
    request->done = [&sent](Completion completion) {
      ++sent.done;
      sent.completion = std::move(completion);
    };
    batch.model = model_;
    batch.dtype = norm::DType::kFloat32;
    batch.bytes += sent.geometry.LargerBytes();
    batch.requests.push_back(std::move(request));
  }

  // Holds an output against what it is to be, unrounded. Nothing is there that was not asked for.
  static void ExpectOutput(const SeveralSent& sent, std::size_t index,
                           const std::vector<double>& expected) {
    const Buffer& output = sent.completion.outputs.at(index);
    const TensorSize& size = sent.geometry.outputs[index];
    ASSERT_EQ(output.size(), static_cast<std::size_t>(size.bytes));
    if (output.size() == 0) return;
    ASSERT_EQ(output.size(), expected.size() * norm::SizeOf(size.dtype));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      std::byte wanted[8];
      norm::StoreElement(size.dtype, wanted, 0, expected[i]);
      ASSERT_EQ(norm::LoadElement(size.dtype, output.data(), static_cast<std::int64_t>(i)),
                norm::LoadElement(size.dtype, wanted, 0))
          << "output " << index << " element " << i;
    }
  }

  void ExpectSeveralRight(const SeveralSent& sent) {
    ASSERT_EQ(sent.done, 1);
    ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
    const norm::NormSpec& spec = Program().Spec(norm::DType::kFloat32);
    norm::Segment segment;
    segment.samples = sent.geometry.samples;
    segment.spatial = sent.geometry.spatial;
    segment.spatial_runs = sent.geometry.spatial_runs;
    const auto inputs = norm::InputsOf(spec);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      norm::SetInput(spec, inputs[i], sent.inputs[i].data(), sent.geometry.inputs[i].bytes,
                     segment);
    }
    const auto elements = static_cast<std::size_t>(sent.geometry.inputs[0].bytes) / sizeof(float);
    const auto rows = static_cast<std::size_t>(sent.geometry.rows);
    std::vector<double> y(elements);
    std::vector<double> mean(rows);
    std::vector<double> rstd(rows);
    const bool has_mean = spec.statistics == norm::Statistics::kMeanVariance;
    const norm::ReferenceOutputs out{y.data(), has_mean ? mean.data() : nullptr, rstd.data()};
    ASSERT_TRUE(norm::NormalizeReference(spec, Program().params, segment, out).ok());
    std::vector<double> sums;
    for (std::size_t i = 0; i < elements; ++i) {
      sums.push_back(
          norm::NormalizedElement(spec, Program().params, segment, static_cast<std::int64_t>(i)));
    }
    std::vector<double> scales(elements > 0 ? 1 : 0, spec.output_scale);
    if (spec.quantization_scale == norm::QuantizationScale::kRow) {
      scales = norm::ReferenceScales(spec, segment, y.data());
    }
    if (spec.quantization != norm::Quantization::kNone) {
      for (std::size_t i = 0; i < elements; ++i) y[i] /= scales[i / (elements / scales.size())];
    }
    const auto kinds = norm::OutputsOf(spec);
    ASSERT_EQ(sent.completion.outputs.size(), kinds.size());
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      switch (kinds[k]) {
        case norm::SegmentOutput::kY: ExpectOutput(sent, k, y); break;
        case norm::SegmentOutput::kResidualOut: ExpectOutput(sent, k, sums); break;
        case norm::SegmentOutput::kScale: ExpectOutput(sent, k, scales); break;
        case norm::SegmentOutput::kMean: ExpectOutput(sent, k, mean); break;
        case norm::SegmentOutput::kRstd: ExpectOutput(sent, k, rstd); break;
      }
    }
  }
};

// Small requests that share a piece, and a large one that is cut; mapped and copied.
TEST_P(DeviceOperationsTest, EveryInputAndOutputFindsItsPlace) {
  for (const std::size_t mapped_bytes : {std::size_t{0}, std::size_t{16} << 10}) {
    DeviceBackendOptions options = SmallOptions();
    options.lane.mapped_bytes = mapped_bytes;
    Start(options);
    Load();
    for (const Dims& sizes : {Dims{1}, Dims{3, 1, 2}, Dims{40}, Dims{2, 0, 60, 1}}) {
      SCOPED_TRACE(sizes.front());
      std::vector<SeveralSent> sent(sizes.size());
      auto batch = std::make_unique<Batch>();
      for (std::size_t i = 0; i < sizes.size(); ++i) AddSeveral(*batch, sizes[i], sent[i]);
      ASSERT_TRUE(lanes_[0]->Execute(std::move(batch)).ok());
      for (const SeveralSent& one : sent) ExpectSeveralRight(one);
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<Case>& test) { return test.param.name; }

INSTANTIATE_TEST_SUITE_P(All, DeviceOperationsTest, ::testing::ValuesIn(kCases), NameOf);

}  // namespace
}  // namespace normd
