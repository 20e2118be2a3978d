#include "tests/support/staged_segment.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/reference.h"

namespace normd::norm::testing {
namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::int64_t kPoolElements = 1 << 16;

constexpr unsigned char kPoison = 0xFF;  // A NaN in every format.
// Between the samples of outputs: it is not what a NaN that was read there and computed with
// leaves.
constexpr unsigned char kOutputGap = 0xA5;

// The bytes of samples with gaps between them.
std::size_t Extent(std::size_t sample_bytes, std::size_t gap, std::int64_t samples) {
  return samples == 0 ? 0 : static_cast<std::size_t>(samples) * (sample_bytes + gap) - gap;
}

bool GapsIntact(const GuardedBytes& bytes, std::size_t sample_bytes, std::size_t gap,
                unsigned char filled) {
  for (std::size_t at = sample_bytes; at < bytes.bytes(); at += sample_bytes + gap) {
    const unsigned char* const begin = bytes.data() + at;
    if (!std::all_of(begin, begin + gap, [filled](unsigned char b) { return b == filled; }))
      return false;
  }
  return true;
}

const Tensor& NormalPool(DType dtype) {
  static std::map<DType, Tensor> pools;
  auto found = pools.find(dtype);
  if (found == pools.end()) {
    found = pools.emplace(dtype, Tensor(dtype, kPoolElements)).first;
    found->second.Fill(Data::kNormal, TestSeed() + 60);
  }
  return found->second;
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

}  // namespace

void FillNormal(DType dtype, void* data, std::int64_t count, Random& random) {
  const Tensor& pool = NormalPool(dtype);
  const auto element = static_cast<std::int64_t>(SizeOf(dtype));
  std::int64_t at = random.Draw(0, kPoolElements - 1);
  for (std::int64_t done = 0; done < count; at = 0) {
    const std::int64_t taken = std::min(count - done, kPoolElements - at);
    std::memcpy(static_cast<char*>(data) + done * element,
                static_cast<const char*>(pool.data()) + at * element,
                static_cast<std::size_t>(taken * element));
    done += taken;
  }
}

GuardedBytes::GuardedBytes(std::size_t bytes, std::size_t offset)
    : storage_(bytes + offset + 2 * kGuardBytes + kBoundary, kGuard), bytes_(bytes) {
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(storage_.data()) % kBoundary;
  first_ = kGuardBytes + (kBoundary - beyond) % kBoundary + offset;
}

void GuardedBytes::Poison() { std::memset(data(), kPoison, bytes_); }

bool GuardedBytes::GuardsIntact() const {
  if (storage_.empty()) return true;
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  const unsigned char* const end = data() + bytes_;
  return std::all_of(data() - kGuardBytes, data(), is_guard) &&
         std::all_of(end, end + kGuardBytes, is_guard);
}

void StagedParams::Draw(std::int64_t count, Random& random, Values* values) {
  values->emplace(random.OneOf(kTypes), count, random.Chance(50) ? random.Draw(1, 9) : 0);
  FillNormal((*values)->dtype(), (*values)->data(), count, random);
}

void StagedParams::DrawTable(const NormSpec& spec, Random& random, Values* values) {
  const std::int64_t count = std::max<std::int64_t>(spec.styles, 1) * spec.channels;
  Draw(count, random, values);
  if (spec.styles == 0) return;
  // -0 and zeros of other rows are mixed to 0: the bits would not be those of the row.
  for (std::int64_t i = 0; i < count; ++i) (*values)->Set(i, (*values)->Get(i) + 0.0);
}

StagedParams::StagedParams(const NormSpec& spec, bool input_bias, Random& random) {
  const std::int64_t which = random.Draw(spec.styles > 0 ? 1 : 0, 3);
  const bool affine = spec.style != Style::kTensor;
  if (affine && (which & 1) != 0) DrawTable(spec, random, &gamma_);
  if (affine && (which & 2) != 0) DrawTable(spec, random, &beta_);
  if (input_bias) Draw(spec.channels, random, &input_bias_);
  if (spec.statistics != Statistics::kGiven) return;
  Draw(spec.channels, random, &mean_);
  Draw(spec.channels, random, &variance_);
  for (std::int64_t c = 0; c < spec.channels; ++c) {
    variance_->Set(c, 0.5 + std::fabs(variance_->Get(c)));
  }
}

StagedParams StagedParams::OfRowsType(const NormSpec& spec, bool input_bias, Random& random) {
  StagedParams params;
  for (Values* const values : {&params.gamma_, &params.beta_, &params.input_bias_}) {
    if (values == &params.beta_ && random.Chance(50)) continue;
    if (values == &params.input_bias_ && !input_bias) continue;
    values->emplace(spec.dtype, spec.channels, 0);
    FillNormal(spec.dtype, (*values)->data(), spec.channels, random);
  }
  return params;
}

NormParams StagedParams::View() const {
  NormParams params;
  const auto view = [](const Values& from, ParamVector* to) {
    if (from.has_value()) *to = {from->data(), from->dtype()};
  };
  view(gamma_, &params.gamma);
  view(beta_, &params.beta);
  view(mean_, &params.mean);
  view(variance_, &params.variance);
  view(input_bias_, &params.input_bias);
  return params;
}

RunSizes DrawRuns(std::int64_t product, Random& random) {
  RunSizes runs = {product, 1, 1, 1};
  for (std::size_t i = 1; i < runs.size() && product > 0; ++i) {
    const std::int64_t wanted = random.Draw(1, 9);
    const std::int64_t divisor = std::gcd(runs[0], wanted * random.Draw(1, 8));
    runs[0] /= divisor;
    runs[i] = divisor;
  }
  for (std::size_t i = runs.size(); i-- > 1;) {
    std::swap(runs[i],
              runs[static_cast<std::size_t>(random.Draw(0, static_cast<std::int64_t>(i)))]);
  }
  return runs;
}

StagedSegment::StagedSegment(const NormSpec& spec, std::int64_t samples, std::int64_t spatial,
                             std::int64_t style_spatial, Random& random)
    : spec_(spec),
      samples_(samples),
      spatial_(spatial),
      style_spatial_(spec.style == Style::kTensor ? style_spatial : 0) {
  if (spec.layout == Layout::kMixedRuns) spatial_runs_ = DrawRuns(spatial, random);
  SetSizes();
  FillInputs(random);
}

StagedSegment::StagedSegment(const NormSpec& spec, std::int64_t samples,
                             const RunSizes& spatial_runs, Random& random)
    : spec_(spec),
      samples_(samples),
      spatial_(std::accumulate(spatial_runs.begin(), spatial_runs.end(), std::int64_t{1},
                               std::multiplies<>())),
      style_spatial_(0),
      spatial_runs_(spatial_runs) {
  SetSizes();
  FillInputs(random);
}

void StagedSegment::FillInputs(Random& random) {
  for (int in = 0; in < kInputs; ++in) {
    Input& input = inputs_[static_cast<std::size_t>(in)];
    const std::size_t bytes = InputBytesOf(input);
    input.pristine.resize(bytes);
    const auto count = static_cast<std::int64_t>(bytes / ElementBytes(static_cast<In>(in)));
    if (in == kStyleIndex) {
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t index = random.Draw(0, spec_.styles - 1);
        std::memcpy(input.pristine.data() + 8 * n, &index, sizeof(index));
      }
    } else {
      FillNormal(spec_.dtype, input.pristine.data(), count, random);
    }
  }
}

