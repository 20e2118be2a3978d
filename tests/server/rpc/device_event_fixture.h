// A server that takes events of its two fake devices' clients, and a client with a region there.

#ifndef NORMD_TESTS_SERVER_RPC_DEVICE_EVENT_FIXTURE_H_
#define NORMD_TESTS_SERVER_RPC_DEVICE_EVENT_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "tests/server/rpc/device_region_fixture.h"

namespace normd::testing {

class DeviceEventFixture : public DeviceRegionFixture {
 protected:
  static TestServerOptions WithLimits() {
    TestServerOptions options = WithSharedMemory();
    options.event_limits.max_requests = 6;
    options.event_limits.max_holder_requests = 4;
    return options;
  }
  explicit DeviceEventFixture(TestServerOptions options = WithLimits())
      : DeviceRegionFixture(std::move(options)) {}

  static void SetEvent(const std::string& handle, inference::ModelInferRequest& request) {
    (*request.mutable_parameters())["event_handle"].set_string_param(absl::Base64Escape(handle));
  }
  static v1::NormalizeRequest Behind(const std::string& handle, const char* region = "r") {
    v1::NormalizeRequest request = ToNormalize(InRegions({region}, {region, kY}));
    request.set_event_handle(handle);
    return request;
  }
  static inference::ModelInferRequest InferBehind(const std::string& handle) {
    inference::ModelInferRequest request = InRegions({}, {"r", kY});
    SetEvent(handle, request);
    return request;
  }
  void WriteX() const {
    const v1::NormalizeRequest plain = Plain();
    std::memcpy(allocation_.data, plain.inputs(0).data().data(), kTensorBytes);
  }
  void WaitForWaiting(std::int64_t requests) {
    while (server_.event_waits().waiting_requests() != requests) std::this_thread::yield();
  }
  double Ended(const std::string& end) {
    return server_.Metric("normd_event_waits_total{end=\"" + end + "\"}");
  }

  FakeSharedDeviceMemory::Allocation allocation_ = memory_.Allocate(1, kFileBytes);  // Device 1's.
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_DEVICE_EVENT_FIXTURE_H_
