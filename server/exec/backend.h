// The compute backend that `--device` names: its lanes and its state of each model.

#ifndef NORMD_SERVER_EXEC_BACKEND_H_
#define NORMD_SERVER_EXEC_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/page_locker.h"
#include "base/shared_device_memory.h"
#include "server/exec/lane.h"
#include "server/metrics/metrics.h"
#include "server/model/model.h"

namespace normd {

// A request that a device computes inline occupies a front end's thread until the device is done,
// so it must be small.
inline constexpr std::int64_t kMaxDeviceInlineBytes = std::int64_t{256} << 10;

// Default number of lanes per device that compute small batches concurrently: more take the cores
// from the threads that receive. Large batches want more lanes, because each is gathered by one
// thread.
inline constexpr int kDeviceSmallLanes = 4;

struct BackendOptions {
  std::string device = "auto";  // "auto", "cpu", "cuda", "cuda:0,1"
  // Batches computed at once; they share the threads. 0: one for every four threads, at least two,
  // so that one gathers and sends while the other computes.
  int cpu_lanes = 0;
  int cpu_threads = 0;                                // 0: every core that the process may use.
  std::int64_t pool_bytes = std::int64_t{256} << 20;  // Bytes kept for reuse; the rest is returned.

  // The largest request that a CUDA device's inline lanes compute; 0: none are made. Not less than
  // BatchQueueOptions::max_inline_bytes.
  std::int64_t max_inline_bytes = 0;
  // Batches in flight on each CUDA device.
  int device_lanes = 10;
  std::int64_t pinned_pool_bytes = std::int64_t{512} << 20;  // Host memory for responses.
  // Pinned memory of each device for its lanes' gathering; 0: depends on the number of devices.
  std::int64_t device_staging_bytes = 0;
  bool device_shared_memory = false;  // Whether clients may share memory of the devices.
  std::int64_t device_batch_bytes = std::int64_t{80} << 20;  // Tensors' bytes in one lane at once.
};

// Outlives the models that it prepared and the lanes that it made.
class Backend : public ModelBackend {
 public:
  // At least one. Called once.
  virtual std::vector<std::unique_ptr<Lane>> MakeLanes() = 0;
  // Lanes for requests that are computed on the thread that brings them (BatchQueue::RunInlineOn):
  // they complete everything within Execute and need no Flush. None if that does not pay. Called
  // once.
  virtual std::vector<std::unique_ptr<Lane>> MakeInlineLanes() { return {}; }
  // For BatchQueue::StageWith; null if it does not pay. Lives as long as the backend.
  virtual InputStager* stager() { return nullptr; }
  // The device memory that clients may share; null without devices. Lives as long as the backend.
  virtual SharedDeviceMemory* shared_device_memory() { return nullptr; }
  // Locks host pages for its devices; null without devices. Lives as long as the backend.
  virtual PageLocker* page_locker() { return nullptr; }
  virtual std::string Description() const = 0;  // For the log: "cpu, 16 threads, AVX3"
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_BACKEND_H_
