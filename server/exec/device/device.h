// The lanes' interface to an accelerator. It exists for the tests: DeviceLane, the pinned pool and
// the model state run over a fake device, with faults, on machines that have none. The real one is
// CudaDevice.
//
// Memory, streams and marks are owned by RAII objects that must go before their device.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/memory.h"

namespace normd::norm {
struct LinearNormParams;
struct LinearNormSegment;
struct LinearNormSpec;
struct NormParams;
struct NormSpec;
struct Segment;
}  // namespace normd::norm

namespace normd {

// The alignment of every tensor in a device's memory, in bytes.
inline constexpr std::size_t kDeviceAlignment = 256;
inline std::size_t AlignForDevice(std::size_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// A queue of asynchronous work on one device; work runs in the order in which it was enqueued. Used
// by one thread. Every enqueueing function returns before the work is done: its memory must live,
// and its source stay unchanged, until a later mark is reached or Wait returns.
class DeviceStream {
 public:
  using Mark = int;
  using Point = std::uint32_t;

  // Waits for the enqueued work.
  virtual ~DeviceStream() = default;

  virtual absl::Status CopyIn(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  // `host` may be pageable: the call then blocks until the copy is done.
  virtual absl::Status CopyOut(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  // `params` and the segments' pointers are addressable by the device: kDevice or kPinned memory.
  // For segments of more bytes than the stream was created for it may allocate device memory, after
  // waiting for the enqueued work; ResourceExhausted if there is none.
  virtual absl::Status Normalize(const norm::NormSpec& spec, const norm::NormParams& params,
                                 const norm::Segment* segments, std::size_t count) = 0;

  // The fused layer. Turns `params` in device memory into `prepared`, of Device::SizesOf;
  // spec.dtype is ignored.
  virtual absl::Status PrepareLinear(const norm::LinearNormSpec& spec,
                                     const norm::LinearNormParams& params,
                                     MutableBytes prepared) = 0;
  // `prepared` for spec.precision; `workspace` of Device::SizesOf, which no call that can overlap
  // uses. Segments as in Normalize.
  virtual absl::Status LinearNorm(const norm::LinearNormSpec& spec, ConstBytes prepared,
                                  const norm::LinearNormSegment* segments, std::size_t count,
                                  MutableBytes workspace) = 0;

  // Enqueues a point in time, for Await and Between. Marks are valid until ClearMarks, which
  // requires that they are reached.
  virtual absl::StatusOr<Mark> AddMark() = 0;
  // Work enqueued from now on begins after `mark` of `other`, a stream of the same device.
  virtual absl::Status Await(DeviceStream& other, Mark mark) = 0;
  // The time between two marks that have been reached.
  virtual Duration Between(Mark first, Mark second) = 0;
  virtual void ClearMarks() = 0;

  // Enqueues a point for which the host can wait at little cost; valid as long as the stream.
  virtual absl::StatusOr<Point> AddPoint() = 0;
  // Whether it has been reached. Very cheap.
  virtual bool IsReached(Point point) = 0;
  // Returns when it is reached, with the first error of the work enqueued before.
  virtual absl::Status WaitUntil(Point point) = 0;
  // Returns when no enqueued work runs any more, in any case, with the first error.
  virtual absl::Status Wait() = 0;
};

struct DeviceMemoryInfo {
  std::int64_t free_bytes = 0;
  std::int64_t total_bytes = 0;
};

// A fused layer's memory on a device, in bytes.
struct LinearSizes {
  std::size_t prepared = 0;   // Its weights and bias in the form of spec.precision.
  std::size_t workspace = 0;  // Enough for any batch.
};

// Thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;  // "cuda:0"
  virtual int ordinal() const = 0;              // As MemoryPlace numbers devices.
  virtual std::string description() const = 0;  // For the log: the product's name, its memory.

  // Allocates kDevice or kPinned memory, at start and at model load, never on the request path.
  // Aligned to kDeviceAlignment. ResourceExhausted, with the requested and the free amount.
  virtual absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes) = 0;
  // Likewise. Includes Normalize's memory for batches of up to `largest_launch_bytes`; 0: for
  // copies, and fused layers, which bring their own memory.
  virtual absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      std::size_t largest_launch_bytes) = 0;
  virtual absl::StatusOr<DeviceMemoryInfo> MemoryInfo() = 0;
  virtual LinearSizes SizesOf(const norm::LinearNormSpec& spec) const = 0;

  // False after an error from which this process cannot recover on this device: its lanes retire.
  virtual bool usable() const = 0;

  // Names the work of the calling thread for a profiler, until the matching EndRange.
  virtual void BeginRange(const char* /*name*/) {}
  virtual void EndRange() {}
};

class DeviceRange {
 public:
  DeviceRange(Device& device, const char* name) : device_(device) { device_.BeginRange(name); }
  ~DeviceRange() { device_.EndRange(); }
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

 private:
  Device& device_;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_H_