StagedSegment::StagedSegment(const StagedSegment& whole, std::int64_t first, std::int64_t samples)
    : spec_(whole.spec_),
      samples_(samples),
      spatial_(whole.spatial_),
      style_spatial_(whole.style_spatial_),
      spatial_runs_(whole.spatial_runs_) {
  SetSizes();
  for (std::size_t in = 0; in < kInputs; ++in) {
    const auto begin =
        whole.inputs_[in].pristine.begin() +
        static_cast<std::ptrdiff_t>(inputs_[in].sample_bytes) * static_cast<std::ptrdiff_t>(first);
    inputs_[in].pristine.assign(begin,
                                begin + static_cast<std::ptrdiff_t>(InputBytesOf(inputs_[in])));
  }
}

void StagedSegment::SetSizes() {
  const auto channels = static_cast<std::size_t>(spec_.channels);
  const std::size_t elements = channels * static_cast<std::size_t>(spatial_);
  const std::size_t element = SizeOf(spec_.dtype);
  const auto in = [&](In which, bool wanted, std::size_t bytes) {
    inputs_[which].sample_bytes = wanted ? bytes : 0;
  };
  in(kX, true, elements * element);
  in(kResidual, spec_.residual, elements * element);
  in(kOther, spec_.takes_other(), elements * element);
  in(kGate, spec_.gate, channels * element);
  in(kScale, spec_.scale, channels * element);
  in(kShift, spec_.shift, channels * element);
  in(kStyleIndex, spec_.style == Style::kIndex, 8);
  in(kStyleWeights, spec_.style == Style::kMix, element * static_cast<std::size_t>(spec_.styles));
  in(kStyleTensor, spec_.style == Style::kTensor,
     channels * static_cast<std::size_t>(style_spatial_) * element);

  const bool quantized = spec_.quantization != Quantization::kNone;
  outputs_[kY].sample_bytes = elements * (quantized ? 1 : element);
  outputs_[kResidualOut].sample_bytes = spec_.residual_out ? elements * element : 0;
  const auto rows = static_cast<std::size_t>(RowsOfSample(spec_, spatial_));
  const std::int64_t length = RowLength(spec_, spatial_);
  const std::int64_t blocks = (length + kQuantizationBlock - 1) / kQuantizationBlock;
  switch (spec_.quantization_scale) {
    case QuantizationScale::kStatic: outputs_[kScaleOut].sample_bytes = 0; break;
    case QuantizationScale::kRow: outputs_[kScaleOut].sample_bytes = 4 * rows; break;
    case QuantizationScale::kBlock:
      outputs_[kScaleOut].sample_bytes = 4 * rows * static_cast<std::size_t>(blocks);
      break;
  }
}

