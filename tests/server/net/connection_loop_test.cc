// Which connections are accepted, which are ended, and what is known of each.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "server/net/connection_loop.h"
#include "server/net/socket_calls.h"
#include "server/net/tls_opening.h"
#include "tests/server/net/connection_loop_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

TEST_F(ConnectionLoopTest, TellsWithoutMemoryThatThereIsNoRoomWhenThereIsSome) {
  ConnectionLoopOptions options = Options();
  options.limits = {1, 1};
  without_memory_ = 1;
  Start(options);
  const Client first(port_);
  WaitUntil([&] { return without_memory_ == 0; });
  Client refused(port_);
  EXPECT_TRUE(refused.Closed());
  EXPECT_FALSE(NextRoom());
}

TEST_F(ConnectionLoopTest, RefusesBeyondTheLimitAndSaysWhenThereIsRoom) {
  ConnectionLoopOptions options = Options();
  options.limits = {3, 3};
  Start(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<Client>(port_));
  EXPECT_FALSE(NextRoom());
  Client refused(port_);
  EXPECT_TRUE(refused.Closed());
  EXPECT_EQ(MetricValue(metrics_, families::kConnectionsRefused, {"connections"}), 1);
  clients.pop_back();
  clients.pop_back();
  EXPECT_TRUE(NextRoom());
  Client taken(port_);
  Serve(taken);
}

TEST_F(ConnectionLoopTest, DoesNotBeginWithoutADescriptor) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW(ConnectionLoop(Options(), Listener(), {}, callers_,
                              metrics_.ForConnections(RequestPort::kGrpc)),
               std::system_error);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(ConnectionLoopTest, OnePeerHasItsShareAndAnotherItsOwn) {
  ConnectionLoopOptions options = Options();
  options.limits = {10, 2};
  Start(options);
  Client first(port_, "127.0.0.2");
  Client second(port_, "127.0.0.2");
  Client third(port_, "127.0.0.2");
  EXPECT_TRUE(third.Closed());
  EXPECT_EQ(MetricValue(metrics_, families::kConnectionsRefused, {"peer_connections"}), 1);
  Client other(port_, "127.0.0.3");
  const Taken taken = Serve(other);
  first.Close();
  WaitOpen(2);
  Client again(port_, "127.0.0.2");
  Serve(again);
}

TEST_F(ConnectionLoopTest, EndsWhoeverDoesNotBeginInTime) {
  ConnectionLoopOptions options = Options();
  options.handshake_timeout = std::chrono::milliseconds(50);
  Start(options);
  Client silent(port_);
  Client half(port_);
  half.Send(kHello.substr(0, 10));
  EXPECT_TRUE(silent.Closed());
  EXPECT_TRUE(half.Closed());
  Client unacknowledged(port_);
  unacknowledged.Send(kHello);
  EXPECT_EQ(unacknowledged.Read(21).size(), 21u);
  EXPECT_TRUE(unacknowledged.Closed());
  EXPECT_EQ(Ended(ConnectionEnding::kHandshakeTimeout), 3);
}

TEST_F(ConnectionLoopTest, KeepsNobodyWhoLeavesAmidTheOpening) {
  ExpectNoneKeptOfParts(kHello + kAck, Options());
}

TEST_F(ConnectionLoopTest, NoticesTheEndOfAConnectionFromEitherSide) {
  Start(Options());
  Client first(port_);
  Client second(port_);
  {
    Taken one = Serve(first);
    Taken two = Serve(second);
    EXPECT_EQ(MetricValue(metrics_, families::kConnections), 2);
    shutdown(one.socket.get(), SHUT_RDWR);  // As gRPC does before it closes.
    WaitOpen(1);
    EXPECT_TRUE(first.Read(kOwnSettings.size() + 21).size() > 0);
    EXPECT_TRUE(first.Closed());
    second.Close();
    shutdown(two.socket.get(), SHUT_RDWR);  // Which gRPC does when it has read the end.
    WaitOpen(0);
  }
}

