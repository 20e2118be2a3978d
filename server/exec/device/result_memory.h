// The memory of a lane's results.

#ifndef NORMD_SERVER_EXEC_DEVICE_RESULT_MEMORY_H_
#define NORMD_SERVER_EXEC_DEVICE_RESULT_MEMORY_H_

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/exec/device/device_wave.h"
#include "server/exec/device/pinned_pool.h"

namespace normd {

// Results go to pinned blocks, with which the responses leave. While these are scarce, a result is
// only lent one, and leaves with ordinary memory; when there are none, the device copies to
// ordinary memory itself. So no request waits for a client that does not read. Used by one thread.
class ResultMemory {
 public:
  // Both outlive it.
  ResultMemory(PinnedPool& pool, const Clock& clock) : pool_(pool), clock_(clock) {}

  // Gives memory to every output for which the request names none. A request for which there is
  // none fails with ResourceExhausted, and leaves the wave.
  void Take(const DeviceProgram& program, DeviceWave& wave);
  // The buffers of a computed request's response. The time of copies counts as Stage::kCopyOut.
  OutputBuffers HandOut(DeviceWave::Item& item);

 private:
  absl::Status TakeOutput(const DeviceProgram& program, DeviceWave::Item& item, std::size_t index);
  std::optional<Buffer> TakeBlock(const DeviceProgram& program, Request& request,
                                  std::size_t index);
  void ReturnLent(Request& request, DeviceWave::Output& output);

  PinnedPool& pool_;
  const Clock& clock_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_RESULT_MEMORY_H_