std::size_t StagedSegment::ElementBytes(In in) const {
  return in == kStyleIndex ? 8 : SizeOf(spec_.dtype);
}

std::size_t StagedSegment::ElementBytes(Out out) const {
  if (out == kScaleOut) return 4;
  if (out == kMeanOut || out == kRstdOut) return SizeOf(AccType());
  return out == kY && spec_.quantization != Quantization::kNone ? 1 : SizeOf(spec_.dtype);
}

double StagedSegment::InputAt(In in, std::int64_t index) const {
  return LoadElement(spec_.dtype, input(in), index);
}

void StagedSegment::SetInput(In in, std::int64_t index, double value) {
  StoreElement(spec_.dtype, input(in), index, value);
}

void StagedSegment::WantStatistics(bool wanted) {
  const std::size_t bytes =
      SizeOf(AccType()) * static_cast<std::size_t>(RowsOfSample(spec_, spatial_));
  const bool has_mean = spec_.statistics == Statistics::kMeanVariance;
  outputs_[kMeanOut].sample_bytes = wanted && has_mean ? bytes : 0;
  outputs_[kRstdOut].sample_bytes = wanted && spec_.statistics != Statistics::kGiven ? bytes : 0;
}

void StagedSegment::DrawPlacement(Random& random) {
  std::vector<int> places = {-1, kX};
  if (spec_.residual) places.push_back(kResidual);
  int& y = outputs_[kY].in_place_of;
  int& sum = outputs_[kResidualOut].in_place_of;
  y = sum = -1;
  if (spec_.residual_out) sum = random.OneOf(places);
  if (spec_.quantization != Quantization::kNone) return;
  if (spec_.takes_other()) places.push_back(kOther);
  do {
    y = random.OneOf(places);
  } while (y != -1 && y == sum);
}

void StagedSegment::DrawGaps(Random& random) {
  // Whole vectors, single elements, and more than a page.
  constexpr std::int64_t kMost[] = {0, 1, 3, 40, 4100};
  const auto draw = [&](std::size_t element) {
    const std::int64_t gap = random.Draw(0, random.OneOf(kMost));
    return element * static_cast<std::size_t>(random.Chance(30) ? gap * 16 : gap);
  };
  const bool x_is_free = outputs_[kResidualOut].in_place_of != kX;
  inputs_[kX].gap = x_is_free ? draw(ElementBytes(kX)) : 0;
  Output& y = outputs_[kY];
  y.gap = y.in_place_of == kX ? inputs_[kX].gap : y.in_place_of < 0 ? draw(ElementBytes(kY)) : 0;
}

