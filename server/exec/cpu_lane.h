// The lane that computes on the host.

#ifndef NORMD_SERVER_EXEC_CPU_LANE_H_
#define NORMD_SERVER_EXEC_CPU_LANE_H_

#include <memory>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "base/buffer_pool.h"
#include "base/clock.h"
#include "server/exec/cpu_program.h"
#include "server/exec/lane.h"
#include "server/metrics/metrics.h"

namespace normd {

// Completes each batch within Execute; its models' state is a CpuProgram, which does the work. A
// request without memory for its tensors fails alone, and a batch without memory for the lane's
// work as a whole. Execute returns no error: the host does not fail like a device.
class CpuLane final : public Lane {
 public:
  // All are borrowed and outlive the lane; `kernels` and `pool` are shared by the lanes.
  CpuLane(std::string name, const norm::cpu::Executor& kernels, BufferPool& pool,
          LaneMetrics& metrics, const Clock& clock);

  const std::string& name() const override { return name_; }
  const std::string& device() const override { return device_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;

 private:
  CpuRun* RunFor(const CpuProgram& program);  // Null without memory for one.
  absl::Status Prepare(std::unique_ptr<Request>& request, CpuRun& run);
  absl::Status TakeOutputs(const Request& request, CpuItem& item);

  const std::string name_;
  const std::string device_ = "cpu";
  const CpuResources resources_;
  LaneMetrics& metrics_;
  // For the batch in work; a member so that its memory is reused.
  std::vector<CpuItem> items_;
  std::vector<std::pair<std::type_index, std::unique_ptr<CpuRun>>> runs_;  // By class of program.
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CPU_LANE_H_
