#include "tests/support/mix_operation.h"
#include "operations/kernel_program.h"

#include <cstring>
#include <string>

#include "kernels/reference.h"

namespace normd {
namespace {

class MixOperation final : public Operation {
 public:
  const Signature& signature() const override { return signature_; }
  const ParameterRules& parameters() const override { return parameters_; }
  bool has_channels() const override { return false; }
  bool TakesDType(norm::DType dtype) const override { return dtype == norm::DType::kFloat32; }
  std::string DTypesText() const override { return "FLOAT32"; }
  absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const override {
    Geometry geometry;
    geometry.samples = geometry.rows = inputs[0].shape.dim(0);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      geometry.inputs.push_back({geometry.samples * kMixInputBytes[i], inputs[i].dtype});
    }
    geometry.outputs.push_back({geometry.samples * kMixOutputBytes[0], norm::DType::kFloat32});
    geometry.outputs.push_back({geometry.samples * kMixOutputBytes[1], norm::DType::kFloat64});
    return geometry;
  }
  absl::InlinedVector<TensorType, kInlinedOutputs> Outputs(
      absl::Span<const TensorType> inputs) const override {
    return {inputs[0], inputs[2]};
  }
  CutRule cut() const override { return {}; }
  bool runs_inline() const override { return true; }
  KernelProgram MakeProgram(const BoundParameters&) const override { return {}; }

 private:
  const ParameterRules parameters_ = {};
  const Signature signature_ = {
      {{"x", {kAnySize, kMixWidth}}, {"g", {kAnySize, kMixWidth}}, {"s", {kAnySize, 1}}},
      {{"y", {kAnySize, kMixWidth}}, {"t", {kAnySize, 1}}}};
};

struct MixSegment {
  const std::byte* inputs[3];
  std::byte* outputs[2];
  std::int64_t samples;
};

class CpuMixRun final : public CpuRun {
 public:
  CpuMixRun(const CpuResources& resources, bool overwrites)
      : CpuRun(resources), overwrites_(overwrites) {}

  absl::Status Place(CpuItem& item) override {
    MixSegment segment = {{}, {item.outputs[0], item.outputs[1]}, item.request->geometry.samples};
    bool in_place = false;
    for (std::size_t i = 0; i < 3; ++i) {
      std::byte* const spare = overwrites_ && i == 0 ? item.outputs[0] : nullptr;
      const absl::StatusOr<const std::byte*> input = InOnePiece(item, i, spare, in_place);
      if (!input.ok()) return input.status();
      segment.inputs[i] = *input;
    }
    segments_.push_back(segment);
    if (!in_place) item.request->ReleaseInputs();
    return absl::OkStatus();
  }

 private:
  void Start(const BackendState&, norm::DType) override {}
  absl::Status Launch() override {
    for (const MixSegment& segment : segments_) {
      for (std::int64_t i = 0; i < segment.samples; ++i) {
        ComputeMix(
            segment.inputs[0] + i * kMixInputBytes[0], segment.inputs[1] + i * kMixInputBytes[1],
            segment.inputs[2] + i * kMixInputBytes[2], segment.outputs[0] + i * kMixOutputBytes[0],
            segment.outputs[1] + i * kMixOutputBytes[1]);
      }
    }
    return absl::OkStatus();
  }
  void Forget() override { segments_.clear(); }

  const bool overwrites_;
  std::vector<MixSegment> segments_;
};

class CpuMix final : public CpuProgram {
 public:
  explicit CpuMix(bool overwrites) : overwrites_(overwrites) {}
  std::unique_ptr<CpuRun> MakeRun(const CpuResources& resources) const override {
    return std::make_unique<CpuMixRun>(resources, overwrites_);
  }

 private:
  const bool overwrites_;
};

}  // namespace

void ComputeMix(const std::byte* x, const std::byte* g, const std::byte* s, std::byte* y,
                std::byte* t) {
  double sum = norm::LoadElement(norm::DType::kFloat64, s, 0);
  for (std::int64_t i = 0; i < kMixWidth; ++i) {
    const double value = norm::LoadElement(norm::DType::kFloat32, x, i);
    sum += value;
    norm::StoreElement(norm::DType::kFloat32, y, i,
                       value * norm::LoadElement(norm::DType::kFloat16, g, i));
  }
  norm::StoreElement(norm::DType::kFloat64, t, 0, sum);
}

std::shared_ptr<Model> MakeMixModel(ModelMetrics& metrics) {
  return *Model::Create("mix", 1, v1::ModelConfig(), std::make_unique<MixOperation>(), {},
                        std::shared_ptr<ModelMetrics>(std::shared_ptr<void>(), &metrics));
}

std::vector<TensorType> MixTypes(std::int64_t samples) {
  return {{norm::DType::kFloat32, *Shape::Create({samples, kMixWidth})},
          {norm::DType::kFloat16, *Shape::Create({samples, kMixWidth})},
          {norm::DType::kFloat64, *Shape::Create({samples, 1})}};
}

std::unique_ptr<CpuProgram> MakeCpuMix(bool overwrites) {
  return std::make_unique<CpuMix>(overwrites);
}

}  // namespace normd
