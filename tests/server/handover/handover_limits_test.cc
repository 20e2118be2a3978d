// How many connections there may be, who of them gives way, and that none holds up the others.

#include "server/handover/handover_limits.h"

#include <netinet/in.h>
#include <sys/wait.h>

#include <future>

#include "server/net/connection_policy.h"
#include "tests/server/handover/region_listener_fixture.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

TEST(HandoverLimitsTest, TheyAndTheConnectionsOfThePortFitTheDescriptorsThatAreLeft) {
  int decided = 0;
  for (std::int64_t descriptors = 8; descriptors <= 1 << 20;
       descriptors = descriptors * 5 / 4 + 1) {
    for (const std::int64_t open : {10, 45, 300}) {
      for (const std::int64_t regions : {1, 2, 1024, 65536}) {
        const auto limits = DecideHandoverLimits(regions, descriptors, open);
        if (!limits.ok()) continue;
        ++decided;
        EXPECT_GE(limits->without_regions, 1U);
        EXPECT_GE(limits->with_regions, 1U);
        EXPECT_GE(limits->owner_with_regions, 1U);
        EXPECT_LE(limits->owner_with_regions, limits->with_regions);
        const std::int64_t taken = open + DescriptorsOf(*limits);
        const ConnectionLimits port = DecideLimits(0, 0, descriptors, taken);
        EXPECT_LE(taken + port.connections * kDescriptorsPerConnection + kReservedDescriptors,
                  descriptors)
            << descriptors << " " << open << " " << regions;
      }
    }
  }
  EXPECT_GT(decided, 100);
}

TEST(HandoverLimitsTest, EachRegionMayHaveAConnectionWhereDescriptorsAreEnough) {
  const auto limits = DecideHandoverLimits(1024, 1 << 20, 45);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->without_regions, 256U);
  EXPECT_EQ(limits->with_regions, 1024U);
  EXPECT_EQ(limits->owner_with_regions, 1024U);
}

TEST(HandoverLimitsTest, OneOwnerLeavesAQuarterWhereTheyAreNot) {
  const auto limits = DecideHandoverLimits(1024, 1024, 45);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_LT(limits->with_regions, 200U);
  EXPECT_LE(limits->owner_with_regions, limits->with_regions * 3 / 4 + 1);
}

TEST(HandoverLimitsTest, FewerThanOnePacketMayBringAreAnError) {
  const absl::Status status = DecideHandoverLimits(1024, 256, 45).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("256 descriptors"));
}

TEST_F(RegionListenerTest, RegionsHaveALimit) {
  const Descriptor socket = Connect();
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  absl::StatusCode code = absl::StatusCode::kOk;
  int registered = 0;
  for (; code == absl::StatusCode::kOk && registered < 1000; ++registered) {
    code = Register(socket, memory.get())->code;
  }
  EXPECT_EQ(code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(registered, 65);
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 64);
}

TEST_F(RegionListenerTest, SilentConnectionsKeepNobodyOut) {
  Start({4, 64, 64});
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  const Descriptor holder = Connect();
  const auto held = Register(holder, memory.get());
  ASSERT_TRUE(held.has_value());
  std::vector<Descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect());
  const auto reply = Register(Connect(), memory.get());
  ASSERT_TRUE(reply.has_value()) << "a newcomer was kept out";
  EXPECT_EQ(reply->code, absl::StatusCode::kOk) << reply->text;
  EXPECT_TRUE(registry_.Find("", held->text).ok()) << "who holds a region never gives way";
  EXPECT_GE(MetricValue(metrics_, families::kSharedConnectionsEnded, {"no_region"}), 97);
  EXPECT_LE(MetricValue(metrics_, families::kSharedConnections), 6);
}

