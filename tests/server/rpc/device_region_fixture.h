// A server of two fake devices, beside a third that it does not use, and a client with memory
// there.

#ifndef NORMD_TESTS_SERVER_RPC_DEVICE_REGION_FIXTURE_H_
#define NORMD_TESTS_SERVER_RPC_DEVICE_REGION_FIXTURE_H_

#include <cstring>
#include <string>

#include "tests/server/rpc/region_fixture.h"
#include "tests/support/fake_shared_device_memory.h"

namespace normd::testing {

// Before the server, so that it outlives it.
struct WithDeviceMemory {
  FakeSharedDeviceMemory memory_{3};
};

class DeviceRegionFixture : public WithDeviceMemory, public RegionFixture {
 protected:
  DeviceRegionFixture() : DeviceRegionFixture(WithSharedMemory()) {}
  explicit DeviceRegionFixture(TestServerOptions options)
      : RegionFixture(WithDevices(std::move(options), *this)) {}

  static TestServerOptions WithDevices(TestServerOptions options, WithDeviceMemory& shared) {
    options.fake_devices = 2;
    options.device_memory = &shared.memory_;
    return options;
  }

  grpc::Status RegisterDevice(const std::string& handle, std::int64_t device, std::uint64_t bytes,
                              const std::string& name = "r", char identity = ' ') {
    inference::CudaSharedMemoryRegisterRequest request;
    request.set_name(name);
    request.set_raw_handle(handle);
    request.set_device_id(device);
    request.set_byte_size(bytes);
    inference::CudaSharedMemoryRegisterResponse unused;
    return Call(&Inference::Stub::CudaSharedMemoryRegister, request, &unused, identity);
  }
  void RegisterOk(const FakeSharedDeviceMemory::Allocation& allocation, std::int64_t device,
                  const std::string& name = "r", std::uint64_t bytes = kFileBytes) {
    const grpc::Status status = RegisterDevice(allocation.handle, device, bytes, name);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  grpc::Status UnregisterDevice(const std::string& name, const char* in_use = nullptr,
                                char identity = ' ') {
    inference::CudaSharedMemoryUnregisterRequest request;
    request.set_name(name);
    inference::CudaSharedMemoryUnregisterResponse unused;
    return Call(&Inference::Stub::CudaSharedMemoryUnregister, request, &unused, identity, in_use);
  }
  grpc::Status DeviceStatus(const std::string& name,
                            inference::CudaSharedMemoryStatusResponse* response,
                            char identity = ' ') {
    inference::CudaSharedMemoryStatusRequest request;
    request.set_name(name);
    return Call(&Inference::Stub::CudaSharedMemoryStatus, request, response, identity);
  }
  // Memory on the device with the input at its beginning.
  FakeSharedDeviceMemory::Allocation WithInput(int device) {
    const auto allocation = memory_.Allocate(device, kFileBytes);
    const v1::NormalizeRequest plain = Plain();
    const std::string& x = plain.inputs(0).data();
    std::memcpy(allocation.data, x.data(), x.size());
    return allocation;
  }
  static std::string OutputAt(const FakeSharedDeviceMemory::Allocation& allocation,
                              std::size_t offset) {
    return std::string(allocation.As<char>(offset), kTensorBytes);
  }
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_DEVICE_REGION_FIXTURE_H_
