// What the server tells of the memory that clients share, and where outputs go that are not named.

#include <gtest/gtest.h>

#include <string>

#include "tests/server/rpc/region_fixture.h"

namespace normd::testing {
namespace {

class RegionListTest : public RegionFixture {};

TEST_F(RegionListTest, TheOldestComesFirstWithItsAgeAndSize) {
  EXPECT_EQ(List().regions_size(), 0);
  RegisterOk(file_, 8192, "z", 4096);
  RegisterOk(file_, 100, "a");
  const v1::ListSharedMemoryResponse first = List();
  ASSERT_EQ(first.regions_size(), 2);
  const v1::SharedMemoryInfo& z = first.regions(0);
  EXPECT_EQ(z.name(), "z");
  EXPECT_EQ(z.kind(), v1::SharedMemoryInfo::NAMED);
  EXPECT_EQ(z.owner(), "");
  EXPECT_EQ(z.key(), file_.key());
  EXPECT_EQ(z.offset(), 4096);
  EXPECT_EQ(z.byte_size(), 8192);
  EXPECT_TRUE(z.writable());
  EXPECT_FALSE(z.in_use());
  EXPECT_FALSE(z.broken());
  EXPECT_EQ(first.regions(1).name(), "a");
  EXPECT_GE(z.age_ns(), first.regions(1).age_ns());
  EXPECT_GT(List().regions(0).age_ns(), z.age_ns());
  ASSERT_TRUE(Unregister("z").ok());
  ASSERT_EQ(List().regions_size(), 1);
  EXPECT_EQ(List().regions(0).name(), "a");
}

TEST_F(RegionListTest, SaysWhatIsInUse) {
  RegisterOk(file_, kFileBytes, "r");
  RegisterOk(file_, 100, "idle");
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  const v1::ListSharedMemoryResponse during = List();
  call.FinishOk();
  ASSERT_EQ(during.regions_size(), 2);
  EXPECT_TRUE(during.regions(0).in_use());
  EXPECT_FALSE(during.regions(1).in_use());
  server_.WaitIdle();
  EXPECT_FALSE(List().regions(0).in_use());
}

// What says only where an output goes changes nothing else in the response.
TEST_F(RegionListTest, UnnamedOutputsComeAsIfNoneWereNamed) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  const std::string expected = Expected(plain);
  v1::NormalizeRequest placed = plain;
  v1::WantedOutput& output = *placed.add_outputs();
  output.set_name("y");
  output.mutable_shared_memory()->set_region("r");
  output.mutable_shared_memory()->set_byte_size(kTensorBytes);
  for (const bool unnamed : {false, true}) {
    placed.set_unnamed_outputs(unnamed);
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(placed, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).name(), unnamed ? "" : "y");
    EXPECT_EQ(response.outputs(0).shared_memory().region(), "r");
    EXPECT_EQ(OutputIn(file_, 0), expected);
  }
  v1::NormalizeRequest asked = plain;
  asked.add_outputs()->set_name("rstd");
  for (const bool unnamed : {false, true}) {
    asked.set_unnamed_outputs(unnamed);
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(asked, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.outputs_size(), unnamed ? 2 : 1);
    for (const v1::Tensor& tensor : response.outputs()) {
      if (tensor.name() != "rstd") {
        EXPECT_EQ(tensor.data(), expected);
      }
    }
  }
}

}  // namespace
}  // namespace normd::testing
