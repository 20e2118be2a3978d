#include "client/fleet/addresses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace normd::client {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Targets(const std::vector<ServerAddress>& addresses) {
  std::vector<std::string> targets;
  for (const ServerAddress& one : addresses) targets.push_back(one.target);
  return targets;
}

TEST(ParseServersTest, TakesAddressesNamesAndSockets) {
  const auto servers = ParseServers("127.0.0.1:1,[::1]:2,dns:///normd.example:3,unix:/run/a.sock");
  ASSERT_TRUE(servers.ok()) << servers.status();
  ASSERT_EQ(servers->size(), 4U);
  EXPECT_EQ((*servers)[1].host, "::1");
  EXPECT_EQ((*servers)[2].host, "normd.example");
  EXPECT_EQ((*servers)[2].port, "3");
  EXPECT_EQ((*servers)[3].text, "unix:/run/a.sock");
}

TEST(ParseServersTest, NamesTheOneThatIsNoAddress) {
  for (const char* wrong : {"", "host", "host:", ":1", "host:0", "host:65536", "host:x", "[::1:2",
                            "dns://8.8.8.8/host:1", "a:1,,b:2"}) {
    const auto servers = ParseServers(wrong);
    ASSERT_FALSE(servers.ok()) << wrong;
    EXPECT_THAT(std::string(servers.status().message()), HasSubstr("wanted an address")) << wrong;
  }
  EXPECT_THAT(std::string(ParseServers("a:1,b:2,a:1").status().message()),
              HasSubstr("\"a:1\" comes twice"));
}

TEST(ResolveServersTest, GivesEveryAddressOnceWithTheNameItHad) {
  const auto servers = ParseServers("127.0.0.1:7,localhost:7,unix:/run/a.sock").value();
  const auto found = ResolveServers(servers);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->front().target, "127.0.0.1:7");
  EXPECT_THAT(Targets(*found), Contains("127.0.0.1:7").Times(1));
  EXPECT_EQ(found->back().target, "unix:/run/a.sock");
}

TEST(ResolveServersTest, LeavesOutANameWithoutAnAddressUnlessAllAre) {
  const auto some = ResolveServers(ParseServers("nobody.invalid:1,127.0.0.1:2").value());
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(Targets(*some), ElementsAre("127.0.0.1:2"));
  const auto none = ResolveServers(ParseServers("nobody.invalid:1").value());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("server: \"nobody.invalid:1\" has no address: "));
}

TEST(CanChangeTest, OnlyNamesCan) {
  EXPECT_FALSE(CanChange(ParseServers("127.0.0.1:1,[::1]:1,unix:/a").value()));
  EXPECT_TRUE(CanChange(ParseServers("127.0.0.1:1,localhost:1").value()));
}

}  // namespace
}  // namespace normd::client
