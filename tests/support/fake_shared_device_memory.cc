#include "tests/support/fake_shared_device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd::testing {
namespace {

std::byte* MapShared(int file, std::size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(data);
}

}  // namespace

FakeSharedDeviceMemory::~FakeSharedDeviceMemory() {
  MutexLock lock(mutex_);
  for (auto& [handle, memory] : memories_) {
    munmap(memory.of_client, memory.bytes);
    if (memory.of_server != nullptr) munmap(memory.of_server, memory.bytes);
  }
}

FakeSharedDeviceMemory::Allocation FakeSharedDeviceMemory::Allocate(int device, std::size_t bytes) {
  MutexLock lock(mutex_);
  Memory memory;
  memory.device = device;
  memory.bytes = bytes;
  memory.file = Descriptor(memfd_create("fake_device_memory", MFD_CLOEXEC));
  if (ftruncate(memory.file.get(), static_cast<off_t>(bytes)) != 0) std::abort();
  memory.of_client = MapShared(memory.file.get(), bytes);
  Allocation allocation;
  allocation.handle = absl::StrCat("memory ", memories_.size());
  allocation.handle.resize(kDeviceHandleBytes, '.');
  allocation.data = memory.of_client;
  memories_.emplace(allocation.handle, std::move(memory));
  return allocation;
}

void FakeSharedDeviceMemory::EndClient(const Allocation& allocation) {
  MutexLock lock(mutex_);
  memories_.at(allocation.handle).client_lives = false;
}

int FakeSharedDeviceMemory::opened() const {
  MutexLock lock(mutex_);
  int opened = 0;
  for (const auto& [handle, memory] : memories_) opened += memory.opened;
  return opened;
}

int FakeSharedDeviceMemory::opens() const {
  MutexLock lock(mutex_);
  return opens_;
}

absl::StatusOr<std::byte*> FakeSharedDeviceMemory::Open(int /*device*/, ConstBytes handle) {
  MutexLock lock(mutex_);
  const auto found =
      memories_.find(std::string(reinterpret_cast<const char*>(handle.data()), handle.size()));
  if (found == memories_.end() || !found->second.client_lives) {
    return absl::InvalidArgumentError("raw_handle: not one of a living process");
  }
  Memory& memory = found->second;
  if (memory.opened++ == 0) memory.of_server = MapShared(memory.file.get(), memory.bytes);
  ++opens_;
  return memory.of_server;
}

absl::StatusOr<DeviceAllocation> FakeSharedDeviceMemory::AllocationOf(int /*device*/,
                                                                      const std::byte* address) {
  MutexLock lock(mutex_);
  for (const auto& [handle, memory] : memories_) {
    if (memory.of_server != address) continue;
    return DeviceAllocation{memory.device, address, static_cast<std::int64_t>(memory.bytes)};
  }
  return absl::InvalidArgumentError("raw_handle: not open");
}

void FakeSharedDeviceMemory::Close(int /*device*/, std::byte* address) {
  MutexLock lock(mutex_);
  for (auto& [handle, memory] : memories_) {
    if (memory.of_server != address) continue;
    if (--memory.opened > 0) return;
    munmap(std::exchange(memory.of_server, nullptr), memory.bytes);
    return;
  }
  std::abort();  // Closing memory that is not open is an error.
}

}  // namespace normd::testing