TEST_F(RegionListenerTest, WhoWasSilentLongestGivesWay) {
  Start({2, 64, 64});
  const Descriptor first = Connect();
  const Descriptor second = Connect();
  ASSERT_TRUE(Exchange(second, "x", {}).has_value());
  ASSERT_TRUE(Exchange(first, "x", {}).has_value());
  const Descriptor third = Connect();
  ASSERT_TRUE(Exchange(third, "x", {}).has_value());
  EXPECT_FALSE(Exchange(second, "x", {}).has_value());
  EXPECT_TRUE(Exchange(first, "x", {}).has_value());
}

TEST_F(RegionListenerTest, AProcessThatFillsThePlaceLosesItsOwnConnections) {
  Start({4, 64, 64});
  const Descriptor neighbour = Connect();
  ASSERT_TRUE(Exchange(neighbour, "x", {}).has_value());
  const pid_t child = fork();
  if (child == 0) {
    std::vector<Descriptor> silent;
    for (int i = 0; i < 100; ++i) silent.push_back(Connect());
    // The last one is there once it has a reply.
    _exit(Exchange(silent.back(), "x", {}).has_value() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(Register(neighbour, Memory(kPage, F_SEAL_SHRINK).get()).has_value())
      << "its connection gave way to another process's";
}

TEST_F(RegionListenerTest, ConnectionsWithRegionsLeaveRoomToOtherOwners) {
  Start({4, 3, 2});
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  std::vector<Descriptor> sockets;
  const auto register_anew = [&](const std::string& authorization) {
    sockets.push_back(Connect());
    return Register(sockets.back(), memory.get(), authorization)->code;
  };
  EXPECT_EQ(register_anew("Bearer alices"), absl::StatusCode::kOk);
  EXPECT_EQ(register_anew("Bearer alices"), absl::StatusCode::kOk);
  EXPECT_EQ(Register(sockets[0], memory.get(), "Bearer alices")->code, absl::StatusCode::kOk);
  const auto refused = Register(Connect(), memory.get(), "Bearer alices");
  EXPECT_EQ(refused->code, absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused->text, HasSubstr("connections: 2 hold regions, 2 of them of this client's"));
  EXPECT_EQ(register_anew(""), absl::StatusCode::kOk);
  EXPECT_EQ(register_anew(""), absl::StatusCode::kResourceExhausted);
  sockets.erase(sockets.begin());
  AwaitMapped(2);
  EXPECT_EQ(register_anew(""), absl::StatusCode::kOk);
}

// The thread is kept busy until so many wait to be accepted, and then finds packets besides.
TEST_F(RegionListenerTest, AFloodOfConnectsHoldsUpNoPacket) {
  constexpr int kFlood = 120;
  int registrations = 0;
  std::promise<void> busy;
  std::promise<void> go_on;
  std::int64_t before_third = 0;
  on_registration_ = [&] {
    ++registrations;
    if (registrations == 1) {
      busy.set_value();
      go_on.get_future().wait();
    }
    if (registrations == 3) before_third = MetricValue(metrics_, families::kSharedConnections);
  };
  Start({1000, 64, 64});
  const Descriptor neighbour = Connect();
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  ASSERT_TRUE(Send(neighbour, EncodeRegionRequest({}), {memory.get()}));
  busy.get_future().wait();
  std::vector<Descriptor> flood;
  for (int i = 0; i < kFlood; ++i) flood.push_back(Connect());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Send(neighbour, EncodeRegionRequest({}), {memory.get()}));
  }
  go_on.set_value();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Receive(neighbour).has_value());
  EXPECT_LE(before_third, 1 + 64) << "all were accepted before the next packet";
}

// A TCP connection whose last close(2) waits, for an hour if nobody ends it.
class LingeringSocket {
 public:
  LingeringSocket() {
    const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* const generic = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(bind(listener.get(), generic, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), generic, &size), 0);
    mine.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(mine.get(), generic, size), 0);
    peer.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string unsent(1 << 16, 'x');
    while (send(mine.get(), unsent.data(), unsent.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hour = {1, 3600};
    EXPECT_EQ(setsockopt(mine.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)), 0);
  }
  Descriptor mine;
  Descriptor peer;  // A waiting close(2) continues when it is closed.
};

