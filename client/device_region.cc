#include "client/device_region.h"

#include <cstdint>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"

namespace normd::client {
namespace {

// Unique among the server's clients.
std::string NewName() {
  absl::BitGen random;
  return absl::StrCat("cuda-", absl::Hex(absl::Uniform<std::uint64_t>(random), absl::kZeroPad16));
}

std::byte* PointerTo(DeviceAddress address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

DeviceAddress AddressOf(const std::byte* pointer) {
  return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceRegion>> DeviceRegion::Register(std::shared_ptr<Client> client,
                                                                     const DeviceMemory& memory) {
  std::string name = NewName();
  absl::Status status = client->RegisterDeviceMemory(
      {name, memory.handle, memory.device, static_cast<std::uint64_t>(memory.bytes)});
  if (!status.ok()) return status;
  return std::shared_ptr<DeviceRegion>(
      new DeviceRegion(std::move(name), std::move(client), memory));
}

absl::StatusOr<std::shared_ptr<DeviceRegion>> DeviceRegion::Allocate(std::shared_ptr<Client> client,
                                                                     int device,
                                                                     std::size_t bytes) {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Load();
  if (!driver.ok()) return driver.status();
  const absl::StatusOr<DeviceAddress> address = (*driver)->Allocate(device, bytes);
  if (!address.ok()) return address.status();
  absl::Cleanup free = [&] { (*driver)->Free(device, *address); };
  if (absl::Status status = (*driver)->Fill(device, *address, 0, bytes); !status.ok()) {
    return status;
  }
  absl::StatusOr<std::string> handle = (*driver)->HandleOf(device, *address);
  if (!handle.ok()) return handle.status();
  auto region = Register(std::move(client), {*std::move(handle), device, *address, bytes});
  if (region.ok()) {
    (*region)->owned_ = true;
    std::move(free).Cancel();
  }
  return region;
}

DeviceRegion::DeviceRegion(std::string name, std::shared_ptr<Client> client,
                           const DeviceMemory& memory)
    : Region(std::move(name), PointerTo(memory.address), memory.bytes),
      client_(std::move(client)),
      memory_(memory) {}

DeviceRegion::~DeviceRegion() {
  // If the server is gone, so is its mapping.
  static_cast<void>(client_->UnregisterDeviceMemory(name()));
  if (!owned_) return;
  if (const auto driver = CudaDriver::Load(); driver.ok()) {
    (*driver)->Free(memory_.device, memory_.address);
  }
}

absl::Status DeviceRegion::CopyIn(std::byte* to, absl::Span<const std::byte> from) const {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Load();
  return driver.ok() ? (*driver)->CopyIn(memory_.device, AddressOf(to), from) : driver.status();
}

absl::Status DeviceRegion::CopyOut(absl::Span<std::byte> to, const std::byte* from) const {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Load();
  return driver.ok() ? (*driver)->CopyOut(memory_.device, to, AddressOf(from)) : driver.status();
}

}  // namespace normd::client
