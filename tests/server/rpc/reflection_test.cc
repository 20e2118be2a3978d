// The server's reflection, for both versions of its protocol.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/wire/wire_writer.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

TEST(ReflectionTest, ListsTheServiceAndDescribesIt) {
  TestServer server;
  for (const std::string service :
       {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}) {
    const std::string info = absl::StrCat("/", service, "/ServerReflectionInfo");
    RawStream list(server.NewChannel(), info, BytesField(7, ""));
    const std::string services = list.Read().value_or("");
    EXPECT_THAT(services, HasSubstr("normd.v1.NormService"));
    EXPECT_THAT(services, HasSubstr(service));
    RawStream describe(server.NewChannel(), info, BytesField(4, "normd.v1.NormService"));
    EXPECT_THAT(describe.Read().value_or(""), HasSubstr("Normalize"));
    RawStream itself(server.NewChannel(), info, BytesField(4, service));
    EXPECT_THAT(itself.Read().value_or(""), HasSubstr("ServerReflectionInfo")) << service;
  }
}

}  // namespace
}  // namespace normd::testing
