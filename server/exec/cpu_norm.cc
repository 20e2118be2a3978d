#include "server/exec/cpu_norm.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/exec/gather.h"
#include "server/exec/kernel_status.h"
#include "server/exec/slice_reader.h"

namespace normd {
namespace {

// How much is gathered between two calls of the kernels, for each of their threads. What has just
// been gathered is then still in a cache when it is computed in place: a batch of 64 sliced
// requests of 256 KiB takes three quarters of the time that gathering it as a whole takes. A
// fraction of this is not faster, and each call costs a synchronization of the threads.
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
  // An input that is dealt out, and the memory of its size to which its cut samples are copied.
  struct Source {
    SliceReader reader;
    std::byte* spare = nullptr;
    std::int64_t sample_bytes = 0;
  };
  absl::Status TakeInputs(CpuItem& item);
  absl::StatusOr<std::byte*> SpareFor(CpuItem& item, std::size_t input);
  const std::byte* Take(Source& source, std::int64_t at, std::int64_t bytes, bool& in_place);

  const std::int64_t gather_bytes_;
  // For the batch in work.
  const CpuNorm* norm_ = nullptr;
  norm::NormSpec spec_;
  norm::NormParams params_;
  ChannelRange channels_{};          // What all of `segments_` cover.
  std::int64_t gathered_bytes_ = 0;  // In what waits there.
  std::vector<norm::Segment> segments_;
};

void CpuNormRun::Start(const BackendState& state, norm::DType dtype) {
  norm_ = &static_cast<const CpuNorm&>(state);
  spec_ = norm_->program().Spec(dtype);
  params_ = norm_->program().params;
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

// What covers other channels needs a call of its own.
void CpuNormRun::Select(const ChannelRange& channels) {
  if (channels == channels_) return;
  if (!segments_.empty()) Compute();
  channels_ = channels;
}

// A sample is computed on its own, so neither the cuts nor where it lies change its bits.
absl::Status CpuNormRun::TakeInputs(CpuItem& item) {
  Request& request = *item.request;
  const Geometry& geometry = request.geometry;
  absl::InlinedVector<Source, kInlinedInputs> sources;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const absl::StatusOr<std::byte*> spare = SpareFor(item, i);
    if (!spare.ok()) return spare.status();
    sources.push_back({SliceReader(request.inputs[i].views), *spare,
                       geometry.inputs[i].bytes / geometry.samples});
  }
  bool in_place = false;
  for (std::int64_t sample = 0; sample < geometry.samples;) {
    // As many as lie whole in each input; one where some input's next is cut.
    norm::Segment segment;
    segment.samples = geometry.samples - sample;
    segment.spatial = geometry.spatial;
    for (Source& source : sources) {
      const auto piece = static_cast<std::int64_t>(source.reader.Piece().size());
      segment.samples = std::clamp<std::int64_t>(piece / source.sample_bytes, 1, segment.samples);
    }
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::int64_t bytes = segment.samples * sources[i].sample_bytes;
      norm::SetInput(spec_, norm_->inputs()[i],
                     Take(sources[i], sample * sources[i].sample_bytes, bytes, in_place), bytes,
                     segment);
    }
    for (std::size_t i = 0; i < norm_->outputs().size(); ++i) {
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

// x is gathered where y goes, the residual where residual_out goes: each may take its input's
// place, and no input is read after that.
absl::StatusOr<std::byte*> CpuNormRun::SpareFor(CpuItem& item, std::size_t input) {
  const Geometry& geometry = item.request->geometry;
  const bool has_place = norm_->inputs()[input] == norm::SegmentInput::kX ||
                         norm_->inputs()[input] == norm::SegmentInput::kResidual;
  if (has_place && input < item.outputs.size()) return item.outputs[input];
  absl::StatusOr<Buffer> taken = resources().pool.Take(geometry.inputs[input].bytes);
  if (!taken.ok()) return taken.status();
  return item.gathered.emplace_back(*std::move(taken)).data();
}

// The source's next `bytes`: where they lie, or, if they are a sample that is cut, in its spare
// memory at offset `at`.
const std::byte* CpuNormRun::Take(Source& source, std::int64_t at, std::int64_t bytes,
                                  bool& in_place) {
  const ConstBytes piece = source.reader.Piece();
  if (static_cast<std::int64_t>(piece.size()) >= bytes) {
    source.reader.Skip(static_cast<std::size_t>(bytes));
    in_place = true;
    return piece.data();
  }
  std::byte* const to = source.spare + at;
  source.reader.Read(to, static_cast<std::size_t>(bytes));
  gathered_bytes_ += bytes;
  return to;
}

absl::Status CpuNormRun::Launch() {
  absl::Status status;
  if (!segments_.empty()) {
    status = FromKernel(resources().kernels.Normalize(SpecOf(spec_, channels_),
                                                      ParamsOf(params_, channels_),
                                                      segments_.data(), segments_.size()));
  }
  Forget();
  return status;
}

void CpuNormRun::Forget() {
  segments_.clear();
  gathered_bytes_ = 0;
}

}  // namespace

std::unique_ptr<CpuRun> CpuNorm::MakeRun(const CpuResources& resources) const {
  return std::make_unique<CpuNormRun>(resources);
}

}  // namespace normd
