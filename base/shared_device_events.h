// Events of devices that another process shares by a handle: the driver's few calls, behind a seam
// so that everything above them is tested without a device.

#ifndef NORMD_BASE_SHARED_DEVICE_EVENTS_H_
#define NORMD_BASE_SHARED_DEVICE_EVENTS_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace normd {

// Of a cudaIpcEventHandle_t.
inline constexpr std::size_t kEventHandleBytes = 64;

// An event that was opened, until the end of this. Not thread-safe.
class SharedDeviceEvent {
 public:
  virtual ~SharedDeviceEvent() = default;

  // Whether the work is done behind which its process has recorded it last; true if it never has.
  // Stays false when that process ends before the work does. Does not wait. Internal when the
  // device fails.
  virtual absl::StatusOr<bool> Reached() = 0;
};

// Thread-safe. The calls may take up to a millisecond: they are for a thread for which few wait.
class SharedDeviceEvents {
 public:
  virtual ~SharedDeviceEvents() = default;

  // `handle` has kEventHandleBytes and comes from somebody who is trusted: a driver may not look at
  // it, and end the process for one that is wrong. InvalidArgument for a handle that it refuses, as
  // that of this process; ResourceExhausted when it has no room. The event lives no longer than
  // this.
  virtual absl::StatusOr<std::unique_ptr<SharedDeviceEvent>> Open(int device,
                                                                  ConstBytes handle) = 0;
};

}  // namespace normd

#endif  // NORMD_BASE_SHARED_DEVICE_EVENTS_H_