// It has the socket, and never closes it.
TEST_F(ConnectionLoopTest, EndsAConnectionWhoseOwnerFindsNoMemory) {
  owner_without_memory_ = true;
  Start(Options());
  Client client(port_);
  client.Send(kHello + kAck);
  const Taken kept = Take();
  WaitOpen(0);
  while (client.Read(1).size() == 1) {  // The loop's settings, and then its end.
  }
  Client next(port_);
  const Taken taken = Serve(next);
  WaitOpen(1);
}

TEST_F(ConnectionLoopTest, EndsWhatReceivesMoreThanIsDelivered) {
  Start(Options());
  Client client(port_);
  Taken taken = Serve(client);
  std::string bytes(1 << 16, 'x');
  for (int i = 0; i < 64; ++i) {
    client.Send(bytes);
    std::string read(1 << 16, '\0');
    if (!Readable(taken.socket, kWaitMillis) ||
        recv(taken.socket.get(), read.data(), read.size(), 0) <= 0)
      break;
  }
  WaitOpen(0);
  EXPECT_EQ(Ended(ConnectionEnding::kOversize), 1);
}

constexpr std::int64_t kMiB = 1 << 20;

// In whatever order they came, and however new it is: the next address finds room.
TEST_F(ConnectionLoopTest, TheAddressThatHoldsTheMostMakesRoom) {
  for (const bool most_first : {true, false}) {
    ConnectionLoopOptions options = Options();
    options.traffic.connection_bytes = 1000 * kMiB;
    options.traffic.process_bytes = 24 * kMiB;
    Start(options);
    const std::int64_t before = Ended(ConnectionEnding::kTransportBytes);
    // One connection holds the most, and two of another address hold more together.
    Client honest(port_, "127.0.0.3");
    Client first(port_, "127.0.0.2");
    Client second(port_, "127.0.0.2");
    Taken of_honest = Serve(honest);
    Taken of_first = Serve(first);
    Taken of_second = Serve(second);
    if (most_first) Upload(honest, of_honest, 9 * kMiB);
    Upload(first, of_first, 8 * kMiB);
    if (!most_first) Upload(honest, of_honest, 9 * kMiB);
    Upload(second, of_second, 20 * kMiB);
    WaitUntil([&] { return Ended(ConnectionEnding::kTransportBytes) != before; });
    char left[100];
    EXPECT_GT(recv(of_honest.socket.get(), left, sizeof(left), MSG_PEEK | MSG_DONTWAIT), 0);
    WaitOpen(2);
    loop_.reset();
  }
}

TEST_F(ConnectionLoopTest, WhatTheHeapDoesNotHoldIsHeldAgainstNobody) {
  ConnectionLoopOptions options = Options();
  options.traffic.connection_bytes = 24 * kMiB;
  options.traffic.process_bytes = 24 * kMiB;
  heap_ = 100 * kMiB;
  Start(options);
  Client client(port_);
  Taken taken = Serve(client);
  Upload(client, taken, 200 * kMiB);
  EXPECT_EQ(MetricValue(metrics_, families::kConnections), 1);
  heap_growth_ = 100 * kMiB;
  Upload(client, taken, 200 * kMiB);
  WaitOpen(0);
}

// The requests that were inside have ended, and the heap is as large as before.
TEST_F(ConnectionLoopTest, WhatRequestsGiveBackHidesNothing) {
  ConnectionLoopOptions options = Options();
  options.traffic.connection_bytes = 24 * kMiB;
  options.traffic.process_bytes = 24 * kMiB;
  heap_ = inside_ = 1000 * kMiB;
  Start(options);
  Client client(port_);
  Taken taken = Serve(client);
  Upload(client, taken, 200 * kMiB);
  WaitOpen(0);
}

