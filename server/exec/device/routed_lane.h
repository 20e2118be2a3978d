// Several devices, and requests that name memory of one of them: a batch may hold requests of any,
// and the lane that takes it lets each be computed on the device of its tensors.

#ifndef NORMD_SERVER_EXEC_DEVICE_ROUTED_LANE_H_
#define NORMD_SERVER_EXEC_DEVICE_ROUTED_LANE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/exec/lane.h"

namespace normd {

// Lanes of one device without threads of their own, for batches from lanes of other devices.
// Thread-safe.
class LanePool {
 public:
  explicit LanePool(std::vector<std::unique_ptr<Lane>> lanes);

  // Waits for a free lane and computes the batch on it. A failed lane is not used again; when none
  // is left, the requests end with INTERNAL, so that they are tried elsewhere.
  void Execute(std::unique_ptr<Batch> batch);

 private:
  const std::vector<std::unique_ptr<Lane>> lanes_;
  Mutex mutex_;
  CondVar freed_;
  std::vector<Lane*> free_ ABSL_GUARDED_BY(mutex_);
  std::size_t working_ ABSL_GUARDED_BY(mutex_);
};

using LanePools = std::map<int, std::unique_ptr<LanePool>>;  // By device.

// A lane of one device that passes work on other devices to their pools. A fault of another device
// only ends the requests there.
class RoutedLane final : public Lane {
 public:
  // `pools` outlive it.
  RoutedLane(std::unique_ptr<Lane> own, const LanePools& pools);

  const std::string& name() const override { return own_->name(); }
  const std::string& device() const override { return own_->device(); }
  MemoryAccess access() const override { return own_->access(); }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;
  void Flush() override { own_->Flush(); }

 private:
  const std::unique_ptr<Lane> own_;
  const LanePools& pools_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_ROUTED_LANE_H_