class PassedSocketTest : public RegionListenerTest {
 protected:
  // Sends something while the listener's thread is busy, so that the last copies of the descriptors
  // in it are in the packets when it goes on.
  void SendUnseen(const std::function<void(const Descriptor& attacker)>& send) {
    std::promise<void> busy;
    std::promise<void> go_on;
    on_registration_ = [&, first = true]() mutable {
      if (!std::exchange(first, false)) return;
      busy.set_value();
      go_on.get_future().wait();
    };
    Start();
    Descriptor attacker = Connect();
    ASSERT_TRUE(Exchange(attacker, "x", {}).has_value());
    neighbour_ = Connect();
    ASSERT_TRUE(Send(neighbour_, EncodeRegionRequest({}), {memory_.get()}));
    busy.get_future().wait();
    send(attacker);
    attacker.Reset();
    go_on.set_value();
    ASSERT_TRUE(Receive(neighbour_).has_value());
  }
  void ExpectNeighbourIsServed() {
    const auto reply = Register(neighbour_, memory_.get());
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->code, absl::StatusCode::kOk) << reply->text;
  }
  // A unix socket in which the lingering one lies unread.
  static Descriptor Nested(LingeringSocket& lingering) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const Descriptor sender(ends[0]);
    EXPECT_TRUE(Send(sender, "x", {lingering.mine.get()}));
    lingering.mine.Reset();
    return Descriptor(ends[1]);
  }

  const Descriptor memory_ = Memory(kPage, F_SEAL_SHRINK);
  Descriptor neighbour_;
};

TEST_F(PassedSocketTest, HoldsUpNobody) {
  for (const std::size_t others : {0, 3, 4, 252}) {
    LingeringSocket lingering;
    SendUnseen([&](const Descriptor& attacker) {
      std::vector<int> files(others, memory_.get());
      files.push_back(lingering.mine.get());
      ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), files)) << others;
      lingering.mine.Reset();
    });
    ExpectNeighbourIsServed();
    listener_.reset();
  }
}

TEST_F(PassedSocketTest, HoldsUpNobodyUnreadWhenItsConnectionEnds) {
  LingeringSocket lingering;
  SendUnseen([&](const Descriptor& attacker) {
    ASSERT_TRUE(Send(attacker, "", {}));  // Ends the connection.
    ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), {lingering.mine.get()}));
    lingering.mine.Reset();
  });
  ExpectNeighbourIsServed();
  listener_.reset();
}

TEST_F(PassedSocketTest, HoldsUpNobodyInsideAnother) {
  LingeringSocket lingering;
  SendUnseen([&](const Descriptor& attacker) {
    const Descriptor nested = Nested(lingering);
    ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), {nested.get()}));
  });
  ExpectNeighbourIsServed();
  listener_.reset();  // While it still lingers.
}

TEST_F(PassedSocketTest, ManyThatLingerAreBoundedAndHoldUpNoStop) {
  for (const bool stop : {true, false}) {
    LingeringSocket lingering;
    SendUnseen([&](const Descriptor& attacker) {
      const Descriptor nested = Nested(lingering);
      ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), {nested.get()}));
    });
    const Descriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
    const std::vector<int> many(kMaxUnclosed + 1, null.get());
    EXPECT_EQ(Exchange(neighbour_, EncodeRegionRequest({}), many)->code,
              absl::StatusCode::kInvalidArgument);
    // From here on nobody is served before the lingering one is closed.
    ASSERT_TRUE(Send(neighbour_, EncodeRegionRequest({}), {memory_.get()}));
    if (stop) {
      listener_.reset();
      continue;
    }
    lingering.peer.Reset();
    EXPECT_EQ(Receive(neighbour_)->code, absl::StatusCode::kOk);
  }
}

}  // namespace
}  // namespace normd
