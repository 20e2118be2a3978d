// The lane that computes on the host.

#ifndef NORMD_SERVER_EXEC_CPU_LANE_H_
#define NORMD_SERVER_EXEC_CPU_LANE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kernels/cpu/linear_norm.h"
#include "kernels/cpu/normalize.h"
#include "server/exec/buffer_pool.h"
#include "server/exec/lane.h"
#include "server/exec/slice_reader.h"
#include "server/metrics/metrics.h"

namespace normd {

// Completes each batch within Execute. What lies in whole samples in one piece is computed from
// where it is into the output; the samples that are cut are first copied into the output and
// computed there. So the host copies a tensor at most once on the way in, most rows not at all, and
// never on the way out. Of a fused layer, an input that does not lie in one piece is gathered as a
// whole: its second into the output, its first into memory of its own.
//
// A request whose memory cannot be had fails alone. Execute reports no error: the host does not
// fail as a device does.
class CpuLane final : public Lane {
 public:
  // All are borrowed and outlive the lane; `kernels` and `pool` are shared by the lanes.
  CpuLane(std::string name, const norm::cpu::Executor& kernels, BufferPool& pool,
          LaneMetrics& metrics, const Clock& clock);

  const std::string& name() const override { return name_; }
  const std::string& device() const override { return device_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;

 private:
  struct Work {
    std::unique_ptr<Request> request;
    Buffer output;
    Buffer gathered;  // x of a fused layer, if it had to be gathered.
  };
  // One batch's way through the kernels.
  struct Run {
    const norm::cpu::LinearNorm* layer = nullptr;  // Null: a norm.
    norm::DType dtype = norm::DType::kFloat32;
    norm::NormSpec spec;
    norm::NormParams params;
    ChannelRange channels{};          // Of all that waits in `segments_`.
    absl::Status status;              // The first error of a kernel; nothing is computed after it.
    std::int64_t gathered_bytes = 0;  // Of what waits in `segments_`.
    Duration compute_time{};
    TimePoint computed{};
  };

  absl::Status Prepare(std::unique_ptr<Request>& request, Run& run);
  absl::Status Place(Work& work, std::byte* out, Run& run);
  absl::Status PlaceLinear(Work& work, std::byte* out);
  void Select(const ChannelRange& channels, Run& run);
  void TakeInput(Request& request, std::byte* to, Run& run);
  void Gather(SliceReader& input, const Geometry& geometry, std::byte* to, Run& run);
  void Compute(Run& run);

  const std::string name_;
  const std::string device_ = "cpu";
  const norm::cpu::Executor& kernels_;
  const std::int64_t gather_bytes_;
  BufferPool& pool_;
  LaneMetrics& metrics_;
  const Clock& clock_;
  // Of the batch in work; members so that their memory is reused.
  std::vector<Work> work_;
  std::vector<norm::Segment> segments_;
  std::vector<norm::LinearNormSegment> linear_segments_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_LANE_H_
