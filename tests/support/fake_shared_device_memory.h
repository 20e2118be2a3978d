// Memory that other processes share with fake devices, in host memory. Each opening by the server
// has an address of its own, which is gone after the last Close: a use after it ends the test.

#ifndef NORMD_TESTS_SUPPORT_FAKE_SHARED_DEVICE_MEMORY_H_
#define NORMD_TESTS_SUPPORT_FAKE_SHARED_DEVICE_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/shared_device_memory.h"

namespace normd::testing {

// Thread-safe.
class FakeSharedDeviceMemory final : public SharedDeviceMemory {
 public:
  // The server uses all of these devices but the last.
  explicit FakeSharedDeviceMemory(int devices) : devices_(devices) {}
  ~FakeSharedDeviceMemory() override;

  // A client's view of memory that it has taken.
  struct Allocation {
    std::string handle;
    std::byte* data = nullptr;
    template <typename T>
    T* As(std::size_t offset = 0) const {
      return reinterpret_cast<T*>(data + offset);
    }
  };
  Allocation Allocate(int device, std::size_t bytes);
  // From now on nothing can open it; open addresses stay.
  void EndClient(const Allocation& allocation);

  int opened() const;  // Addresses that the server has open, by as many calls.
  int opens() const;   // Calls so far that succeeded.

  int device_count() const override { return devices_; }
  bool Uses(int device) const override { return device < devices_ - 1; }
  absl::StatusOr<std::byte*> Open(int device, ConstBytes handle) override;
  absl::StatusOr<DeviceAllocation> AllocationOf(int device, const std::byte* address) override;
  void Close(int device, std::byte* address) override;

 private:
  struct Memory {
    int device = 0;
    std::size_t bytes = 0;
    Descriptor file;
    std::byte* of_client = nullptr;
    std::byte* of_server = nullptr;  // While it is open.
    int opened = 0;
    bool client_lives = true;
  };

  const int devices_;
  mutable Mutex mutex_;
  std::map<std::string, Memory> memories_ ABSL_GUARDED_BY(mutex_);  // By handle.
  int opens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SUPPORT_FAKE_SHARED_DEVICE_MEMORY_H_
