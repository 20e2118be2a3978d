// Tensors in memory of a device, in the service: same bits as in messages, on the device where they
// lie, beside requests of other ways.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "server/infer/infer_regions.h"
#include "tests/server/rpc/device_region_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

using DeviceRegionTest = DeviceRegionFixture;

TEST_F(DeviceRegionTest, TensorsOfEachDeviceHaveTheBitsOfMessages) {
  const std::string expected = Expected(Plain());
  for (const int device : {0, 1}) {
    // Whichever lane takes the request, of either protocol.
    for (int i = 0; i < 20; ++i) {
      const auto allocation = WithInput(device);
      RegisterOk(allocation, device);
      inference::ModelInferResponse response;
      const auto request = InRegions({}, {"r", kY});
      ASSERT_TRUE(Infer(request, &response).ok());
      EXPECT_EQ(OutputAt(allocation, kY), expected);
      EXPECT_EQ(response.outputs(0).parameters().at("shared_memory_region").string_param(), "r");
      EXPECT_EQ(response.outputs(0).parameters().at("shared_memory_byte_size").int64_param(),
                kTensorBytes);
      std::memset(allocation.data + kY, 0, kTensorBytes);
      ASSERT_TRUE(Normalize(ToNormalize(request)).ok());
      EXPECT_EQ(OutputAt(allocation, kY), expected);
      ASSERT_TRUE(UnregisterDevice("r").ok());
    }
  }
  EXPECT_EQ(server_.Metric("normd_shared_tensor_bytes_total{direction=\"in\",memory=\"device\"}"),
            80 * kTensorBytes);
  EXPECT_EQ(server_.Metric("normd_shared_tensor_bytes_total{direction=\"out\",memory=\"host\"}"),
            0);
  EXPECT_EQ(memory_.opened(), 0);
}

// x in one place and y in another: memory of a device, of a file, and of messages.
TEST_F(DeviceRegionTest, EveryMixOfPlanesHasTheSameBits) {
  const std::string expected = Expected(Plain());
  const auto allocation = WithInput(1);
  RegisterOk(allocation, 1, "device");
  WriteInput(file_, Plain());
  RegionFixture::RegisterOk(file_, kFileBytes, "host");
  ASSERT_TRUE(Infer(InRegions({"device"}, {"host", kY})).ok());
  EXPECT_EQ(OutputIn(file_, kY), expected);
  ASSERT_TRUE(Infer(InRegions({"host"}, {"device", kY})).ok());
  EXPECT_EQ(OutputAt(allocation, kY), expected);

  inference::ModelInferRequest from_device = InRegions({"device"}, {});
  from_device.clear_outputs();
  inference::ModelInferResponse response;
  ASSERT_TRUE(Infer(from_device, &response).ok());
  EXPECT_EQ(response.raw_output_contents(0), expected);

  std::memset(allocation.data + kY, 0, kTensorBytes);
  inference::ModelInferRequest to_device = ToInfer(Plain());
  auto& y = *to_device.add_outputs();
  y.set_name("y");
  Place({"device", kY}, &y);
  ASSERT_TRUE(Infer(to_device).ok());
  EXPECT_EQ(OutputAt(allocation, kY), expected);
}

