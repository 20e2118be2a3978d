// Device memory that another process shares by a handle. The interface lets everything above the
// driver be tested without a device.

#ifndef NORMD_BASE_SHARED_DEVICE_MEMORY_H_
#define NORMD_BASE_SHARED_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace normd {

// The size of a cudaIpcMemHandle_t.
inline constexpr std::size_t kDeviceHandleBytes = 64;

// Where the memory of an opened handle lies.
struct DeviceAllocation {
  int device = 0;                    // Numbered as in MemoryPlace.
  const std::byte* begin = nullptr;  // The beginning of the whole allocation.
  std::int64_t bytes = 0;            // The size of the whole allocation.
};

// Thread-safe. The calls take up to a millisecond and may wait for the device; no request waits for
// them.
class SharedDeviceMemory {
 public:
  virtual ~SharedDeviceMemory() = default;

  // The number of devices, counted from 0, and whether the server computes on this one.
  virtual int device_count() const = 0;
  virtual bool Uses(int device) const = 0;

  // Maps another process's memory by its handle and returns the address for the kernels of
  // `device`. InvalidArgument for an invalid handle, one of a process that has ended, or one of
  // this process. The memory stays valid until Close, even when the other process ends. One handle
  // may be opened several times; each opening is closed.
  virtual absl::StatusOr<std::byte*> Open(int device, ConstBytes handle) = 0;
  // The allocation that an opened address lies in.
  virtual absl::StatusOr<DeviceAllocation> AllocationOf(int device, const std::byte* address) = 0;
  virtual void Close(int device, std::byte* address) = 0;
};

// An opened handle, closed by the destructor.
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
