#include "tests/support/stage.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace normd::norm::testing {
namespace {

constexpr Combine kCombines[] = {Combine::kAdd, Combine::kMultiply, Combine::kMultiplySilu,
                                 Combine::kMultiplySigmoid};
constexpr Activation kActivations[] = {Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
                                       Activation::kGeluErf, Activation::kGeluTanh};
constexpr const char* kNames[] = {
    "residual",      "residual_out",  "gate",        "input_bias",     "input_bias_out",
    "combine_input", "weight_offset", "style_index", "style_mix",      "style_tensor",
    "scale",         "shift",         "activation",  "combine_output", "static_scale",
    "row_scale",     "block_scale"};
static_assert(std::size(kNames) == kStages);

void Quantize(QuantizationScale scale, NormSpec* spec, Random& random) {
  spec->quantization = random.Chance(50) ? Quantization::kInt8 : Quantization::kFloat8E4M3;
  spec->quantization_scale = scale;
  // Some values saturate.
  const double largest = LargestQuantized(spec->quantization);
  spec->output_scale = scale == QuantizationScale::kStatic ? 2.5 / largest : 0;
}

}  // namespace

void StagedSpec::Add(Stage stage, Random& random) {
  if (!names.empty()) names += " ";
  names += kNames[static_cast<int>(stage)];
  switch (stage) {
    case Stage::kGate: spec.gate = true; [[fallthrough]];
    case Stage::kResidual: spec.residual = true; break;
    case Stage::kResidualOut: spec.residual = spec.residual_out = true; break;
    case Stage::kInputBiasOut: spec.residual_out = true; [[fallthrough]];
    case Stage::kInputBias: input_bias = true; break;
    case Stage::kCombineInput: spec.combine_input = random.OneOf(kCombines); break;
    case Stage::kWeightOffset: spec.weight_offset = random.Chance(50) ? 1 : -0.75; break;
    case Stage::kStyleIndex:
    case Stage::kStyleMix:
      // Both in one case leave the second.
      spec.style = stage == Stage::kStyleIndex ? Style::kIndex : Style::kMix;
      spec.styles = random.OneOf(std::to_array<std::int64_t>({1, 2, 32}));
      break;
    case Stage::kStyleTensor: spec.style = Style::kTensor; break;
    case Stage::kScale:
      spec.scale = true;
      if (random.Chance(33)) spec.scale_offset = random.Chance(50) ? 0 : -0.5;
      break;
    case Stage::kShift: spec.shift = true; break;
    case Stage::kActivation: spec.activation = random.OneOf(kActivations); break;
    case Stage::kCombineOutput: spec.combine_output = random.OneOf(kCombines); break;
    case Stage::kStaticScale: Quantize(QuantizationScale::kStatic, &spec, random); break;
    case Stage::kRowScale: Quantize(QuantizationScale::kRow, &spec, random); break;
    case Stage::kBlockScale: Quantize(QuantizationScale::kBlock, &spec, random); break;
  }
}

bool StagedSpec::IsValid() const {
  const bool given = spec.statistics == Statistics::kGiven;
  const bool sum = spec.residual || input_bias;
  const bool own_scales = spec.quantization_scale != QuantizationScale::kStatic;
  if (given && (spec.rows == Rows::kPosition || own_scales)) return false;
  if (spec.combine_input != Combine::kNone && (sum || spec.combine_output != Combine::kNone)) {
    return false;
  }
  if (spec.style == Style::kTensor) {
    return spec.rows == Rows::kGroup && spec.statistics == Statistics::kMeanVariance &&
           spec.styles == 0;
  }
  return true;
}

void StagedSpec::CutChannels(Random& random) {
  if (spec.layout != Layout::kMixedRuns) return;
  spec.groups = 1;
  spec.channel_runs = DrawRuns(spec.channels, random);
}

StagedSpec PlainSpec(DType dtype, Layout layout, Rows rows, Statistics statistics) {
  StagedSpec staged;
  staged.spec.dtype = dtype;
  staged.spec.layout = layout;
  staged.spec.rows = rows;
  staged.spec.statistics = statistics;
  return staged;
}

std::int64_t ChooseShape(std::int64_t length, StagedSpec* staged, Random& random) {
  NormSpec& spec = staged->spec;
  std::int64_t row_channels = length;  // For kPosition, and one of three ways for kGroup.
  std::int64_t spatial = 1;
  if (spec.rows == Rows::kPosition) {
    spatial = random.Chance(20)   ? 1
              : length > 2000     ? random.Draw(1, 5)
              : random.Chance(50) ? random.Draw(1, 40)
              : length > 64
                  ? random.OneOf(std::to_array<std::int64_t>({15, 16, 17, 49, 64, 100, 196}))
                  : random.OneOf(std::to_array<std::int64_t>({255, 256, 257, 1000, 2310}));
  } else if (spec.style == Style::kTensor || random.Chance(33)) {
    row_channels = 1;
    spatial = length;
  } else if (random.Chance(50)) {
    row_channels = std::min(length, random.Draw(1, 40));
    spatial = (length + row_channels - 1) / row_channels;
  }
  // Blocks need contiguous rows.
  const bool together = spec.layout != Layout::kMixedRuns &&
                        (spec.rows == Rows::kGroup) == (spec.layout == Layout::kChannelsFirst);
  if (spec.quantization_scale == QuantizationScale::kBlock && !together) {
    row_channels = length;
    spatial = 1;
  }
  if (spec.style == Style::kTensor) row_channels = 1;
  spec.groups = length > 20000 ? 1 : length > 2000 ? random.Draw(1, 2) : random.Draw(1, 5);
  spec.channels = spec.groups * row_channels;
  if (spec.layout == Layout::kMixedRuns) spec.channels = row_channels;
  staged->CutChannels(random);
  if (spec.styles > 2 && spec.channels > 2000) spec.styles = 2;
  return spatial;
}

}  // namespace normd::norm::testing
