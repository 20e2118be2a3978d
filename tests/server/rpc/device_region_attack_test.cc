// What a client may do with memory of a device to harm the server or others: a test for each attack
// of docs/shared_memory.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/server/rpc/device_region_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

class DeviceRegionAttackTest : public DeviceRegionFixture {
 protected:
  using DeviceRegionFixture::DeviceRegionFixture;

  void ExpectNothingIsLeft() {
    EXPECT_EQ(memory_.opened(), 0);
    EXPECT_EQ(server_.Metric("normd_shared_regions{kind=\"device\"}"), 0);
    EXPECT_EQ(server_.Metric("normd_shared_region_bytes{kind=\"device\"}"), 0);
  }
};

TEST_F(DeviceRegionAttackTest, GarbageHandle) {
  std::mt19937_64 random{std::random_device{}()};
  for (int i = 0; i < 1000; ++i) {
    std::string handle(kDeviceHandleBytes, '\0');
    for (char& c : handle) c = static_cast<char>(random());
    const grpc::Status status = RegisterDevice(handle, 0, 4096);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT) << status.error_message();
  }
  for (const std::size_t bytes :
       {std::size_t{0}, kDeviceHandleBytes - 1, kDeviceHandleBytes + 1, std::size_t{4000}}) {
    const grpc::Status status = RegisterDevice(std::string(bytes, 'h'), 0, 4096);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(),
                HasSubstr(absl::StrCat("raw_handle: ", bytes, " bytes, wanted 64")));
  }
  EXPECT_EQ(server_.Metric("normd_shared_regions_refused_total{reason=\"device\"}"), 1004);
  ExpectNothingIsLeft();
}

TEST_F(DeviceRegionAttackTest, HandleOfADeadProcess) {
  const auto allocation = WithInput(0);
  memory_.EndClient(allocation);
  EXPECT_EQ(RegisterDevice(allocation.handle, 0, kFileBytes).error_code(), Code::INVALID_ARGUMENT);
  // What was opened before stays until it is unregistered.
  const auto other = WithInput(0);
  RegisterOk(other, 0);
  memory_.EndClient(other);
  EXPECT_TRUE(Infer(InRegions({}, {"r", kY})).ok());
  EXPECT_EQ(OutputAt(other, kY), Expected(Plain()));
  EXPECT_TRUE(UnregisterDevice("r").ok());
  ExpectNothingIsLeft();
}

TEST_F(DeviceRegionAttackTest, DeviceThatIsNotThere) {
  const auto allocation = WithInput(0);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t device :
       {std::int64_t{-1}, std::int64_t{3}, std::int64_t{1} << 32, kMost, -kMost - 1}) {
    const grpc::Status status = RegisterDevice(allocation.handle, device, kFileBytes);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat("device_id: ", device, ", wanted")));
  }
  // There, but not one that the server computes on.
  const auto unused = WithInput(2);
  const grpc::Status status = RegisterDevice(unused.handle, 2, kFileBytes);
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("--device"));
  ExpectNothingIsLeft();
}

TEST_F(DeviceRegionAttackTest, MemoryOfAnotherDeviceThanItSays) {
  const auto allocation = WithInput(1);
  const grpc::Status status = RegisterDevice(allocation.handle, 0, kFileBytes);
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "device_id: 0, wanted the device of the handle's memory, 1");
  ExpectNothingIsLeft();
}

TEST_F(DeviceRegionAttackTest, SizeZeroOrLargerThanTheAllocation) {
  const auto allocation = WithInput(0);
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(RegisterDevice(allocation.handle, 0, 0).error_message(),
              HasSubstr("byte_size: 0, wanted at least 1"));
  const grpc::Status status = RegisterDevice(allocation.handle, 0, kFileBytes + 1);
  EXPECT_EQ(status.error_code(), Code::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(),
            "byte_size: 65537, wanted at most the 65536 bytes that the handle's allocation has");
  EXPECT_EQ(RegisterDevice(allocation.handle, 0, kMost).error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_EQ(RegisterDevice(allocation.handle, 0, kMost + 1).error_code(), Code::INVALID_ARGUMENT);
  ExpectNothingIsLeft();
}

TEST_F(DeviceRegionAttackTest, OffsetPlusSizeOverflows) {
  RegisterOk(WithInput(0), 0);
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t offset :
       {std::int64_t{kFileBytes} - kTensorBytes + 4, std::int64_t{kFileBytes}, kEnd,
        kEnd - kTensorBytes + 1, kEnd / 4 * 4}) {
    ExpectRefused(InRegions({"r", offset}, {}), Code::OUT_OF_RANGE, "inputs[0].shared_memory");
    ExpectRefused(InRegions({}, {"r", offset}), Code::OUT_OF_RANGE, "outputs[0].shared_memory");
  }
  ExpectRefused(InRegions({"r", -4}, {}), Code::INVALID_ARGUMENT, "offset -4, wanted 0 or more");
  ExpectRefused(InRegions({"r", 0, 0}, {}), Code::INVALID_ARGUMENT, "byte_size 0, wanted 16896");
}