void StagedSegment::DrawOffsets(bool any_byte, Random& random) {
  for (int in = 0; in < kInputs; ++in) {
    const std::size_t element = any_byte && !IsOverwritten(in) ? 1 : ElementBytes(In(in));
    inputs_[static_cast<std::size_t>(in)].offset =
        static_cast<std::size_t>(random.Chance(50) ? random.Draw(1, 9) : 0) * element;
  }
  for (int out = 0; out < kOutputs; ++out) {
    outputs_[static_cast<std::size_t>(out)].offset =
        static_cast<std::size_t>(random.Chance(50) ? random.Draw(1, 9) : 0) *
        ElementBytes(Out(out));
  }
}

bool StagedSegment::IsOverwritten(int in) const {
  return std::any_of(outputs_.begin(), outputs_.end(), [&](const Output& output) {
    return output.sample_bytes > 0 && output.in_place_of == in;
  });
}

Segment StagedSegment::Prepare(const NormParams* own) {
  for (Input& input : inputs_) {
    if (input.sample_bytes == 0) continue;
    input.copy = GuardedBytes(Extent(input.sample_bytes, input.gap, samples_), input.offset);
    input.copy.Poison();
    for (std::size_t n = 0; n < static_cast<std::size_t>(samples_); ++n) {
      std::memcpy(input.copy.data() + n * (input.sample_bytes + input.gap),
                  input.pristine.data() + n * input.sample_bytes, input.sample_bytes);
    }
  }
  for (Output& output : outputs_) {
    const bool apart = output.in_place_of < 0;
    const std::size_t bytes = Extent(output.sample_bytes, output.gap, samples_);
    output.own = GuardedBytes(apart ? bytes : 0, output.offset);
    output.own.Poison();
    for (std::size_t at = output.sample_bytes; at < output.own.bytes();
         at += output.sample_bytes + output.gap) {
      std::memset(output.own.data() + at, kOutputGap, output.gap);
    }
  }
  const auto in = [&](In which) -> unsigned char* {
    Input& input = inputs_[which];
    return input.sample_bytes == 0 ? nullptr : input.copy.data();
  };
  const auto out = [&](Out which) -> void* {
    Output& output = outputs_[which];
    if (output.sample_bytes == 0) return nullptr;
    return output.in_place_of < 0 ? output.own.data() : in(static_cast<In>(output.in_place_of));
  };
  Segment segment = WithInputs(in);
  segment.y = out(kY);
  segment.residual_out = out(kResidualOut);
  segment.params = own;
  segment.mean_out = out(kMeanOut);
  segment.rstd_out = out(kRstdOut);
  segment.scale_out = static_cast<float*>(out(kScaleOut));
  const auto pitch = [](std::size_t sample_bytes, std::size_t gap, std::size_t element) {
    return gap == 0 ? 0 : static_cast<std::int64_t>((sample_bytes + gap) / element);
  };
  segment.x_pitch = pitch(inputs_[kX].sample_bytes, inputs_[kX].gap, ElementBytes(kX));
  segment.y_pitch = pitch(outputs_[kY].sample_bytes, outputs_[kY].gap, ElementBytes(kY));
  return segment;
}

Segment StagedSegment::Reference() const {
  return WithInputs([&](In which) -> const unsigned char* {
    const Input& input = inputs_[which];
    return input.sample_bytes == 0 ? nullptr : input.pristine.data();
  });
}

Segment StagedSegment::WithInputs(const std::function<const unsigned char*(In)>& in) const {
  Segment segment;
  segment.x = in(kX);
  segment.samples = samples_;
  segment.spatial = spatial_;
  segment.residual = in(kResidual);
  segment.other = in(kOther);
  segment.gate = in(kGate);
  segment.scale = in(kScale);
  segment.shift = in(kShift);
  segment.style_index = reinterpret_cast<const std::int64_t*>(in(kStyleIndex));
  segment.style_weights = in(kStyleWeights);
  segment.style_tensor = in(kStyleTensor);
  segment.style_spatial = style_spatial_;
  segment.spatial_runs = spatial_runs_;
  return segment;
}

