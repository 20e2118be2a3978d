#include "server/net/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/net/peer_address.h"
#include "tests/support/pass_descriptors.h"
#include "tests/support/temp_folder.h"

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

class UnixListenerTest : public ::testing::Test {
 protected:
  absl::StatusOr<Listener> ListenHere() const { return Listen("unix://" + path_); }
  std::string Error() const {
    const auto listener = ListenHere();
    EXPECT_EQ(listener.status().code(), absl::StatusCode::kUnavailable);
    return std::string(listener.status().message());
  }
  sockaddr_un Address() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  bool CanConnect() const {
    const sockaddr_un to = Address();
    const Descriptor client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }

  const testing::TempFolder folder_;
  std::string path_ = folder_.File("normd.sock");
};

TEST_F(UnixListenerTest, NobodyCanPassADescriptor) {
  const auto listener = ListenHere();
  ASSERT_TRUE(listener.ok()) << listener.status();
  const sockaddr_un to = Address();
  const Descriptor client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int known = 0;
  socklen_t size = sizeof(known);
  constexpr int kPassRights = 83;
  if (getsockopt(client.get(), SOL_SOCKET, kPassRights, &known, &size) != 0) {
    GTEST_SKIP() << "SO_PASSRIGHTS is of Linux 6.16";
  }
  ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const Descriptor accepted(accept4(listener->sockets[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  EXPECT_EQ(testing::PassDescriptors(client.get(), "x", {}), 1);
  EXPECT_EQ(testing::PassDescriptors(client.get(), "x", {client.get()}), -1);
}

TEST_F(UnixListenerTest, SeveralAddressesAreListenedAtTogetherOrNotAtAll) {
  const std::string other = folder_.File("other.sock");
  {
    const auto all = ListenAtAll("unix:" + path_ + ",127.0.0.1:0,unix://" + other + ",[::1]:0");
    if (!all.ok()) GTEST_SKIP() << all.status();  // Where there is no IPv6.
    EXPECT_EQ(all->sockets.size(), 4U);
    EXPECT_GT(all->port, 0);
    const std::vector<std::string> addresses = absl::StrSplit(all->address, ',');
    ASSERT_EQ(addresses.size(), 4U);
    EXPECT_EQ(addresses[0], "unix:" + path_);
    EXPECT_EQ(addresses[1], absl::StrCat("127.0.0.1:", all->port));
    EXPECT_EQ(addresses[2], "unix://" + other);
    EXPECT_FALSE(absl::EndsWith(addresses[3], ":0"));
    EXPECT_TRUE(CanConnect());
    // One of them is taken: none is left behind.
    EXPECT_EQ(ListenAtAll("unix:" + other + "x," + addresses[1]).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_FALSE(std::filesystem::exists(other + "x"));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(other));
}

TEST_F(UnixListenerTest, IsItsOwnersAloneAndGoesAtTheEnd) {
  for (const char* form : {"unix:", "unix://"}) {
    auto listener = Listen(form + path_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(listener->port, 0);
    struct stat found = {};
    ASSERT_EQ(stat(path_.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0600u);
    Listener moved = *std::move(listener);
    EXPECT_TRUE(CanConnect());
    moved = Listener();
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
}

TEST_F(UnixListenerTest, ReplacesASocketThatNobodyListensAt) {
  {
    const sockaddr_un at = Address();
    const Descriptor left(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(left.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  }
  ASSERT_FALSE(CanConnect());
  const auto listener = ListenHere();
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(CanConnect());
}

TEST_F(UnixListenerTest, LeavesAloneWhatIsNotItsOwn) {
  {
    const auto listener = ListenHere();
    ASSERT_TRUE(listener.ok());
    EXPECT_THAT(Error(), HasSubstr("another process listens there"));
    EXPECT_TRUE(CanConnect());
    // Something else has taken its place meanwhile: that is not removed at the end.
    std::filesystem::remove(path_);
    std::ofstream(path_).close();
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_THAT(Error(), HasSubstr("something else than a socket is there"));
  EXPECT_TRUE(std::filesystem::exists(path_));
  std::filesystem::remove(path_);
  // Nor is what a link leads to.
  const std::string target = folder_.File("target");
  std::ofstream(target).close();
  std::filesystem::create_symlink(target, path_);
  EXPECT_THAT(Error(), HasSubstr("something else than a socket is there"));
  EXPECT_TRUE(std::filesystem::exists(target));
}

TEST_F(UnixListenerTest, SaysWhyAPathCannotBe) {
  path_ = folder_.File("none/normd.sock");
  EXPECT_THAT(Error(), HasSubstr("No such file or directory"));
  path_ = folder_.File(std::string(200, 'x'));
  EXPECT_THAT(Error(), HasSubstr("wanted at most 107"));
  EXPECT_EQ(UnixPathOf("unix:relative"), "");
  EXPECT_EQ(UnixPathOf("unix://relative"), "");
  EXPECT_EQ(UnixPathOf("127.0.0.1:80"), "");
  EXPECT_EQ(UnixPathOf("unix:/a"), "/a");
  EXPECT_EQ(UnixPathOf("unix:///a"), "/a");
}

}  // namespace
}  // namespace normd
