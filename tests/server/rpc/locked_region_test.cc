// Regions of the host on a server with devices: once their pages are locked, devices read and write
// them directly, and what clients do to them meanwhile is as harmless as without.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "tests/server/rpc/region_fixture.h"
#include "tests/support/fake_page_locker.h"
#include "tests/support/temp_repository.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

// Before the server, so that it outlives it.
struct WithPageLocker {
  FakePageLocker locker_;
};

// Batches of up to so many bytes are computed through the link; others are copied.
class LockedRegionTest : public WithPageLocker,
                         public RegionFixture,
                         public ::testing::WithParamInterface<std::size_t> {
 protected:
  LockedRegionTest() : RegionFixture(WithDevices(locker_)) {}

  static TestServerOptions WithDevices(FakePageLocker& locker) {
    TestServerOptions options = WithSharedMemory();
    options.fake_devices = 1;
    options.fake_mapped_bytes = GetParam();
    options.page_locker = &locker;
    options.page_lock_limits = {2 * kFileBytes, 2 * kFileBytes, 65536, std::chrono::hours(1)};
    return options;
  }
  bool copies() const { return GetParam() == 0; }
  // What `call` has the devices copy from or to memory that is neither locked nor the server's
  // pinned. Models are loaded from such memory.
  template <typename Call>
  std::int64_t PageableBytesOf(const Call& call) {
    const std::int64_t before = locker_.touched_pageable_bytes();
    call();
    return locker_.touched_pageable_bytes() - before;
  }

  double LockedBytes() const { return server_.Metric("normd_shared_locked_bytes"); }
  void RegisterAndLock(const SharedFile& file, const std::string& name = "r") {
    const double locked = LockedBytes();
    RegisterOk(file, kFileBytes, name);
    EXPECT_EQ(LockedBytes(), locked + kFileBytes);
  }
  v1::SharedMemoryInfo Listed() {
    const v1::ListSharedMemoryResponse response = List();
    return response.regions_size() == 1 ? response.regions(0) : v1::SharedMemoryInfo();
  }
};

TEST_P(LockedRegionTest, DevicesReadAndWriteItWithTheBitsOfMessages) {
  const std::string expected = Expected(Plain());
  WriteInput(file_, Plain());
  RegisterAndLock(file_);
  EXPECT_TRUE(Listed().page_locked());
  EXPECT_EQ(locker_.touched_bytes(), 0);
  const auto infer = [&] { EXPECT_TRUE(Infer(InRegions({}, {"r", kY})).ok()); };
  EXPECT_EQ(PageableBytesOf(infer), 0);
  EXPECT_EQ(OutputIn(file_, kY), expected);
  if (copies()) {
    EXPECT_EQ(locker_.touched_bytes(), 2 * kTensorBytes) << "both tensors, without staging";
  }
  // Exactly in the input's place, and from bytes that no device can read there.
  ASSERT_TRUE(Infer(InRegions({}, {})).ok());
  EXPECT_EQ(OutputIn(file_, 0), expected);
  WriteInput(file_, Plain(), 3);
  ASSERT_TRUE(Infer(InRegions({"r", 3}, {"r", kY})).ok());
  EXPECT_EQ(OutputIn(file_, kY), expected);
}

TEST_P(LockedRegionTest, ARegistrationIsAnsweredWhenThePagesAreLocked) {
  locker_.Hold();
  std::atomic<bool> answered{false};
  std::thread call([&] {
    RegisterOk(file_, kFileBytes);
    answered = true;
    EXPECT_EQ(LockedBytes(), kFileBytes);
  });
  locker_.WaitForHeld();
  EXPECT_FALSE(Listed().page_locked());
  EXPECT_FALSE(answered);
  locker_.Release();
  call.join();
  EXPECT_TRUE(Listed().page_locked());
}

// Its bytes are there, so a client that has given up finds out.
TEST_P(LockedRegionTest, ARegistrationThatIsGivenUpIsLockedNevertheless) {
  locker_.Hold();
  grpc::ClientContext context;
  inference::SystemSharedMemoryRegisterRequest request;
  request.set_name("r");
  request.set_key(file_.key());
  request.set_byte_size(kFileBytes);
  inference::SystemSharedMemoryRegisterResponse response;
  grpc::Status status;
  std::thread call([&] {
    status = Inference::NewStub(server_.NewChannel())
                 ->SystemSharedMemoryRegister(&context, request, &response);
  });
  locker_.WaitForHeld();
  context.TryCancel();
  call.join();
  EXPECT_EQ(status.error_code(), Code::CANCELLED);
  server_.WaitIdle();
  EXPECT_EQ(Register(file_.key(), 0, kFileBytes).error_code(), Code::ALREADY_EXISTS);
  locker_.Release();
  WaitUntil([&] { return Listed().page_locked(); });
}

