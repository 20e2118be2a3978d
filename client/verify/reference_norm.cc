#include "client/verify/reference_norm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/verify/reference_axes.h"
#include "kernels/interleaved.h"
#include "kernels/reference.h"
#include "kernels/segment_tensors.h"

namespace normd::client {
namespace {

// torch.nn.RMSNorm without eps: of the type that the statistics are computed in.
double MachineEpsilon(norm::DType dtype) {
  return dtype == norm::DType::kFloat64 ? 0x1p-52 : 0x1p-23;
}

const char* NameOf(norm::SegmentInput input, const ReferenceNormCase& norm) {
  switch (input) {
    case norm::SegmentInput::kX: return "x";
    case norm::SegmentInput::kResidual: return "residual";
    case norm::SegmentInput::kOther: return norm.other_name;
    case norm::SegmentInput::kGate: return "gate";
    case norm::SegmentInput::kScale: return "scale";
    case norm::SegmentInput::kShift: return "shift";
    case norm::SegmentInput::kStyleIndex: return "style_index";
    case norm::SegmentInput::kStyleWeights: return "style_weights";
    case norm::SegmentInput::kStyleTensor: return "style";
  }
  return "";
}

const char* NameOf(norm::SegmentOutput output) {
  switch (output) {
    case norm::SegmentOutput::kY: return "y";
    case norm::SegmentOutput::kResidualOut: return "residual_out";
    case norm::SegmentOutput::kScale: return "y_scale";
    case norm::SegmentOutput::kMean: return "mean";
    case norm::SegmentOutput::kRstd: return "rstd";
  }
  return "";
}

std::int64_t ScalesOfRow(const norm::NormSpec& spec, std::int64_t spatial) {
  if (spec.quantization_scale != norm::QuantizationScale::kBlock) return 1;
  const std::int64_t length = norm::RowLength(spec, spatial);
  return (length + norm::kQuantizationBlock - 1) / norm::kQuantizationBlock;
}

// Of a segment's elements in x's layout, which scale is element i's.
std::int64_t ScaleIndex(const norm::NormSpec& spec, const norm::Segment& segment, std::int64_t i) {
  const std::int64_t spatial = segment.spatial;
  if (spec.layout == norm::Layout::kInterleaved) {
    const norm::InterleavedPlaces places = {spec.channel_runs, segment.spatial_runs};
    const std::int64_t elements = spec.channels * spatial;
    return i / elements * spatial + places.PositionAt(i % elements);
  }
  const bool last = spec.layout == norm::Layout::kChannelsLast;
  const std::int64_t sample = i / (spec.channels * spatial);
  const std::int64_t at = i % (spec.channels * spatial);
  const std::int64_t channel = last ? at % spec.channels : at / spatial;
  const std::int64_t position = last ? at / spec.channels : at % spatial;
  const std::int64_t of_group = spec.channels / spec.groups;
  const std::int64_t group = channel / of_group;
  if (spec.rows == norm::Rows::kPosition) {
    const std::int64_t row = (sample * spec.groups + group) * spatial + position;
    return row * ScalesOfRow(spec, spatial) +
           (ScalesOfRow(spec, spatial) > 1 ? channel % of_group / norm::kQuantizationBlock : 0);
  }
  const std::int64_t row = sample * spec.groups + group;
  if (ScalesOfRow(spec, spatial) == 1) return row;
  const std::int64_t in_row = (channel % of_group) * spatial + position;
  return row * ScalesOfRow(spec, spatial) + in_row / norm::kQuantizationBlock;
}

class ReferenceNorm final : public ReferenceOperation {
 public:
  explicit ReferenceNorm(ReferenceNormCase norm)
      : norm_(std::move(norm)),
        inputs_(norm::InputsOf(norm_.spec)),
        outputs_(norm::OutputsOf(norm_.spec)) {}

  std::vector<std::string> input_names() const override {
    std::vector<std::string> names;
    for (const norm::SegmentInput input : inputs_) names.emplace_back(NameOf(input, norm_));
    return names;
  }
  bool needs_parameters() const override {
    return norm_.has_weight || norm_.has_bias || norm_.spec.statistics == norm::Statistics::kGiven;
  }
  absl::Status Take(const ReferenceParameters& parameters) override;
  std::vector<ReferenceSpec> Outputs(absl::Span<const TensorSpec* const> inputs) const override;
  absl::StatusOr<std::vector<ReferenceOutput>> Compute(
      absl::Span<const NamedTensor* const> inputs) const override;

