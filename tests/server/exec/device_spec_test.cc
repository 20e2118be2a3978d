#include "server/exec/device_spec.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace normd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ParseDeviceTest, KnowsTheKinds) {
  EXPECT_EQ(ParseDevice("auto")->kind, DeviceSpec::Kind::kAuto);
  EXPECT_EQ(ParseDevice("cpu")->kind, DeviceSpec::Kind::kCpu);
  EXPECT_EQ(ParseDevice("cuda")->kind, DeviceSpec::Kind::kCuda);
  EXPECT_THAT(ParseDevice("cuda")->ordinals, IsEmpty());
}

TEST(ParseDeviceTest, ReadsOrdinals) {
  EXPECT_THAT(ParseDevice("cuda:0")->ordinals, ElementsAre(0));
  EXPECT_THAT(ParseDevice("cuda:3,0,12")->ordinals, ElementsAre(3, 0, 12));
}

class ParseDeviceErrorTest : public testing::TestWithParam<const char*> {};

TEST_P(ParseDeviceErrorTest, NamesWhatCameAndWhatWasWanted) {
  const absl::Status status = ParseDevice(GetParam()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + GetParam() + "\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("wanted auto, cpu, cuda or cuda:0,1"));
}

INSTANTIATE_TEST_SUITE_P(Table, ParseDeviceErrorTest,
                         testing::Values("", "gpu", "CPU", "cpu:0", "auto ", "cuda:", "cuda:a",
                                         "cuda:-1", "cuda:+1", "cuda: 1", "cuda:0,", "cuda:,0",
                                         "cuda:0,0", "cuda:99999999999"));

}  // namespace
}  // namespace normd
