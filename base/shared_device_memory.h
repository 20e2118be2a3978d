// Memory of a device that another process shares by a handle: the driver's few calls, behind a seam
// so that everything above them is tested without a device.

#ifndef NORMD_BASE_SHARED_DEVICE_MEMORY_H_
#define NORMD_BASE_SHARED_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace normd {

// Of a cudaIpcMemHandle_t.
inline constexpr std::size_t kDeviceHandleBytes = 64;

// Where an opened handle's memory lies.
struct DeviceAllocation {
  int device = 0;                    // As MemoryPlace counts devices.
  const std::byte* begin = nullptr;  // Of the whole allocation,
  std::int64_t bytes = 0;            // and its size.
};

// Thread-safe. The calls take up to a millisecond and may wait for the device; none is on the way
// of a request.
class SharedDeviceMemory {
 public:
  virtual ~SharedDeviceMemory() = default;

  // How many devices there are, from 0 on, and whether the server computes on this one.
  virtual int device_count() const = 0;
  virtual bool Uses(int device) const = 0;

  // The address of another process's memory, by its handle, for the kernels of `device`.
  // InvalidArgument for a handle of nothing, of a process that has ended before, or of this
  // process. The memory stays valid until Close, also when the other process ends. One handle may
  // be opened several times, each of which is closed.
  virtual absl::StatusOr<std::byte*> Open(int device, ConstBytes handle) = 0;
  // The allocation that an opened address lies in.
  virtual absl::StatusOr<DeviceAllocation> AllocationOf(int device, const std::byte* address) = 0;
  virtual void Close(int device, std::byte* address) = 0;
};

// What was opened, until the end of this.
class OpenedDeviceMemory {
 public:
  OpenedDeviceMemory(SharedDeviceMemory& driver, int device, std::byte* data)
      : driver_(driver), device_(device), data_(data) {}
  ~OpenedDeviceMemory() { driver_.Close(device_, data_); }
  OpenedDeviceMemory(const OpenedDeviceMemory&) = delete;
  OpenedDeviceMemory& operator=(const OpenedDeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  int device() const { return device_; }

 private:
  SharedDeviceMemory& driver_;
  const int device_;
  std::byte* const data_;
};

}  // namespace normd

#endif  // NORMD_BASE_SHARED_DEVICE_MEMORY_H_
