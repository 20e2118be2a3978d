#include "server/exec/cpu_norm.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/normalize.h"
#include "kernels/cpu/widen.h"
#include "server/exec/gather.h"
#include "server/exec/kernel_status.h"
#include "server/exec/slice_reader.h"

namespace normd {
namespace {

// The bytes gathered between two calls of the kernels, per kernel thread. They are then still in a
// cache when they are computed in place: a batch of 64 sliced requests of 256 KiB takes three
// quarters of the time of gathering it as a whole. A fraction of this is not faster, and each call
// costs a synchronization of the threads.
constexpr std::int64_t kGatherBytesPerThread = std::int64_t{1} << 20;

class CpuNormRun final : public CpuRun {
 public:
  explicit CpuNormRun(const CpuResources& resources)
      : CpuRun(resources), gather_bytes_(kGatherBytesPerThread * resources.kernels.max_threads()) {}

  absl::Status Place(CpuItem& item) override;

 private:
  void Start(const BackendState& state, norm::DType dtype) override;
  absl::Status Launch() override;
  void Forget() override;
  void Select(const ChannelRange& channels);
  // A scattered input, and the memory to which its cut samples are copied.
  struct Source {
    SliceReader reader;
    std::int64_t sample_bytes = 0;
    std::byte* output = nullptr;  // Has a place for each sample, or:
    std::byte* spare = nullptr;   // One sample after another, until they are computed.
    std::int64_t spare_bytes = 0;
    std::int64_t used_bytes = 0;
  };
  using Sources = absl::InlinedVector<Source, kInlinedInputs>;
  absl::Status TakeInputs(CpuItem& item);
  absl::Status Open(CpuItem& item, Sources& sources);
  std::byte* PlaceOf(const CpuItem& item, std::size_t input) const;
  void MakeRoom(Sources& sources);
  const std::byte* Take(Source& source, std::int64_t sample, std::int64_t bytes, bool& in_place);