// Also under another name, and at the beginning of a region that says it is shorter.
TEST_F(DeviceRegionAttackTest, OutputOverlapsAnInput) {
  const auto allocation = WithInput(0);
  RegisterOk(allocation, 0);
  RegisterOk(allocation, 0, "again", kTensorBytes + 8);
  for (const char* region : {"r", "again"}) {
    for (const std::int64_t offset : {4, 8}) {
      ExpectRefused(InRegions({}, {region, offset}), Code::INVALID_ARGUMENT,
                    "outputs[0].shared_memory: overlaps input \"x\"");
    }
  }
  EXPECT_TRUE(Infer(InRegions({}, {"r", kTensorBytes})).ok());
  const std::string expected = Expected(Plain());
  EXPECT_EQ(OutputAt(allocation, kTensorBytes), expected);
  EXPECT_TRUE(Infer(InRegions({}, {"r"})).ok()) << "exactly its input may be overwritten";
  EXPECT_EQ(OutputAt(allocation, 0), expected);
}

// The host would copy such an input; on a device it cannot.
TEST_F(DeviceRegionAttackTest, TensorsThatAreNotAligned) {
  RegisterOk(WithInput(0), 0);
  ExpectRefused(InRegions({"r", 2}, {"r", kY}), Code::INVALID_ARGUMENT,
                "inputs[0].shared_memory: region \"r\": offset 2, wanted the input aligned to 4");
  ExpectRefused(InRegions({}, {"r", kY + 2}), Code::INVALID_ARGUMENT, "the output aligned to 4");
}

TEST_F(DeviceRegionAttackTest, TensorsOnSeveralDevices) {
  RegisterOk(WithInput(0), 0, "zero");
  RegisterOk(WithInput(1), 1, "one");
  ExpectRefused(InRegions({"zero"}, {"one"}), Code::INVALID_ARGUMENT,
                "outputs[0].shared_memory: region \"one\": memory of device 1, wanted that of "
                "device 0, where another tensor lies");
}

TEST_F(DeviceRegionAttackTest, UnregisteredWhileInUse) {
  const std::string expected = Expected(Plain());
  for (const char* how : {"finish", "wait"}) {
    const auto allocation = WithInput(0);
    RegisterOk(allocation, 0);
    StalledInfer call(*this, InRegions({}, {"r", kY}));
    EXPECT_EQ(UnregisterDevice("r", "refuse").error_code(), Code::FAILED_PRECONDITION);
    memory_.EndClient(allocation);
    std::thread waiter([&] { EXPECT_TRUE(UnregisterDevice("r", how).ok()); });
    inference::CudaSharedMemoryStatusResponse unused;
    WaitUntil([&] { return !DeviceStatus("r", &unused).ok(); });
    ExpectRefused(InRegions({}, {"r", kY}), Code::NOT_FOUND, "region \"r\" is not registered");
    EXPECT_EQ(memory_.opened(), 1) << "the request keeps it";
    call.FinishOk();
    waiter.join();
    EXPECT_EQ(OutputAt(allocation, kY), expected);
    ExpectNothingIsLeft();
  }
}

TEST_F(DeviceRegionAttackTest, ReRegisteredUnderTheSameName) {
  const auto first = WithInput(0);
  const auto second = WithInput(0);
  RegisterOk(first, 0);
  EXPECT_EQ(RegisterDevice(second.handle, 0, kFileBytes).error_code(), Code::ALREADY_EXISTS);
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  ASSERT_TRUE(UnregisterDevice("r").ok());
  RegisterOk(second, 0);
  call.FinishOk();
  EXPECT_EQ(OutputAt(first, kY), Expected(Plain()));
  EXPECT_EQ(OutputAt(second, kY), std::string(kTensorBytes, '\0'));
}