TEST_F(ConnectionLoopTest, NothingIsUndeliveredWhereNoStreamWaits) {
  ConnectionLoopOptions options = Options();
  options.traffic.message_timeout = std::chrono::seconds(2);
  options.traffic.min_bytes_per_second = 4096;
  options.traffic.connection_bytes = 1000 * kMiB;
  streams_ = 1;
  Start(options);
  Client client(port_);
  Taken taken = Serve(client);
  const std::shared_ptr<Caller> caller = callers_.Find(NameOf(client));
  {
    const CallInside inside(caller.get());
    Upload(client, taken, 2 * kMiB);
    WaitUntil([&] { return MetricValue(metrics_, families::kUndeliveredBytes) != 0; });
    WaitUntil([&] {
      return MetricValue(metrics_, families::kUndeliveredBytes) <= Undelivered::kNoticeableBytes;
    });
    EXPECT_EQ(MetricValue(metrics_, families::kConnections), 1);
  }
  // Its stream waits now.
  Upload(client, taken, 2 * kMiB);
  WaitUntil([&] { return Ended(ConnectionEnding::kMessageTimeout) != 0; });
}

// A client may send more than is read at once before it hears of the server's settings; it then
// waits for them.
TEST_F(ConnectionLoopTest, AnOpeningIsReadToItsEndWhereverItIsCut) {
  ConnectionLoopOptions options = Options();
  options.handshake_timeout = std::chrono::seconds(2);
  Start(options);
  constexpr std::size_t kReadAtOnce = 16384;
  constexpr std::size_t kHeadBytes = 9;
  for (std::size_t cut = 0; cut <= kHeadBytes; ++cut) {
    // A frame of an unknown type, after which `cut` bytes of the next one's head are read.
    const std::size_t size = kReadAtOnce - kHello.size() - kHeadBytes - cut;
    const std::string head{
        '\0', static_cast<char>(size >> 8), static_cast<char>(size), 'u', 0, 0, 0, 0, 0};
    Client client(port_);
    client.Send(kHello + head + std::string(size, 'x') + kAck);
    WaitUntil([&] { return !NothingTaken() || Ended(ConnectionEnding::kHandshakeTimeout) != 0; });
    ASSERT_FALSE(NothingTaken()) << cut;
    Take();
  }
}

TEST_F(ConnectionLoopTest, ACallerKnowsByWhichListenerItCame) {
  Start(Options());
  Client client(port_);
  Client admin(admin_port_);
  const Taken one = Serve(client);
  const Taken two = Serve(admin);
  EXPECT_FALSE(callers_.Find(NameOf(client))->origin.admin_listener);
  EXPECT_TRUE(callers_.Find(NameOf(admin))->origin.admin_listener);
}

// Calls find their connection by the client's address and port, so one that has the same at both
// listeners would have the rights and the counts of both.
TEST_F(ConnectionLoopTest, NoConnectionBorrowsTheOriginOfOneWithTheSameAddressAndPort) {
  Start(Options());
  // The first connection's listener, and the second one's.
  for (const auto& [at, other] : {std::pair(&port_, &admin_port_), std::pair(&admin_port_, &port_),
                                  std::pair(&port_, &second_port_)}) {
    Client first(*at);
    Taken taken = Serve(first);
    Client second(*other, "127.0.0.1", first.source_port());
    ASSERT_EQ(second.source_port(), first.source_port());
    second.Send(kHello + kAck);
    while (second.Read(1).size() == 1) {  // The loop's settings, and then its end.
    }
    EXPECT_TRUE(NothingTaken());
    EXPECT_EQ(callers_.Find(NameOf(first))->origin.admin_listener, at == &admin_port_);
    first.Close();
    taken.socket.Reset();
    loop_.reset();
    Start(Options());
  }
}

// Connections with TLS, of which the loop sees the hello alone.

class ConnectionTlsTest : public ConnectionLoopTest {};

// A client's hello, with the newest version that it offers.
std::string TlsHello(std::uint8_t minor = 3) {
  const std::string body = std::string("\x03") + static_cast<char>(minor) + std::string(32, 'r') +
                           std::string("\0\0\x02\x13\x01\x01\0", 7);
  const std::string message = std::string("\x01\0\0", 3) + static_cast<char>(body.size()) + body;
  return std::string("\x16\x03\x01\0", 4) + static_cast<char>(message.size()) + message;
}