  const std::int64_t gather_bytes_;
  // For the current batch.
  const CpuNorm* norm_ = nullptr;
  norm::NormSpec spec_;
  norm::NormParams params_;
  ChannelRange channels_{};          // The channels that all of `segments_` cover.
  std::int64_t gathered_bytes_ = 0;  // In the waiting segments.
  std::vector<norm::Segment> segments_;
};

void CpuNormRun::Start(const BackendState& state, norm::DType dtype) {
  norm_ = &static_cast<const CpuNorm&>(state);
  spec_ = norm_->program().Spec(dtype);
  params_ = norm_->params();
  channels_ = {};
}

absl::Status CpuNormRun::Place(CpuItem& item) {
  const Request& request = *item.request;
  const Geometry& geometry = request.geometry;
  Select(geometry.channels);
  if (geometry.inputs[0].bytes == 0) return absl::OkStatus();
  norm::Segment segment;
  segment.samples = geometry.samples;
  segment.spatial = geometry.spatial;
  segment.spatial_runs = geometry.spatial_runs;
  for (std::size_t i = 0; i < norm_->inputs().size(); ++i) {
    const std::byte* const there = InPlaceInput(request, i);
    if (there == nullptr) return TakeInputs(item);
    norm::SetInput(spec_, norm_->inputs()[i], there, geometry.inputs[i].bytes, segment);
  }
  for (std::size_t i = 0; i < norm_->outputs().size(); ++i) {
    norm::SetOutput(norm_->outputs()[i], item.outputs[i], segment);
  }
  segments_.push_back(segment);
  return absl::OkStatus();
}

// Other channels need a call of their own.
void CpuNormRun::Select(const ChannelRange& channels) {
  if (channels == channels_) return;
  if (!segments_.empty()) Compute();
  channels_ = channels;
}

// A sample is computed on its own, so neither the cuts nor its place change its bits.
absl::Status CpuNormRun::TakeInputs(CpuItem& item) {
  Request& request = *item.request;
  const Geometry& geometry = request.geometry;
  Sources sources;
  if (absl::Status status = Open(item, sources); !status.ok()) return status;
  bool in_place = false;
  for (std::int64_t sample = 0; sample < geometry.samples;) {
    MakeRoom(sources);
    // All samples that lie whole in each input; one if some input's next is cut.
    norm::Segment segment;
    segment.samples = geometry.samples - sample;
    segment.spatial = geometry.spatial;
    segment.spatial_runs = geometry.spatial_runs;
    for (Source& source : sources) {
      const auto piece = static_cast<std::int64_t>(source.reader.Piece().size());
      segment.samples = std::clamp<std::int64_t>(piece / source.sample_bytes, 1, segment.samples);
    }
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::int64_t bytes = segment.samples * sources[i].sample_bytes;
      norm::SetInput(spec_, norm_->inputs()[i], Take(sources[i], sample, bytes, in_place), bytes,
                     segment);
    }
    for (std::size_t i = 0; i < norm_->outputs().size(); ++i) {
      if (item.outputs[i] == nullptr) continue;
      const std::int64_t sample_bytes = geometry.outputs[i].bytes / geometry.samples;
      norm::SetOutput(norm_->outputs()[i], item.outputs[i] + sample * sample_bytes, segment);
    }
    segments_.push_back(segment);
    if (gathered_bytes_ >= gather_bytes_) Compute();
    sample += segment.samples;
  }
  if (!in_place) request.ReleaseInputs();
  return absl::OkStatus();
}

absl::Status CpuNormRun::Open(CpuItem& item, Sources& sources) {
  const Geometry& geometry = item.request->geometry;
  for (std::size_t i = 0; i < item.request->inputs.size(); ++i) {
    const std::int64_t bytes = geometry.inputs[i].bytes;
    Source source{SliceReader(item.request->inputs[i].views), bytes / geometry.samples};
    source.output = PlaceOf(item, i);
    if (source.output == nullptr) {
      source.spare_bytes = std::min(bytes, std::max(source.sample_bytes, gather_bytes_));
      absl::StatusOr<Buffer> taken = resources().pool.Take(source.spare_bytes);
      if (!taken.ok()) return taken.status();
      source.spare = item.gathered.emplace_back(*std::move(taken)).data();
    }
    sources.push_back(std::move(source));
  }
  return absl::OkStatus();
}

// An input is gathered where the output goes that may replace it: nobody reads it after that. Null
// for others.
std::byte* CpuNormRun::PlaceOf(const CpuItem& item, std::size_t input) const {
  const auto& overwritten = norm_->overwritten();
  const auto output = std::find(overwritten.begin(), overwritten.end(), input);
  return output == overwritten.end() ? nullptr : item.outputs[output - overwritten.begin()];
}

// Makes room for another sample of each input. Computed samples no longer need their spare memory.
void CpuNormRun::MakeRoom(Sources& sources) {
  const bool full = std::any_of(sources.begin(), sources.end(), [](const Source& source) {
    return source.spare != nullptr && source.used_bytes + source.sample_bytes > source.spare_bytes;
  });
  if (!full) return;
  Compute();
  for (Source& source : sources) source.used_bytes = 0;
}

// The source's next `bytes`, from this sample on: in place or, if they are a cut sample, copied.
const std::byte* CpuNormRun::Take(Source& source, std::int64_t sample, std::int64_t bytes,
                                  bool& in_place) {
  const ConstBytes piece = source.reader.Piece();
  if (static_cast<std::int64_t>(piece.size()) >= bytes) {
    source.reader.Skip(static_cast<std::size_t>(bytes));
    in_place = true;
    return piece.data();
  }
  std::byte* to = source.spare + source.used_bytes;
  if (source.spare != nullptr) {
    source.used_bytes += bytes;
  } else {
    to = source.output + sample * source.sample_bytes;
  }
  source.reader.Read(to, static_cast<std::size_t>(bytes));
  gathered_bytes_ += bytes;
  return to;
}

absl::Status CpuNormRun::Launch() {
  if (segments_.empty()) return absl::OkStatus();
  return FromKernel(resources().kernels.Normalize(
      SpecOf(spec_, channels_), ParamsOf(params_, channels_), segments_.data(), segments_.size()));
}

void CpuNormRun::Forget() {
  segments_.clear();
  gathered_bytes_ = 0;
}

}  // namespace

CpuNorm::CpuNorm(const NormProgram& program)
    : program_(program),
      params_(program.params),
      inputs_(norm::InputsOf(program.specs.front())),
      outputs_(norm::OutputsOf(program.specs.front())) {
  const norm::NormSpec& spec = program.specs.front();
  const std::int64_t table = spec.channels * std::max<std::int64_t>(spec.styles, 1);
  Widen(table, params_.gamma);
  Widen(table, params_.beta);
  Widen(spec.channels, params_.mean);
  Widen(spec.channels, params_.variance);
  Widen(spec.channels, params_.input_bias);
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    overwritten_.push_back(OverwritableInput(program, o));
  }
}

void CpuNorm::Widen(std::int64_t elements, norm::ParamVector& param) {
  if (param.data == nullptr || norm::SizeOf(param.dtype) != 2) return;
  std::vector<float>& values = widened_.emplace_back(static_cast<std::size_t>(elements));
  norm::cpu::Widen(param, elements, values.data());
  param = {values.data(), norm::DType::kFloat32};
}

std::unique_ptr<CpuRun> CpuNorm::MakeRun(const CpuResources& resources) const {
  return std::make_unique<CpuNormRun>(resources);
}

}  // namespace normd