// A name is one region's, of whatever kind, and each kind's calls end their own.
TEST_F(DeviceRegionAttackTest, TheCallsOfOneKindKnowNoneOfTheOther) {
  RegisterOk(WithInput(0), 0, "device");
  RegionFixture::RegisterOk(file_, kFileBytes, "host");
  EXPECT_EQ(RegisterDevice(WithInput(0).handle, 0, kFileBytes, "host").error_code(),
            Code::ALREADY_EXISTS);
  EXPECT_EQ(Register(file_.key(), 0, kFileBytes, "device").error_code(), Code::ALREADY_EXISTS);
  const grpc::Status by_name = Unregister("device");
  EXPECT_EQ(by_name.error_code(), Code::NOT_FOUND);
  EXPECT_EQ(by_name.error_message(), "region \"device\" was not registered by a file's name");
  const grpc::Status of_device = UnregisterDevice("host");
  EXPECT_EQ(of_device.error_code(), Code::NOT_FOUND);
  EXPECT_EQ(of_device.error_message(), "region \"host\" is not one of a device's memory");
  EXPECT_TRUE(Unregister("").ok());
  inference::CudaSharedMemoryStatusResponse status;
  ASSERT_TRUE(DeviceStatus("", &status).ok());
  ASSERT_EQ(status.regions_size(), 1);
  EXPECT_EQ(status.regions().at("device").byte_size(), kFileBytes);
  EXPECT_TRUE(UnregisterDevice("").ok());
  ExpectNothingIsLeft();
}

TEST_F(DeviceRegionAttackTest, TenThousandRegistrationsLeaveNothing) {
  const auto allocation = WithInput(0);
  int taken = 0;
  for (int i = 0; i < 10'000; ++i) {
    taken += RegisterDevice(allocation.handle, 0, 64, absl::StrCat("r", i)).ok() ? 1 : 0;
  }
  EXPECT_EQ(taken, 256) << "--max_identity_shared_regions";
  EXPECT_EQ(memory_.opens(), taken) << "beyond the limit nothing is opened";
  EXPECT_EQ(server_.Metric("normd_shared_regions_refused_total{reason=\"limit\"}"), 9'744);
  EXPECT_TRUE(UnregisterDevice("").ok());
  ExpectNothingIsLeft();
}

class DeviceRegionIdentityTest : public DeviceRegionAttackTest {
 protected:
  explicit DeviceRegionIdentityTest(const SecretFolder& folder = SecretFolder())
      : DeviceRegionAttackTest(WithTwoAdmins(folder)) {}
};

TEST_F(DeviceRegionIdentityTest, AnotherIdentitysRegion) {
  const auto allocation = WithInput(0);
  ASSERT_TRUE(RegisterDevice(allocation.handle, 0, kFileBytes, "r", 'a').ok());
  EXPECT_TRUE(Infer(InRegions({}, {"r", kY}), nullptr, 'a').ok());
  for (const char other : {'b', 'u'}) {
    ExpectRefused(InRegions({}, {"r", kY}), Code::NOT_FOUND, "is not registered", other);
  }
  EXPECT_EQ(UnregisterDevice("r", nullptr, 'b').error_code(), Code::NOT_FOUND);
  inference::CudaSharedMemoryStatusResponse status;
  EXPECT_TRUE(DeviceStatus("", &status, 'b').ok());
  EXPECT_EQ(status.regions_size(), 0);
  // The right to infer alone does not let a client register.
  EXPECT_EQ(RegisterDevice(allocation.handle, 0, kFileBytes, "u", 'u').error_code(),
            Code::PERMISSION_DENIED);
  EXPECT_EQ(RegisterDevice(allocation.handle, 0, kFileBytes, "n", ' ').error_code(),
            Code::UNAUTHENTICATED);
  EXPECT_TRUE(RegisterDevice(allocation.handle, 0, kFileBytes, "r", 'b').ok()) << "its own";
}

}  // namespace
}  // namespace normd::testing
