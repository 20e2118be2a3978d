#include "server/net/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/net/peer_address.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

bool Connects(const char* address, int port) {
  const Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<in_port_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  return connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
}

TEST(ListenerTest, TakesAFreePort) {
  const auto listener = Listen("127.0.0.1:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_GT(listener->port, 0);
  EXPECT_TRUE(Connects("127.0.0.1", listener->port));
}

TEST(ListenerTest, RefusesAPortInUseAndNamesIt) {
  const auto first = Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const std::string address = absl::StrCat("127.0.0.1:", first->port);
  const auto second = Listen(address);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("listen: " + address));
}

TEST(ListenerTest, TakesNamesAndBothWildcards) {
  for (const char* address : {"localhost:0", "0.0.0.0:0", "[::]:0"}) {
    const auto listener = Listen(address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(Connects("127.0.0.1", listener->port)) << address;
  }
}

TEST(ListenerTest, RefusesWhatIsNoAddress) {
  for (const char* address :
       {"", "nonsense", "no.such.host.invalid:1", "127.0.0.1:port", "192.0.2.1:0", "[::1:0"}) {
    EXPECT_EQ(Listen(address).status().code(), absl::StatusCode::kUnavailable) << address;
  }
}

sockaddr_storage Ipv6(const char* address) {
  sockaddr_in6 ipv6 = {};
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(5000);
  inet_pton(AF_INET6, address, &ipv6.sin6_addr);
  sockaddr_storage storage = {};
  std::memcpy(&storage, &ipv6, sizeof(ipv6));
  return storage;
}

TEST(PeerAddressTest, SpellsAddressesAsGrpcDoes) {
  EXPECT_EQ(PeerAddressOf(Ipv6("::1")).grpc_peer, "ipv6:%5B::1%5D:5000");
  EXPECT_EQ(PeerAddressOf(Ipv6("::ffff:10.1.2.3")).grpc_peer, "ipv4:10.1.2.3:5000");
}

TEST(PeerAddressTest, CountsANetworkOfIpv6AsOnePeer) {
  EXPECT_EQ(PeerAddressOf(Ipv6("2001:db8:1:2::5")).share,
            PeerAddressOf(Ipv6("2001:db8:1:2:ffff::9")).share);
  EXPECT_NE(PeerAddressOf(Ipv6("2001:db8:1:2::5")).share,
            PeerAddressOf(Ipv6("2001:db8:1:3::5")).share);
  EXPECT_EQ(PeerAddressOf(Ipv6("::ffff:10.1.2.3")).share, "10.1.2.3");
}

}  // namespace
}  // namespace normd
