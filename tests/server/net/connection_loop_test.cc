// Who is taken, who is ended, and what is known of whom.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/net/connection_loop.h"
#include "server/net/socket_calls.h"
#include "tests/server/net/connection_loop_fixture.h"

namespace normd {
namespace {

using testing::Client;
using testing::ConnectionLoopTest;
using testing::kAck;
using testing::kHello;
using testing::kOwnSettings;
using testing::kWaitMillis;
using testing::Readable;
using testing::Taken;

TEST_F(ConnectionLoopTest, RefusesBeyondTheLimitAndSaysWhenThereIsRoom) {
  ConnectionLoopOptions options = Options();
  options.limits = {3, 3};
  Start(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<Client>(port_));
  EXPECT_FALSE(NextRoom());
  Client refused(port_);
  EXPECT_TRUE(refused.Closed());
  EXPECT_EQ(metrics_.refused[static_cast<std::size_t>(ConnectionRefusal::kFull)], 1);
  clients.pop_back();
  clients.pop_back();
  EXPECT_TRUE(NextRoom());
  Client taken(port_);
  Serve(taken);
}

TEST_F(ConnectionLoopTest, OnePeerHasItsShareAndAnotherItsOwn) {
  ConnectionLoopOptions options = Options();
  options.limits = {10, 2};
  Start(options);
  Client first(port_, "127.0.0.2");
  Client second(port_, "127.0.0.2");
  Client third(port_, "127.0.0.2");
  EXPECT_TRUE(third.Closed());
  EXPECT_EQ(metrics_.refused[static_cast<std::size_t>(ConnectionRefusal::kPeerFull)], 1);
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
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kHandshakeTimeout)], 3);
}

TEST_F(ConnectionLoopTest, KeepsNobodyWhoLeavesAmidTheOpening) {
  ExpectNoneKeptOfParts(testing::kHello + testing::kAck, Options());
}

TEST_F(ConnectionLoopTest, NoticesTheEndOfAConnectionFromEitherSide) {
  Start(Options());
  Client first(port_);
  Client second(port_);
  {
    Taken one = Serve(first);
    Taken two = Serve(second);
    EXPECT_EQ(metrics_.open, 2);
    shutdown(one.socket.get(), SHUT_RDWR);  // As gRPC does before it closes.
    WaitOpen(1);
    EXPECT_TRUE(first.Read(kOwnSettings.size() + 21).size() > 0);
    EXPECT_TRUE(first.Closed());
    second.Close();
    shutdown(two.socket.get(), SHUT_RDWR);  // Which gRPC does when it has read the end.
    WaitOpen(0);
  }
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
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 1);
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

}  // namespace
}  // namespace normd
