#include "tests/support/mix_operation.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/reference.h"
#include "operations/kernel_program.h"

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
      ComputeMix(segment.inputs, segment.outputs, segment.samples);
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

constexpr std::size_t kGuard = 64;
constexpr std::byte kUnwritten{0xa5};

std::size_t Aligned(const std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) + kGuard;
  return kGuard + (64 - address % 64) % 64;
}

}  // namespace

void ComputeMix(absl::Span<const std::byte* const> inputs, absl::Span<std::byte* const> outputs,
                std::int64_t samples) {
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    double sum = norm::LoadElement(norm::DType::kFloat64, inputs[2], sample);
    for (std::int64_t i = sample * kMixWidth; i < (sample + 1) * kMixWidth; ++i) {
      const double value = norm::LoadElement(norm::DType::kFloat32, inputs[0], i);
      sum += value;
      norm::StoreElement(norm::DType::kFloat32, outputs[0], i,
                         value * norm::LoadElement(norm::DType::kFloat16, inputs[1], i));
    }
    norm::StoreElement(norm::DType::kFloat64, outputs[1], sample, sum);
  }
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

MixRequest::MixRequest(std::shared_ptr<const Model> model, std::uint64_t id, std::int64_t samples,
                       const Layouts& layouts, std::mt19937_64& random)
    : samples_(samples),
      layouts_(layouts),
      memory_(std::make_shared<std::vector<Bytes>>()),
      end_(std::make_shared<End>()),
      request_(std::make_unique<Request>()) {
  const std::vector<TensorType> types = MixTypes(samples);
  request_->id = id;
  request_->geometry = *model->Check(types);
  request_->model = std::move(model);
  memory_->reserve(3);
  for (std::size_t i = 0; i < 3; ++i) {
    Bytes& values = values_[i];
    values.resize(static_cast<std::size_t>(request_->geometry.inputs[i].bytes));
    for (std::int64_t k = 0; k < types[i].shape.elements(); ++k) {
      norm::StoreElement(types[i].dtype, values.data(), k, static_cast<double>(random() % 9));
    }
    // Pieces of odd lengths, each a few bytes from the next.
    Bytes& memory = memory_->emplace_back(2 * values.size() + 4 * kGuard + 64);
    std::size_t to = Aligned(memory) + (layouts.inputs[i].in_one_piece ? 0 : 1);
    InputMemory& input = request_->inputs.emplace_back();
    input.place = layouts.inputs[i].place;
    for (std::size_t at = 0; at < values.size();) {
      const std::size_t part = layouts.inputs[i].in_one_piece
                                   ? values.size()
                                   : std::min<std::size_t>(values.size() - at, 5 + random() % 30);
      std::memcpy(memory.data() + to, values.data() + at, part);
      input.views.emplace_back(memory.data() + to, part);
      at += part;
      to += part + 1 + part / 8;
    }
  }
  for (std::size_t o = 0; o < 2; ++o) {
    OutputMemory& output = request_->outputs.emplace_back();
    const auto bytes = static_cast<std::size_t>(request_->geometry.outputs[o].bytes);
    named_[o].assign(bytes + 3 * kGuard + 64, kUnwritten);
    named_at_[o] = Aligned(named_[o]);
    if (!layouts.named[o]) continue;
    output.bytes = MutableBytes(named_[o].data() + named_at_[o], bytes);
    output.place = layouts.outputs[o];
  }
  request_->input_owner = memory_;
  request_->done = [end = end_](Completion completion) {
    ++end->calls;
    end->completion = std::move(completion);
  };
}

std::string MixRequest::Wrong() const {
  if (end_->calls != 1) return absl::StrCat("done ran ", end_->calls, " times");
  const Completion& completion = end_->completion;
  if (!completion.status.ok()) return completion.status.ToString();
  if (completion.outputs.size() != 2) return absl::StrCat(completion.outputs.size(), " outputs");
  Bytes expected[2];
  for (std::size_t o = 0; o < 2; ++o) {
    expected[o].resize(static_cast<std::size_t>(samples_ * kMixOutputBytes[o]));
  }
  ComputeMix({values_[0].data(), values_[1].data(), values_[2].data()},
             {expected[0].data(), expected[1].data()}, samples_);
  for (std::size_t o = 0; o < 2; ++o) {
    const Buffer& buffer = completion.outputs[o];
    const bool named = layouts_.named[o] && !expected[o].empty();
    const std::byte* const got = named ? named_[o].data() + named_at_[o] : buffer.data();
    if (buffer.size() != (named ? 0 : expected[o].size())) {
      return absl::StrCat("output ", o, ": a buffer of ", buffer.size(), " bytes");
    }
    if (!std::equal(expected[o].begin(), expected[o].end(), got)) {
      return absl::StrCat("output ", o, ": other bits");
    }
    Bytes around = named_[o];
    if (named)
      std::fill_n(around.begin() + static_cast<std::ptrdiff_t>(named_at_[o]), expected[o].size(),
                  kUnwritten);
    if (std::count(around.begin(), around.end(), kUnwritten) !=
        static_cast<std::ptrdiff_t>(around.size())) {
      return absl::StrCat("output ", o, ": written beside it");
    }
  }
  return "";
}

bool MixRequest::InputsIntact() const {
  for (std::size_t i = 0; i < 3; ++i) {
    const Bytes& memory = (*memory_)[i];
    std::size_t to = Aligned(memory) + (layouts_.inputs[i].in_one_piece ? 0 : 1);
    if (!layouts_.inputs[i].in_one_piece) continue;
    if (!std::equal(values_[i].begin(), values_[i].end(),
                    memory.begin() + static_cast<std::ptrdiff_t>(to))) {
      return false;
    }
  }
  return true;
}

}  // namespace normd