const void* StagedSegment::output(Out out) const {
  const Output& output = outputs_[out];
  if (output.sample_bytes == 0) return nullptr;
  if (output.in_place_of < 0) return output.own.data();
  return inputs_[static_cast<std::size_t>(output.in_place_of)].copy.data();
}

double StagedSegment::OutputAt(Out out, std::int64_t index) const {
  if (outputs_[out].gap != 0) {
    const std::int64_t sample = index / (spec_.channels * spatial_);
    index += sample * static_cast<std::int64_t>(outputs_[out].gap / ElementBytes(out));
  }
  if (out == kScaleOut) return LoadElement(DType::kFloat32, output(out), index);
  if (out == kMeanOut || out == kRstdOut) return LoadElement(AccType(), output(out), index);
  if (out == kY && spec_.quantization != Quantization::kNone) {
    return LoadQuantized(spec_.quantization, output(out), index);
  }
  return LoadElement(spec_.dtype, output(out), index);
}

std::string StagedSegment::StrayWrites() const {
  std::string stray;
  for (int in = 0; in < kInputs; ++in) {
    const Input& input = inputs_[static_cast<std::size_t>(in)];
    if (!input.copy.GuardsIntact()) stray += " beside input " + std::to_string(in);
    if (!GapsIntact(input.copy, input.sample_bytes, input.gap, kPoison)) {
      stray += " between samples of input " + std::to_string(in);
    }
    if (IsOverwritten(in)) continue;
    for (std::size_t at = 0; at < input.pristine.size(); at += input.sample_bytes) {
      const std::size_t n = at / input.sample_bytes;
      if (std::memcmp(input.copy.data() + at + n * input.gap, input.pristine.data() + at,
                      input.sample_bytes) != 0) {
        stray += " to input " + std::to_string(in) + "'s sample " + std::to_string(n);
      }
    }
  }
  for (int out = 0; out < kOutputs; ++out) {
    const Output& output = outputs_[static_cast<std::size_t>(out)];
    if (!output.own.GuardsIntact()) stray += " beside output " + std::to_string(out);
    if (!GapsIntact(output.own, output.sample_bytes, output.gap, kOutputGap)) {
      stray += " between samples of output " + std::to_string(out);
    }
  }
  return stray.empty() ? "" : "written" + stray;
}

std::string StagedSegment::Differences(const StagedSegment& whole, std::int64_t first) const {
  static constexpr const char* kNames[] = {"y", "residual_out", "mean_out", "rstd_out",
                                           "scale_out"};
  std::string text;
  for (int out = 0; out < kOutputs; ++out) {
    const auto* got = static_cast<const unsigned char*>(output(Out(out)));
    const auto* want = static_cast<const unsigned char*>(whole.output(Out(out)));
    if (got == nullptr || want == nullptr) continue;
    const Output& own = outputs_[static_cast<std::size_t>(out)];
    const std::size_t sample = own.sample_bytes;
    const std::size_t whole_gap = whole.outputs_[static_cast<std::size_t>(out)].gap;
    want += (sample + whole_gap) * static_cast<std::size_t>(first);
    const std::size_t bytes = sample * static_cast<std::size_t>(samples_);
    const std::size_t element = ElementBytes(Out(out));
    std::size_t differing = 0, place = 0;
    for (std::size_t at = 0; at < bytes; at += element) {
      const std::size_t n = at / sample;
      if (std::memcmp(got + at + n * own.gap, want + at + n * whole_gap, element) == 0) continue;
      if (differing++ == 0) place = at / element;
    }
    if (differing == 0) continue;
    text += std::string(kNames[out]) + ": " + std::to_string(differing) + " of " +
            std::to_string(bytes / element) + " elements have other bits, the first is " +
            std::to_string(place) + "; ";
  }
  return text;
}

}  // namespace normd::norm::testing