TEST_F(ConnectionTlsTest, WithTlsHandsOnTheWholeHelloUnread) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  Start(options);
  const std::string hello = TlsHello();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{5}, hello.size() - 1}) {
    Client client(port_);
    client.Send(hello.substr(0, size));
    // The next one is taken all the same, and this one when it is whole.
    Client next(port_);
    next.Send(hello + "what follows");
    const Taken taken_next = Take();
    EXPECT_EQ(taken_next.first_bytes, "");
    std::string there(hello.size() + 12, '\0');
    EXPECT_EQ(recv(taken_next.socket.get(), there.data(), there.size(), 0),
              static_cast<ssize_t>(there.size()));
    EXPECT_EQ(there, hello + "what follows");
    EXPECT_TRUE(NothingTaken());
    client.Send(hello.substr(size));
    const Taken taken = Take();
    EXPECT_TRUE(Readable(taken.socket, kWaitMillis));
    EXPECT_EQ(recv(taken.socket.get(), there.data(), there.size(), 0),
              static_cast<ssize_t>(hello.size()));
  }
}

TEST_F(ConnectionTlsTest, WithTlsEndsWhatIsNoHello) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  options.handshake_timeout = std::chrono::milliseconds(50);
  Start(options);
  Client plain(port_);
  plain.Send(kHello + kAck);
  EXPECT_TRUE(plain.Closed());
  EXPECT_EQ(Ended(ConnectionEnding::kNoTls), 1);
  Client old(port_);
  old.Send(TlsHello(/*minor=*/2));
  EXPECT_EQ(old.Read(7).substr(5), "\x02\x46");
  EXPECT_TRUE(old.Closed());
  EXPECT_EQ(Ended(ConnectionEnding::kOldTls), 1);
  Client half(port_);
  half.Send(TlsHello().substr(0, 20));
  EXPECT_TRUE(half.Closed());
  EXPECT_EQ(Ended(ConnectionEnding::kHandshakeTimeout), 1);
  EXPECT_TRUE(NothingTaken());
  WaitOpen(0);
}

TEST_F(ConnectionTlsTest, KeepsNobodyWhoLeavesAmidTheHello) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  ExpectNoneKeptOfParts(TlsHello(), options);
}

// A connection that was handed on is watched and ended as without TLS.
TEST_F(ConnectionTlsTest, WithTlsWatchesTheTraffic) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  Start(options);
  Client client(port_);
  client.Send(TlsHello());
  Taken taken = Take();
  std::thread sender([&] { client.Send(std::string(std::size_t{8} << 20, 'x')); });
  std::vector<char> buffer(1 << 16);
  while (Readable(taken.socket, kWaitMillis) &&
         recv(taken.socket.get(), buffer.data(), buffer.size(), 0) > 0) {
  }
  taken.socket.Reset();
  sender.join();
  WaitOpen(0);
  EXPECT_EQ(Ended(ConnectionEnding::kOversize), 1);
}

// The limit on streams also holds for a client that acknowledges no settings.
TEST_F(ConnectionTlsTest, WithTlsEndsAConnectionWithTooManyStreams) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  options.max_streams = 100;
  options.traffic.connection_bytes = std::int64_t{1} << 40;
  streams_ = 100;
  Start(options);
  Client client(port_);
  client.Send(TlsHello());
  Taken taken = Take();
  std::vector<char> buffer(1 << 16);
  const auto send_while = [&](const auto& going) {
    while (going()) {
      client.Send(std::string(1 << 10, 'x'));
      (void)!recv(taken.socket.get(), buffer.data(), buffer.size(), 0);
    }
  };
  send_while([&] { return counts_ < 2; });
  EXPECT_EQ(Ended(ConnectionEnding::kOversize), 0);
  streams_ = 101;
  send_while([&] { return Ended(ConnectionEnding::kOversize) == 0; });
  EXPECT_TRUE(client.Closed());
  taken.socket.Reset();
  WaitOpen(0);
  EXPECT_EQ(Ended(ConnectionEnding::kOversize), 1);
}

}  // namespace
}  // namespace normd::testing
