#include "server/callers/callers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "tests/support/threads.h"

namespace normd {
namespace {

TEST(PeerNameTest, APeerIsAnAddressOrANetworkOfIpv6) {
  EXPECT_EQ(PeerNameOf("ipv4:192.0.2.1:4711"), "ipv4:192.0.2.1");
  EXPECT_EQ(PeerNameOf("ipv4:192.0.2.1:4711"), PeerNameOf("ipv4:192.0.2.1:4712"));
  EXPECT_NE(PeerNameOf("ipv4:192.0.2.1:4711"), PeerNameOf("ipv4:192.0.2.2:4711"));
  EXPECT_EQ(PeerNameOf("ipv6:%5B2001:db8::1%5D:4711"),
            PeerNameOf("ipv6:%5B2001:db8::ffff:2%5D:4712"));
  EXPECT_EQ(PeerNameOf("ipv6:[2001:db8::1]:4711"), PeerNameOf("ipv6:%5B2001:db8::1%5D:1"));
  EXPECT_NE(PeerNameOf("ipv6:%5B2001:db8::1%5D:1"), PeerNameOf("ipv6:%5B2001:db8:0:1::1%5D:1"));
  EXPECT_EQ(PeerNameOf("ipv6:%5Bfe80::1%25eth0%5D:1"), PeerNameOf("ipv6:%5Bfe80::2%25eth0%5D:2"));
  EXPECT_EQ(PeerNameOf("unix:"), "unix:");
  EXPECT_EQ(PeerNameOf("unix:/run/normd.sock"), "unix:/run/normd.sock");
  EXPECT_EQ(PeerNameOf(""), "");
  EXPECT_EQ(PeerNameOf("ipv6:nonsense"), "ipv6");
}

TEST(CallersTest, CallsOfAConnectionHaveOneCaller) {
  Callers callers;
  const auto connection = callers.Begin("ipv4:192.0.2.1:1");
  EXPECT_EQ(connection->name, "ipv4:192.0.2.1:1");
  EXPECT_EQ(callers.Find("ipv4:192.0.2.1:1"), connection);
  const auto other = callers.Find("ipv4:192.0.2.1:2");
  EXPECT_NE(other, connection);
  EXPECT_EQ(other->peer, connection->peer) << "of one address";
  const auto third = callers.Find("ipv4:192.0.2.2:1");
  EXPECT_NE(third->peer, connection->peer);
  EXPECT_NE(third->peer->id, connection->peer->id);
  EXPECT_EQ(callers.connections(), 3U);
  EXPECT_EQ(callers.peers(), 2U);
}

TEST(CallersTest, AnEmptyNameIsNobodys) {
  Callers callers;
  EXPECT_EQ(callers.Find(""), nullptr);
  EXPECT_EQ(callers.connections(), 0U);
}

// A client may come back from the port that it had while a call of its former connection is inside.
TEST(CallersTest, AConnectionBeginsWithCountsOfItsOwn) {
  Callers callers;
  auto first = callers.Begin("ipv4:192.0.2.1:1");
  const auto call = callers.Find("ipv4:192.0.2.1:1");
  call->delivered.Add(100);
  call->peer->holding[Resource::kBytes] = 100;
  first.reset();
  const auto second = callers.Begin("ipv4:192.0.2.1:1");
  EXPECT_NE(second, call);
  EXPECT_EQ(second->delivered.bytes, 0);
  EXPECT_EQ(second->peer->holding[Resource::kBytes], 100) << "the address is the same";
  EXPECT_EQ(callers.Find("ipv4:192.0.2.1:1"), second);
}

TEST(CallersTest, TheEndOfAFormerConnectionLeavesItsSuccessor) {
  Callers callers;
  auto first = callers.Begin("ipv4:192.0.2.1:1");
  const auto second = callers.Begin("ipv4:192.0.2.1:1");
  first.reset();
  EXPECT_EQ(callers.Find("ipv4:192.0.2.1:1"), second);
}

TEST(CallersTest, NothingIsLeftOfThoseWhoAreGone) {
  Callers callers;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "ipv4:192.0.2." + std::to_string(i % 7) + ":" + std::to_string(i);
    const auto connection = callers.Begin(name);
    const auto call = callers.Find(name);
  }
  EXPECT_EQ(callers.connections(), 0U);
  EXPECT_EQ(callers.peers(), 0U);
}

// A thread that finds a caller while another drops its last reference finds a whole one, and
// threads that hold one of a name at the same time hold the same.
TEST(CallersTest, ManyThreadsComeAndGo) {
  Callers callers;
  std::atomic<bool> wrong{false};
  RunThreads(4, [&](int t) {
    for (int i = 0; i < 5000; ++i) {
      const std::string name = "ipv4:192.0.2." + std::to_string((i + t) % 3) + ":1";
      const auto mine = callers.Find(name);
      mine->holding[Resource::kBytes].fetch_add(1);
      mine->peer->holding[Resource::kBytes].fetch_add(1);
      const auto again = callers.Find(name);
      if (mine->name != name || again != mine) wrong = true;
      mine->peer->holding[Resource::kBytes].fetch_sub(1);
      mine->holding[Resource::kBytes].fetch_sub(1);
    }
  });
  EXPECT_FALSE(wrong);
  EXPECT_EQ(callers.connections(), 0U);
  EXPECT_EQ(callers.peers(), 0U);
}

TEST(CallersTest, AConnectionKeepsItsOriginAndACallThatFindsNoneHasNoRightsOfIts) {
  Callers callers;
  constexpr char kName[] = "ipv4:192.0.2.1:4711";
  EXPECT_FALSE(callers.Find(kName)->origin.admin_listener) << "nobody has begun it";
  const std::shared_ptr<Caller> admin = callers.Begin(kName, {true});
  EXPECT_TRUE(callers.Find(kName)->origin.admin_listener);
  EXPECT_TRUE(callers.IsOtherwise(kName, {false}));
  EXPECT_FALSE(callers.IsOtherwise(kName, {true}));
  EXPECT_TRUE(callers.IsOtherwise(kName, {true, 1})) << "another address of the server's";
  EXPECT_FALSE(callers.IsOtherwise("ipv4:192.0.2.1:4712", {false})) << "nobody's";
}

TEST(CallersTest, APeerByNameIsOneForAllWhoHoldIt) {
  Callers callers;
  const std::shared_ptr<Peer> one = callers.FindPeer("identity:a");
  EXPECT_EQ(callers.FindPeer("identity:a"), one);
  EXPECT_NE(callers.FindPeer("identity:b")->id, one->id);
  EXPECT_NE(callers.Find("ipv4:192.0.2.1:1")->peer->id, one->id);
}

}  // namespace
}  // namespace normd
