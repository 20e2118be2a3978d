#include "operations/makers.h"

#include <cstddef>
#include <cstring>
#include <variant>

#include "operations/field_checks.h"
#include "operations/kernel_program.h"
#include "operations/normalized_shape_norm.h"

namespace normd {
namespace {

// The file holds one number, but the program one for each of these elements.
constexpr std::int64_t kMostElements = std::int64_t{1} << 24;

constexpr absl::string_view kTorchNames[] = {"g"};

absl::Status CheckMessage(const v1::ScaleNorm& message) {
  absl::Status status = CheckNormalizedShape("scale_norm", message.normalized_shape());
  if (status.ok()) status = CheckEps("scale_norm", message);
  if (!status.ok()) return status;
  const std::int64_t elements = ElementsOf(message.normalized_shape());
  if (elements <= kMostElements) return absl::OkStatus();
  return InvalidField("scale_norm.normalized_shape", absl::StrCat(elements, " elements"),
                      absl::StrCat("at most ", kMostElements));
}

NormCase CaseOf(const v1::ScaleNorm& message) {
  NormCase norm;
  norm.spec = norm::RmsNormSpec(ElementsOf(message.normalized_shape()), norm::DType::kFloat32);
  norm.spec.statistics = norm::Statistics::kRootOfSquares;
  norm.spec.eps = EpsOf(message);
  return norm;
}

class ScaleNorm final : public NormalizedShapeNorm {
 public:
  explicit ScaleNorm(const v1::ModelConfig& config)
      : NormalizedShapeNorm(config, CaseOf(config.scale_norm()),
                            config.scale_norm().normalized_shape()) {
    parameters_.expected.push_back({"g", true, Shape()});
    parameters_.torch_names = kTorchNames;
  }

  const ParameterRules& parameters() const override { return parameters_; }

  // The kernels take a gamma with one element per channel. Each is g.
  KernelProgram MakeProgram(const BoundParameters& parameters) const override {
    NormProgram program = std::get<NormProgram>(NormalizedShapeNorm::MakeProgram(parameters));
    const norm::ParamVector g = FindParameter(parameters, "g");
    if (g.data == nullptr) return program;
    const std::size_t element = norm::SizeOf(g.dtype);
    const std::size_t bytes = element * static_cast<std::size_t>(spec().channels);
    const std::shared_ptr<std::byte[]> gamma(new std::byte[bytes]);
    for (std::size_t i = 0; i < bytes; i += element) {
      std::memcpy(gamma.get() + i, g.data, element);
    }
    program.params.gamma = {gamma.get(), g.dtype};
    program.made_params = gamma;
    return program;
  }

 private:
  ParameterRules parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Operation>> MakeScaleNorm(const v1::ModelConfig& config) {
  if (absl::Status s = CheckMessage(config.scale_norm()); !s.ok()) return s;
  return std::make_unique<ScaleNorm>(config);
}

}  // namespace normd
