// `normctl unregister` against a server with regions of both kinds, those of fake devices.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/normctl/normctl_fixture.h"
#include "tests/server/rpc/device_region_fixture.h"
#include "tests/support/threads.h"

namespace normd::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

class UnregisterTest : public normd::testing::DeviceRegionFixture {
 protected:
  Ran Unregister(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "unregister");
    arguments.push_back(absl::StrCat("--server=127.0.0.1:", server_.port()));
    return Invoke(arguments);
  }
  // The regions that are left.
  std::vector<std::string> Devices() {
    inference::CudaSharedMemoryStatusResponse status;
    EXPECT_TRUE(DeviceStatus("", &status).ok());
    return Names(status);
  }
  std::vector<std::string> Named() {
    inference::SystemSharedMemoryStatusResponse status;
    EXPECT_TRUE(Status("", &status, ' ').ok());
    return Names(status);
  }

 private:
  template <typename Response>
  static std::vector<std::string> Names(const Response& status) {
    std::vector<std::string> names;
    for (const auto& [name, region] : status.regions()) names.push_back(name);
    return names;
  }
};

TEST_F(UnregisterTest, EndsTheRegionsOfADeviceThatAreNamed) {
  for (const char* name : {"a", "b", "c"}) RegisterOk(WithInput(0), 0, name);
  const Ran ran = Unregister({"a", "c", "--kind=device"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(ran.out, "unregistered a\nunregistered c\n");
  EXPECT_THAT(Devices(), UnorderedElementsAre("b"));
  EXPECT_EQ(memory_.opened(), 1);
}

TEST_F(UnregisterTest, EndsWhatAClientLeftThatHasDied) {
  const auto allocation = WithInput(0);
  RegisterOk(allocation, 0, "left");
  memory_.EndClient(allocation);
  EXPECT_EQ(Unregister({"left", "--kind=device"}).code, kExitOk);
  EXPECT_EQ(memory_.opened(), 0);
}

TEST_F(UnregisterTest, EndsTheRegionsOfFilesThatAreNamed) {
  for (const char* name : {"a", "b"}) RegionFixture::RegisterOk(file_, kFileBytes, name);
  const Ran ran = Unregister({"--kind=named", "b"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(ran.out, "unregistered b\n");
  EXPECT_THAT(Named(), UnorderedElementsAre("a"));
}

TEST_F(UnregisterTest, AllIsAllOfOneKind) {
  for (const char* name : {"a", "b"}) RegisterOk(WithInput(0), 0, name);
  for (const char* name : {"c", "d"}) RegionFixture::RegisterOk(file_, kFileBytes, name);
  Ran ran = Unregister({"--all", "--kind=device"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(ran.out, "unregistered all of kind device\n");
  EXPECT_THAT(Devices(), IsEmpty());
  EXPECT_THAT(Named(), UnorderedElementsAre("c", "d"));
  ran = Unregister({"--all", "--kind=named"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(ran.out, "unregistered all of kind named\n");
  EXPECT_THAT(Named(), IsEmpty());
  EXPECT_EQ(Unregister({"--all", "--kind=named"}).code, kExitOk) << "none is all, too";
}

TEST_F(UnregisterTest, TheFirstUnknownNameEndsIt) {
  for (const char* name : {"a", "b"}) RegisterOk(WithInput(0), 0, name);
  const Ran ran = Unregister({"a", "ghost", "b", "--kind=device"});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_EQ(ran.out, "unregistered a\n");
  EXPECT_EQ(ran.err, "normctl: NOT_FOUND: ghost: region \"ghost\" is not registered\n");
  EXPECT_THAT(Devices(), UnorderedElementsAre("b"));
}

TEST_F(UnregisterTest, ARegionOfTheOtherKindIsNotFound) {
  RegisterOk(WithInput(0), 0, "device");
  RegionFixture::RegisterOk(file_, kFileBytes, "file");
  EXPECT_THAT(Unregister({"file", "--kind=device"}).err, StartsWith("normctl: NOT_FOUND: "));
  EXPECT_THAT(Unregister({"device", "--kind=named"}).err, StartsWith("normctl: NOT_FOUND: "));
  EXPECT_THAT(Devices(), UnorderedElementsAre("device"));
  EXPECT_THAT(Named(), UnorderedElementsAre("file"));
}

TEST_F(UnregisterTest, WaitsForTheRequestsThatUseARegion) {
  RegisterOk(WithInput(0), 0);
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  Ran ran;
  std::atomic<bool> returned{false};
  std::thread command([&] {
    ran = Unregister({"r", "--kind=device"});
    returned = true;
  });
  WaitUntil([&] { return Devices().empty(); });
  EXPECT_EQ(memory_.opened(), 1) << "the request keeps it";
  EXPECT_FALSE(returned);
  call.FinishOk();
  command.join();
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(memory_.opened(), 0);
}

TEST_F(UnregisterTest, PrintsALineOfJsonForEachCall) {
  RegisterOk(WithInput(0), 0);
  EXPECT_EQ(Json::parse(Unregister({"r", "--kind=device", "--json"}).out),
            (Json{{"kind", "device"}, {"all", false}, {"name", "r"}}));
  EXPECT_EQ(Json::parse(Unregister({"--all", "--kind=named", "--json"}).out),
            (Json{{"kind", "named"}, {"all", true}}));
}

TEST(UnregisterUsageTest, TakesEitherNamesOrAllOfOneKind) {
  const auto error = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "unregister");
    const Ran ran = Invoke(arguments);
    EXPECT_EQ(ran.code, kExitUsage);
    EXPECT_EQ(ran.out, "");
    return ran.err;
  };
  EXPECT_THAT(error({"r"}), HasSubstr("--kind: \"\", wanted device or named"));
  EXPECT_THAT(error({"r", "--kind=descriptor"}), HasSubstr("--kind: \"descriptor\", wanted"));
  EXPECT_THAT(error({"--all"}), HasSubstr("--kind: \"\", wanted device or named"));
  EXPECT_THAT(error({"--kind=device"}), HasSubstr("0 names without --all, wanted one of the two"));
  EXPECT_THAT(error({"r", "s", "--all", "--kind=named"}),
              HasSubstr("2 names with --all, wanted one of the two"));
  EXPECT_THAT(error({"r", "", "--kind=device"}), HasSubstr("NAME: empty, wanted a region's name"));
}

}  // namespace
}  // namespace normd::client