TEST_P(LockedRegionTest, BesideMessagesAndOtherRegions) {
  const std::string expected = Expected(Plain());
  WriteInput(file_, Plain());
  RegisterAndLock(file_);
  locker_.Fail(absl::FailedPreconditionError("no more"));
  const SharedFile other(kFileBytes);
  WriteInput(other, Plain());
  RegisterOk(other, kFileBytes, "other");
  for (const auto& [x, y] : {std::pair{"r", "other"}, std::pair{"other", "r"}}) {
    const SharedFile& to = std::string(y) == "r" ? file_ : other;
    std::memset(to.data() + kY, 0, kTensorBytes);
    ASSERT_TRUE(Infer(InRegions({x}, {y, kY})).ok());
    EXPECT_EQ(OutputIn(to, kY), expected) << x << " to " << y;
  }
  inference::ModelInferRequest from_message = ToInfer(Plain());
  auto& y = *from_message.add_outputs();
  y.set_name("y");
  Place({"r", kY}, &y);
  std::memset(file_.data() + kY, 0, kTensorBytes);
  ASSERT_TRUE(Infer(from_message).ok());
  EXPECT_EQ(OutputIn(file_, kY), expected);
  inference::ModelInferRequest to_message = InRegions({}, {});
  to_message.clear_outputs();
  inference::ModelInferResponse response;
  ASSERT_TRUE(Infer(to_message, &response).ok());
  EXPECT_EQ(response.raw_output_contents(0), expected);
}

TEST_P(LockedRegionTest, WhatCannotBeLockedWorksWithoutIt) {
  const std::string expected = Expected(Plain());
  locker_.Fail(absl::FailedPreconditionError("no more"));
  WriteInput(file_, Plain());
  RegisterOk(file_, kFileBytes);
  const char* const kRefused = "normd_shared_regions_not_locked_total{reason=\"driver\"}";
  WaitUntil([&] { return server_.Metric(kRefused) != 0; });
  EXPECT_FALSE(Listed().page_locked());
  const auto infer = [&] { EXPECT_TRUE(Infer(InRegions({}, {"r", kY})).ok()); };
  EXPECT_EQ(PageableBytesOf(infer), kTensorBytes) << "x is gathered, y is not";
  EXPECT_EQ(OutputIn(file_, kY), expected);
  EXPECT_EQ(locker_.touched_bytes(), 0);
}

TEST_P(LockedRegionTest, UnregisteredWhileInUseItIsUnlockedBehindItsRequests) {
  const std::string expected = Expected(Plain());
  WriteInput(file_, Plain());
  RegisterAndLock(file_);
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  EXPECT_TRUE(Unregister("r", "finish").ok());
  EXPECT_EQ(locker_.unlocks(), 0);
  call.FinishOk();
  EXPECT_EQ(OutputIn(file_, kY), expected);
  WaitUntil([&] { return NamedRegions() == 0; });
  EXPECT_EQ(locker_.unlocks(), 1);
  EXPECT_EQ(LockedBytes(), 0);
}

TEST_P(LockedRegionTest, UnregisteringWaitsUntilItIsUnlocked) {
  RegisterAndLock(file_);
  EXPECT_TRUE(Unregister("r", "wait").ok());
  EXPECT_EQ(locker_.unlocks(), 1);
  EXPECT_EQ(locker_.locked(), 0);
}

TEST_P(LockedRegionTest, ShrunkWhileInUse) {
  RegisterAndLock(file_);
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  // Behind the tensors: nobody touches what is gone.
  file_.Resize(kFileBytes - 1);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), Code::FAILED_PRECONDITION) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("its memory was taken away"));
  file_.Resize(kFileBytes);
  ExpectRefused(InRegions({}, {"r", kY}), Code::FAILED_PRECONDITION, "registered anew");
  EXPECT_TRUE(Listed().broken());
}

// Values that are checked are copied first, and the copy is ordinary memory.
TEST_P(LockedRegionTest, IndexesThatChangeWhileInUse) {
  LoadStyles();

  constexpr std::size_t kIndexes = 2 * kY;
  v1::NormalizeRequest request = Plain();
  request.set_model("styles");
  v1::Tensor& indexes = *request.add_inputs();
  indexes.set_name("style_index");
  indexes.set_dtype(v1::INT64);
  indexes.add_shape(2);
  const std::int64_t styles[] = {0, 1};
  indexes.set_data(styles, sizeof(styles));
  request.mutable_inputs(0)->set_name("x");
  const std::string expected = Expected(request);

  WriteInput(file_, request);
  std::memcpy(file_.data() + kIndexes, styles, sizeof(styles));
  RegisterAndLock(file_);
  const auto in_region = [](v1::Tensor* input, std::int64_t offset, std::int64_t bytes) {
    input->clear_data();
    input->mutable_shared_memory()->set_region("r");
    input->mutable_shared_memory()->set_offset(offset);
    input->mutable_shared_memory()->set_byte_size(bytes);
  };
  in_region(request.mutable_inputs(0), 0, kTensorBytes);
  in_region(request.mutable_inputs(1), kIndexes, sizeof(styles));
  server_.gate().Close();
  v1::NormalizeResponse response;
  grpc::Status status;
  const std::int64_t pageable_bytes = PageableBytesOf([&] {
    std::thread call([&] { status = Normalize(request, &response); });
    server_.gate().WaitForStalled(1);
    std::memset(file_.data() + kIndexes, 0x7f, sizeof(styles));
    server_.gate().Open();
    call.join();
  });
  EXPECT_EQ(pageable_bytes, 0) << "a copy that is taken for locked memory";
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.outputs(0).data(), expected);
}

INSTANTIATE_TEST_SUITE_P(ThroughTheLinkAndCopied, LockedRegionTest,
                         ::testing::Values(std::size_t{32} << 10, std::size_t{0}),
                         [](const auto& mapped) {
                           return mapped.param == 0 ? "copied" : "mapped";
                         });

}  // namespace
}  // namespace normd::testing