 private:
  // Samples and spatial elements.
  absl::StatusOr<norm::Segment> SegmentOf(const TensorView& x) const;
  absl::Status Check(norm::SegmentInput input, const TensorView& tensor, const TensorView& x) const;
  Shape RowShape(const Shape& x, std::int64_t scales) const;
  // The elements of every output, in their order.
  absl::StatusOr<std::vector<std::vector<double>>> Elements(const norm::NormSpec& spec,
                                                            const norm::Segment& segment) const;

  ReferenceNormCase norm_;
  std::vector<norm::SegmentInput> inputs_;
  std::vector<norm::SegmentOutput> outputs_;
  norm::NormParams params_;
};

absl::Status ReferenceNorm::Take(const ReferenceParameters& parameters) {
  bool weight = norm_.has_weight;
  bool bias = norm_.has_bias;
  // A module with bias=False has a weight only.
  if (weight && bias && (parameters.Has("weight") || parameters.Has("bias"))) {
    weight = parameters.Has("weight");
    bias = parameters.Has("bias");
  }
  const bool running = norm_.spec.statistics == norm::Statistics::kGiven;
  struct Wanted {
    bool used;
    const char* name;
    norm::ParamVector* target;
  };
  for (const Wanted& wanted :
       {Wanted{weight, "weight", &params_.gamma}, Wanted{bias, "bias", &params_.beta},
        Wanted{running, "running_mean", &params_.mean},
        Wanted{running, "running_var", &params_.variance}}) {
    if (!wanted.used) continue;
    const std::int64_t rows = std::max<std::int64_t>(norm_.spec.styles, 1);
    const auto vector = parameters.Find(wanted.name, rows * norm_.spec.channels);
    if (!vector.ok()) return vector.status();
    *wanted.target = *vector;
  }
  return FromKernels(norm::ValidateSpec(norm_.spec, params_));
}

// Of so many values for each row of x.
Shape ReferenceNorm::RowShape(const Shape& x, std::int64_t scales) const {
  std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  const auto count = static_cast<int>(norm_.normalized_shape.size());
  if (!norm_.axes.empty()) {
    dims = RowDimsOverAxes(norm_.axes, x);
  } else if (count > 0) {
    const int first = std::max(x.rank() - count, 0);
    std::fill_n(dims.begin() + first, std::min(count, x.rank()), 1);
    if (!dims.empty()) dims.back() = norm_.spec.groups;
  } else if (norm_.spec.rows == norm::Rows::kPosition) {
    if (!dims.empty()) dims.back() = 1;
  } else {
    dims = {x.rank() > 0 ? x.dim(0) : 0, norm_.spec.groups};
  }
  if (!dims.empty()) dims.back() *= scales;
  return Shape::Create(dims).value_or(Shape());
}

std::vector<ReferenceSpec> ReferenceNorm::Outputs(
    absl::Span<const TensorSpec* const> inputs) const {
  const TensorSpec& x = *inputs.front();
  norm::NormSpec spec = norm_.spec;
  spec.dtype = x.dtype;
  std::vector<ReferenceSpec> outputs;
  for (const norm::SegmentOutput output : outputs_) {
    Shape shape = x.shape;
    if (output == norm::SegmentOutput::kScale) {
      shape = RowShape(x.shape, ScalesOfRow(spec, 1));
    } else if (norm::IsOptional(output)) {
      shape = RowShape(x.shape, 1);
    }
    outputs.push_back(
        {{NameOf(output), norm::TypeOf(spec, output), std::move(shape)}, norm::IsOptional(output)});
  }
  return outputs;
}

absl::StatusOr<norm::Segment> ReferenceNorm::SegmentOf(const TensorView& x) const {
  const auto wrong = [&](const std::string& wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: ", x.shape.ToString(), ", wanted ", wanted));
  };
  norm::Segment segment;
  const int rank = x.shape.rank();
  const std::vector<std::int64_t>& normalized = norm_.normalized_shape;
  if (!norm_.axes.empty()) return SegmentOverAxes(norm_.axes, normalized, x.shape);
  if (!normalized.empty()) {
    const int leading = rank - static_cast<int>(normalized.size());
    if (leading < 0 ||
        !std::equal(normalized.begin(), normalized.end(), x.shape.dims().begin() + leading)) {
      return wrong("the normalized dimensions at the end");
    }
    segment.samples = x.shape.Product(0, leading);
    return segment;
  }
  const std::int64_t channels = norm_.spec.channels;
  const bool last = norm_.spec.layout == norm::Layout::kChannelsLast;
  if (rank < 2 || x.shape.dim(last ? rank - 1 : 1) != channels) {
    return wrong(absl::StrCat(last ? "[N, *, " : "[N, ", channels, last ? "]" : ", *]"));
  }
  segment.samples = x.shape.dim(0);
  segment.spatial = last ? x.shape.Product(1, rank - 1) : x.shape.Product(2, rank);
  return segment;
}

// An input beside x, whose shape fits.
absl::Status ReferenceNorm::Check(norm::SegmentInput input, const TensorView& tensor,
                                  const TensorView& x) const {
  const bool weights = input == norm::SegmentInput::kStyleWeights;
  norm::NormSpec spec = norm_.spec;
  spec.dtype = x.dtype;
  const norm::DType dtype = norm::TypeOf(spec, input);
  const Shape& shape = tensor.shape;
  bool fits = false;
  std::string wanted;
  if (norm::IsLikeX(input)) {
    fits = shape == x.shape;
    wanted = x.shape.ToString();
  } else if (input == norm::SegmentInput::kStyleTensor) {
    const absl::StatusOr<norm::Segment> style = SegmentOf(tensor);
    fits = style.ok() && style->spatial > 0 && shape.dim(0) == x.shape.dim(0);
    wanted = absl::StrCat("as many samples and channels as ", x.shape.ToString());
  } else if (input == norm::SegmentInput::kStyleIndex) {
    fits = shape.rank() == 1 && shape.dim(0) == x.shape.dim(0);
    wanted = absl::StrCat("[", x.shape.dim(0), "]");
  } else {
    const std::int64_t width = weights ? norm_.spec.styles : norm_.spec.channels;
    fits = shape.rank() == 2 && shape.dim(0) == x.shape.dim(0) && shape.dim(1) == width;
    wanted = absl::StrCat("[", x.shape.dim(0), ", ", width, "]");
  }
  if (fits && tensor.dtype == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(NameOf(input, norm_), ": ",
                                                 norm::Name(tensor.dtype), " ", shape.ToString(),
                                                 ", wanted ", norm::Name(dtype), " ", wanted));
}

absl::StatusOr<std::vector<ReferenceOutput>> ReferenceNorm::Compute(
    absl::Span<const NamedTensor* const> inputs) const {
  const TensorView& x = inputs.front()->tensor;
  absl::StatusOr<norm::Segment> segment = SegmentOf(x);
  if (!segment.ok()) return segment.status();
  norm::NormSpec spec = norm_.spec;
  spec.dtype = x.dtype;
  if (norm_.takes_machine_epsilon) spec.eps = MachineEpsilon(x.dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorView& tensor = inputs[i]->tensor;
    if (i > 0) {
      if (absl::Status status = Check(inputs_[i], tensor, x); !status.ok()) return status;
    }
    if (segment->samples == 0) continue;
    norm::SetInput(spec, inputs_[i], tensor.bytes.data(),
                   static_cast<std::int64_t>(tensor.bytes.size()), *segment);
  }
  const TensorSpec like_x{"", x.dtype, x.shape};
  const TensorSpec* const first = &like_x;
  absl::StatusOr<std::vector<std::vector<double>>> elements = Elements(spec, *segment);
  if (!elements.ok()) return elements.status();
  std::vector<ReferenceOutput> outputs;
  for (ReferenceSpec& output : Outputs(absl::MakeConstSpan(&first, 1))) {
    std::vector<double>& values = (*elements)[outputs.size()];
    outputs.push_back({std::move(output.spec), std::move(values)});
  }
  return outputs;
}

absl::StatusOr<std::vector<std::vector<double>>> ReferenceNorm::Elements(
    const norm::NormSpec& spec, const norm::Segment& segment) const {
  const auto count = static_cast<std::size_t>(segment.samples * spec.channels * segment.spatial);
  const auto rows =
      static_cast<std::size_t>(segment.samples * norm::RowsOfSample(spec, segment.spatial));
  const auto has = [this](norm::SegmentOutput output) {
    return std::find(outputs_.begin(), outputs_.end(), output) != outputs_.end();
  };
  std::vector<double> y(count);
  std::vector<double> mean(has(norm::SegmentOutput::kMean) ? rows : 0);
  std::vector<double> rstd(has(norm::SegmentOutput::kRstd) ? rows : 0);
  const norm::Status status = norm::NormalizeReference(
      spec, params_, segment,
      norm::ReferenceOutputs{y.data(), mean.empty() ? nullptr : mean.data(),
                             rstd.empty() ? nullptr : rstd.data()});
  if (!status.ok()) return FromKernels(status);
  std::vector<double> scales;
  if (has(norm::SegmentOutput::kScale)) {
    scales = norm::ReferenceScales(spec, segment, y.data());
  }
  if (spec.quantization != norm::Quantization::kNone) {
    for (std::size_t i = 0; i < count; ++i) {
      y[i] /= scales.empty() ? spec.output_scale
                             : scales[static_cast<std::size_t>(
                                   ScaleIndex(spec, segment, static_cast<std::int64_t>(i)))];
    }
  }
  std::vector<std::vector<double>> elements;
  for (const norm::SegmentOutput output : outputs_) {
    switch (output) {
      case norm::SegmentOutput::kY: elements.push_back(std::move(y)); break;
      case norm::SegmentOutput::kResidualOut: {
        std::vector<double>& sums = elements.emplace_back(count);
        for (std::size_t i = 0; i < count; ++i) {
          sums[i] = norm::NormalizedElement(spec, params_, segment, static_cast<std::int64_t>(i));
        }
        break;
      }
      case norm::SegmentOutput::kScale: elements.push_back(std::move(scales)); break;
      case norm::SegmentOutput::kMean: elements.push_back(std::move(mean)); break;
      case norm::SegmentOutput::kRstd: elements.push_back(std::move(rstd)); break;
    }
  }
  return elements;
}

void SetQuantization(const v1::Quantization& message, norm::NormSpec& spec) {
  spec.quantization =
      message.dtype() == v1::INT8 ? norm::Quantization::kInt8 : norm::Quantization::kFloat8E4M3;
  spec.output_scale = message.scale();
  if (message.scales() == v1::PER_ROW) spec.quantization_scale = norm::QuantizationScale::kRow;
  if (message.scales() == v1::PER_BLOCK) spec.quantization_scale = norm::QuantizationScale::kBlock;
}

}  // namespace

// The kernels' enums have the protocol's values by name, not by number.
norm::Activation ActivationOf(v1::Activation activation) {
  switch (activation) {
    case v1::RELU: return norm::Activation::kRelu;
    case v1::LEAKY_RELU: return norm::Activation::kLeakyRelu;
    case v1::SILU: return norm::Activation::kSilu;
    case v1::GELU_ERF: return norm::Activation::kGeluErf;
    case v1::GELU_TANH: return norm::Activation::kGeluTanh;
    default: return norm::Activation::kNone;
  }
}

double LeakySlopeOf(const v1::ModelConfig& config) {
  return config.has_leaky_slope() ? config.leaky_slope() : norm::NormSpec().leaky_slope;
}

absl::Status FromKernels(const norm::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InvalidArgumentError(status.message());
}

absl::StatusOr<std::unique_ptr<ReferenceOperation>> MakeReferenceNorm(const v1::ModelConfig& config,
                                                                      ReferenceNormCase norm) {
  if (!norm.normalized_shape.empty()) {
    const absl::StatusOr<Shape> shape = Shape::Create(norm.normalized_shape);
    if (!shape.ok()) return shape.status();
    norm.spec.channels = shape->elements();
  }
  norm.spec.activation = ActivationOf(config.activation());
  norm.spec.leaky_slope = LeakySlopeOf(config);
  if (config.has_quantization()) SetQuantization(config.quantization(), norm.spec);
  absl::Status status = SetAxes(norm.axes, norm.normalized_shape, norm.spec);
  if (!status.ok()) return status;
  if (config.layout() == v1::CHANNELS_LAST) norm.spec.layout = norm::Layout::kChannelsLast;
  return std::make_unique<ReferenceNorm>(std::move(norm));
}

}  // namespace normd::client