// While the lanes stand still, requests of every way gather, so that batches hold several kinds.
TEST_F(DeviceRegionTest, RequestsOfAllWaysWaitTogetherAndAreRight) {
  const std::string expected = Expected(Plain());
  const auto zero = WithInput(0);
  const auto one = WithInput(1);
  RegisterOk(zero, 0, "zero");
  RegisterOk(one, 1, "one");
  WriteInput(file_, Plain());
  RegionFixture::RegisterOk(file_, kFileBytes, "host");
  server_.gate().Close();
  std::vector<std::thread> calls;
  for (int lanes = 1; lanes <= 2; ++lanes) {
    calls.emplace_back([this] { EXPECT_TRUE(Infer(ToInfer(Plain())).ok()); });
    server_.gate().WaitForStalled(lanes);
  }
  for (int i = 0; i < 6; ++i) {
    for (const char* region : {"zero", "one", "host"}) {
      calls.emplace_back([this, region, i] {
        // Simultaneous requests of a region read one x and write the same y.
        EXPECT_TRUE(Infer(InRegions({region}, {region, kY})).ok()) << region << i;
      });
    }
    calls.emplace_back([this, &expected] {
      inference::ModelInferResponse response;
      EXPECT_TRUE(Infer(ToInfer(Plain()), &response).ok());
      EXPECT_EQ(response.raw_output_contents(0), expected);
    });
  }
  WaitUntil([&] { return server_.queue().waiting_requests() >= 24; });
  server_.gate().Open();
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(OutputAt(zero, kY), expected);
  EXPECT_EQ(OutputAt(one, kY), expected);
  EXPECT_EQ(OutputIn(file_, kY), expected);
}

TEST_F(DeviceRegionTest, AreAmongTheExtensions) {
  grpc::ClientContext context;
  inference::ServerMetadataResponse metadata;
  ASSERT_TRUE(stub_->ServerMetadata(&context, {}, &metadata).ok());
  EXPECT_THAT(metadata.extensions(), ::testing::Contains("cuda_shared_memory"));
}

TEST_F(DeviceRegionTest, TheListHasTheirDevice) {
  RegisterOk(WithInput(1), 1, "one");
  const v1::ListSharedMemoryResponse list = List();
  ASSERT_EQ(list.regions_size(), 1);
  EXPECT_EQ(list.regions(0).kind(), v1::SharedMemoryInfo::DEVICE);
  EXPECT_EQ(list.regions(0).name(), "one");
  EXPECT_EQ(list.regions(0).device(), 1);
  EXPECT_EQ(list.regions(0).byte_size(), std::int64_t{kFileBytes});
  EXPECT_TRUE(list.regions(0).writable());
}

TEST_F(DeviceRegionTest, ALargeTensorOnADeviceIsBoundByItsRegionAlone) {
  // More than any lane's device memory, and than --max_request_bytes of this server.
  constexpr std::int64_t kBytes = std::int64_t{64} * 32768 * 4;
  const auto allocation = memory_.Allocate(1, 2 * kBytes);
  for (std::int64_t i = 0; i < kBytes / 4; ++i) {
    allocation.As<float>()[i] = static_cast<float>(i % 1013);
  }
  RegisterOk(allocation, 1, "r", 2 * kBytes);
  inference::ModelInferRequest request = InRegions({"r", 0, kBytes}, {"r", kBytes, kBytes});
  request.mutable_inputs(0)->clear_shape();
  for (const std::int64_t dim : {1, 64, 32768}) request.mutable_inputs(0)->add_shape(dim);
  const grpc::Status status = Infer(request);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const float* y = allocation.As<float>(kBytes);
  EXPECT_NE(y[0], 0);
  EXPECT_NE(y[kBytes / 4 - 1], 0);
}

struct OnTheCpu : RegionFixture {};

TEST_F(OnTheCpu, AServerWithoutDevicesSaysSo) {
  inference::CudaSharedMemoryRegisterRequest request;
  request.set_name("r");
  request.set_raw_handle(std::string(kDeviceHandleBytes, 'h'));
  request.set_byte_size(1);
  inference::CudaSharedMemoryRegisterResponse unused;
  const grpc::Status status =
      Call(&Inference::Stub::CudaSharedMemoryRegister, request, &unused, ' ');
  EXPECT_EQ(status.error_code(), Code::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--shared_memory_cuda"));

  SteadyClock clock;
  Metrics metrics;
  RegionRegistryOptions options;
  options.device = true;
  RegionRegistry registry(options, metrics.ForRegions(), clock);
  const absl::Status refused = RegisterRegion(&registry, "", request);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("this server has no device"));
}

}  // namespace
}  // namespace normd::testing
