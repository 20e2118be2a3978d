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
  std::vector<Dims> parameters;  // Of weight and bias, as many as there are.
  std::vector<Dims> inputs;      // For one sample; the first dimension counts samples.
};

const Case kCases[] = {
    {"AddRmsNorm", "add_rms_norm { normalized_shape: 12 eps: 0.5 }", {{12}}, {{1, 12}, {1, 12}}},
    {"GatedRmsNorm",
     "gated_rms_norm { normalized_shape: 12 eps: 0.5 affine: false }",
     {},
     {{1, 12}, {1, 12}}},
    {"AdaptiveLayerNorm",
     "adaptive_layer_norm { features: 6 gated_residual: true }",
     {},
     {{1, 5, 6}, {1, 5, 6}, {1, 6}, {1, 6}, {1, 6}}},
    {"AdaptiveInstanceNorm", "adaptive_instance_norm { channels: 3 }", {}, {{1, 3, 11}, {1, 3, 4}}},
    {"ConditionalInstanceNorm",
     "conditional_instance_norm { channels: 3 styles: 4 }",
     {{4, 3}, {4, 3}},
     {{1, 3, 11}, {1, 4}}},
    {"LayerNormOfChannels",
     "layer_norm { normalized_shape: 3 axes: 1 affine: false }",
     {},
     {{1, 3, 11}}},
};

struct SeveralSent {
  std::vector<std::vector<float>> inputs;
  Geometry geometry;
  int done = 0;
  Completion completion;
};

class DeviceOperationsTest : public DeviceLaneTest, public ::testing::WithParamInterface<Case> {
 protected:
  void Load() {
    v1::ModelConfig config;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(GetParam().config, &config));
    std::vector<Parameter> parameters;
    for (const Dims& dims : GetParam().parameters) {
      const Shape shape = *Shape::Create(dims);
      std::vector<float> values;
      for (std::int64_t i = 0; i < shape.elements(); ++i) {
        values.push_back(1 + 0.125F * static_cast<float>(i));
      }
      parameters.push_back(MakeParameter(parameters.empty() ? "weight" : "bias", values));
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
      types.push_back({norm::DType::kFloat32, *Shape::Create(dims)});
    }
    sent.geometry = *model_->Check(types);
    auto request = std::make_unique<Request>();
    request->model = model_;
    request->geometry = sent.geometry;
    std::normal_distribution<float> normal(1, 2);
    for (const TensorType& type : types) {
      std::vector<float>& values = sent.inputs.emplace_back();
      for (std::int64_t i = 0; i < type.shape.elements(); ++i) values.push_back(normal(random_));
    }
    for (const std::vector<float>& values : sent.inputs) {
      const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
      const std::size_t size = values.size() * sizeof(float);
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

  static std::vector<float> OutputOf(const SeveralSent& sent, std::size_t index) {
    const Buffer& output = sent.completion.outputs.at(index);
    std::vector<float> values(output.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), output.data(), output.size());
    return values;
  }

  void ExpectSeveralRight(const SeveralSent& sent) {
    ASSERT_EQ(sent.done, 1);
    ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
    const norm::NormSpec& spec = Program().Spec(norm::DType::kFloat32);
    norm::Segment segment;
    segment.samples = sent.geometry.samples;
    segment.spatial = sent.geometry.spatial;
    const auto inputs = norm::InputsOf(spec);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      norm::SetInput(spec, inputs[i], sent.inputs[i].data(), sent.geometry.inputs[i].bytes,
                     segment);
    }
    std::vector<double> expected(sent.inputs.front().size());
    ASSERT_TRUE(norm::NormalizeReference(spec, Program().params, segment, expected.data()).ok());
    const std::vector<float> y = OutputOf(sent, 0);
    ASSERT_EQ(y.size(), expected.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y[i], static_cast<float>(expected[i])) << "element " << i;
    }
    ASSERT_EQ(sent.completion.outputs.size(), spec.residual_out ? 2U : 1U);
    if (!spec.residual_out) return;
    const std::vector<float> sums = OutputOf(sent, 1);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(
          static_cast<double>(sums[i]),
          norm::NormalizedElement(spec, Program().params, segment, static_cast<std::int64_t>(i)));
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
