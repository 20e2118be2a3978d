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
  void TakeInput(Request& request, std::byte* to);
  void Gather(SliceReader& input, const Geometry& geometry, std::byte* to);

  const std::int64_t gather_bytes_;
  // Of the batch in work.
  norm::NormSpec spec_;
  norm::NormParams params_;
  ChannelRange channels_{};          // Of all that waits in `segments_`.
  std::int64_t gathered_bytes_ = 0;  // Of what waits there.
  std::vector<norm::Segment> segments_;
};

void CpuNormRun::Start(const BackendState& state, norm::DType dtype) {
  const NormProgram& program = static_cast<const CpuNorm&>(state).program();
  spec_ = program.Spec(dtype);
  params_ = program.params;
  channels_ = {};
}

absl::Status CpuNormRun::Place(CpuItem& item) {
  Request& request = *item.request;
  const Geometry& geometry = request.geometry;
  Select(geometry.channels);
  const std::byte* x = InPlaceInput(request, 0);
  if (x != nullptr || geometry.inputs[0].bytes == 0) {
    segments_.push_back({x, item.outputs[0], geometry.samples, geometry.spatial});
  } else {
    TakeInput(request, item.outputs[0]);
  }
  return absl::OkStatus();
}

// What covers other channels needs a call of its own.
void CpuNormRun::Select(const ChannelRange& channels) {
  if (channels == channels_) return;
  if (!segments_.empty()) Compute();
  channels_ = channels;
}

// A sample is computed on its own, so neither the cuts nor where it lies change its bits.
void CpuNormRun::TakeInput(Request& request, std::byte* to) {
  const Geometry& geometry = request.geometry;
  const std::int64_t sample_bytes = geometry.inputs[0].bytes / geometry.samples;
  SliceReader input(request.inputs.front().views);
  bool in_place = false;
  for (std::int64_t left = geometry.samples; left > 0;) {
    const ConstBytes piece = input.Piece();
    std::int64_t samples = std::min(static_cast<std::int64_t>(piece.size()) / sample_bytes, left);
    if (samples > 0) {
      segments_.push_back({piece.data(), to, samples, geometry.spatial});
      input.Skip(static_cast<std::size_t>(samples * sample_bytes));
      in_place = true;
    } else {
      samples = 1;
      Gather(input, geometry, to);
    }
    to += samples * sample_bytes;
    left -= samples;
  }
  if (!in_place) request.ReleaseInputs();
}

// One sample.
void CpuNormRun::Gather(SliceReader& input, const Geometry& geometry, std::byte* to) {
  const std::int64_t bytes = geometry.inputs[0].bytes / geometry.samples;
  input.Read(to, static_cast<std::size_t>(bytes));
  segments_.push_back({to, to, 1, geometry.spatial});
  gathered_bytes_ += bytes;
  if (gathered_bytes_ >= gather_bytes_) Compute();
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
