// The end of the loop, and of all connections before it.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "server/net/connection_loop.h"
#include "server/net/socket_calls.h"
#include "tests/server/net/connection_loop_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

class ConnectionCloseTest : public ConnectionLoopTest {};

// Reads what there is up to the end of the connection.
bool ReadsTheEnd(const Descriptor& socket) {
  char bytes[256];
  while (Readable(socket, kWaitMillis)) {
    const ssize_t got = recv(socket.get(), bytes, sizeof(bytes), 0);
    if (got == 0) return true;
    if (got < 0) return false;
  }
  return false;
}

TEST_F(ConnectionCloseTest, ClosesConnectionsOfEveryStageAndWaitsForTheirOwners) {
  Start(Options());
  Client silent(port_);
  Client opening(port_);
  opening.Send(kHello);
  Client held(port_);
  held.Send(kHello + kAck);
  Taken owner = Take();
  Client serving(port_);
  Taken served = Serve(serving);
  WaitOpen(4);
  std::thread closing([this] { loop_->CloseAll(std::chrono::hours(1)); });
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(opening.Read(21).size(), 21u);
  EXPECT_TRUE(opening.Closed());
  for (Taken* taken : {&owner, &served}) {
    EXPECT_TRUE(ReadsTheEnd(taken->socket));
    shutdown(taken->socket.get(), SHUT_RDWR);
    taken->socket.Reset();
  }
  closing.join();
  EXPECT_EQ(MetricValue(metrics_, families::kConnections), 0);
  Descriptor late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<in_port_t>(port_));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  EXPECT_NE(connect(late.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
}

TEST_F(ConnectionCloseTest, ClosesAConnectionOnlyWhenItsClientHasWhatWasSent) {
  Start(Options());
  Client client(port_);
  Taken taken = Serve(client);
  const std::string sent(4 << 20, 'a');
  std::size_t written = 0;
  // As much as the two systems take: the rest waits here for the client to read.
  for (;;) {
    const ssize_t size = send(taken.socket.get(), sent.data(), sent.size(), MSG_DONTWAIT);
    if (size <= 0) break;
    written += static_cast<std::size_t>(size);
  }
  std::thread closing([this] { loop_->CloseAll(std::chrono::hours(1)); });
  std::size_t left = kOwnSettings.size() + written;
  while (left > 0) {
    const std::size_t read = client.Read(std::min<std::size_t>(left, 1 << 16)).size();
    ASSERT_GT(read, 0u) << left << " bytes are lost";
    left -= read;
  }
  EXPECT_TRUE(ReadsTheEnd(taken.socket));
  shutdown(taken.socket.get(), SHUT_RDWR);
  closing.join();
}

TEST_F(ConnectionCloseTest, ClosesConnectionsThatAreNotReadWhenTheGraceIsOver) {
  Start(Options());
  Client client(port_);
  Taken taken = Serve(client);
  const std::string sent(4 << 20, 'a');
  while (send(taken.socket.get(), sent.data(), sent.size(), MSG_DONTWAIT) > 0) {
  }
  loop_->CloseAll(Duration(0));
  EXPECT_TRUE(ReadsTheEnd(taken.socket));
}

TEST_F(ConnectionCloseTest, StopsOnlyWhenAllThatWaitForTheirOwnerHaveIt) {
  Start(Options());
  SetOwnerSlow(true);
  Client first(port_);
  first.Send(kHello + kAck);
  Taken taken_first = Take();
  Client second(port_);
  second.Send(kHello);
  EXPECT_EQ(second.Read(21).size(), 21u);
  second.Send(kAck);
  Client flooding(port_);
  flooding.Send(kHello);
  EXPECT_EQ(flooding.Read(21).size(), 21u);
  flooding.Send(kAck);
  Client opening(port_);  // The loop greets it after it has read the acknowledgement above.
  opening.Send(kHello);
  EXPECT_EQ(opening.Read(21).size(), 21u);
  std::thread stopping([this] { loop_.reset(); });
  EXPECT_TRUE(opening.Closed());
  flooding.Send(std::string(8 << 20, 'f'));  // Ends, because the loop still watches.
  SetOwnerSlow(false);
  Taken taken_second = Take();
  Taken ended = Take();
  stopping.join();
  EXPECT_EQ(ReadAll(ended.socket).size(), 0u);
  EXPECT_TRUE(Readable(taken_first.socket, kWaitMillis));
  EXPECT_TRUE(Readable(taken_second.socket, kWaitMillis));
}

TEST_F(ConnectionCloseTest, StopsWithConnectionsInEveryStage) {
  Start(Options());
  Client silent(port_);
  Client opening(port_);
  opening.Send(kHello);
  Client held(port_);
  held.Send(kHello + kAck);
  Taken owner = Take();
  Client serving(port_);
  Taken served = Serve(serving);
  loop_.reset();
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(opening.Read(21).size(), 21u);
  EXPECT_TRUE(opening.Closed());
  // Connections that were handed on belong to their owners.
  EXPECT_TRUE(Readable(owner.socket, kWaitMillis));
  serving.Send("x");
  EXPECT_TRUE(Readable(served.socket, kWaitMillis));
}

// Connections on their way to their owner, over HTTP/2 without TLS.

class ConnectionHandOverTest : public ConnectionLoopTest {};

TEST_F(ConnectionHandOverTest, HandsOnWithTheAcknowledgementNext) {
  Start(Options());
  Client client(port_);
  client.Send(kHello);
  EXPECT_EQ(client.Read(21), Http2Settings(100, 8192));
  client.Send(kAck + "more");
  Taken taken = Take();
  EXPECT_EQ(taken.first_bytes, kHello);
  (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
  ASSERT_TRUE(Readable(taken.socket, kWaitMillis));
  char bytes[64];
  const ssize_t got = recv(taken.socket.get(), bytes, sizeof(bytes), 0);
  EXPECT_EQ(std::string(bytes, static_cast<std::size_t>(got)), kAck + "more");
}

TEST_F(ConnectionHandOverTest, NothingIsToBeReadBeforeTheOwnersSettingsHaveLeft) {
  Start(Options());
  for (int round = 0; round < 20; ++round) {
    Client client(port_);
    client.Send(kHello + kAck + std::string(1000, 'd'));
    Taken taken = Take();
    EXPECT_FALSE(Readable(taken.socket, 5));
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    EXPECT_TRUE(Readable(taken.socket, kWaitMillis));
  }
}

TEST_F(ConnectionHandOverTest, AcceptsJudgesAndClosesWhileAnOwnerTakesLong) {
  ConnectionLoopOptions options = Options();
  options.limits = {4, 4};
  options.handshake_timeout = std::chrono::milliseconds(50);
  Start(options);
  SetOwnerSlow(true);
  Client first(port_);
  first.Send(kHello + kAck);
  Taken taken_first = Take();
  Client second(port_);
  second.Send(kHello);
  EXPECT_EQ(second.Read(21), Http2Settings(100, 8192));
  second.Send(kAck);
  Client silent(port_);
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(Ended(ConnectionEnding::kHandshakeTimeout), 1);
  Client third(port_);
  third.Send(kHello + kAck);
  Client fourth(port_);
  fourth.Send(kHello + kAck);
  EXPECT_FALSE(NextRoom());
  Client refused(port_);
  EXPECT_TRUE(refused.Closed());
  EXPECT_TRUE(NothingTaken());
  SetOwnerSlow(false);
  for (int waiting = 0; waiting < 3; ++waiting) Take();
}

TEST_F(ConnectionHandOverTest, EndsAFloodBeforeTheOwnersSettingsAndLeavesNoneOfItToBeRead) {
  Start(Options());
  const std::string flood(8 << 20, 'f');
  std::int64_t ended = 0;
  for (const bool at_once : {true, false}) {
    for (const bool slow : {true, false}) {
      SetOwnerSlow(slow);
      Client client(port_);
      Client patient(port_);
      if (at_once) {
        client.Send(kHello + kAck + flood);  // Up to its end: nobody reads.
      } else {
        client.Send(kHello + kAck);
      }
      Taken taken = Take();
      if (!at_once) client.Send(flood);
      WaitOpen(1);
      ++ended;
      EXPECT_EQ(Ended(ConnectionEnding::kOversize), ended);
      EXPECT_EQ(ReadAll(taken.socket).size(), 0u) << slow << at_once;
      SetOwnerSlow(false);
      patient.Close();
      WaitOpen(0);
    }
  }
}

TEST_F(ConnectionHandOverTest, KeepsWhatAClientMaySendBeforeTheOwnersSettings) {
  Start(Options());
  for (const bool slow : {true, false}) {
    SetOwnerSlow(slow);
    Client client(port_);
    // The least that a client may send, and what the loop allows.
    const std::string data = std::string(65535, 'a') + std::string((512 << 10) - 65535 - 9, 'b');
    client.Send(kHello + kAck + data);
    Taken taken = Take();
    WaitUntil([&] { return UnreadBytes(taken.socket.get()) >= (512 << 10); });
    EXPECT_FALSE(Readable(taken.socket, 20));
    EXPECT_EQ(MetricValue(metrics_, families::kConnections), 1);
    SetOwnerSlow(false);
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    ASSERT_TRUE(Readable(taken.socket, kWaitMillis));
    shutdown(taken.socket.get(), SHUT_WR);
    client.Close();
    EXPECT_EQ(ReadAll(taken.socket), kAck + data);
    WaitOpen(0);
  }
}

TEST_F(ConnectionHandOverTest, AClientThatHasTheOwnersSettingsSendsWhatItLikesUntilTheOwnerIsLate) {
  for (const bool late : {false, true}) {
    ConnectionLoopOptions options = Options();
    options.traffic.connection_bytes = 1 << 30;
    options.hand_over_timeout =
        late ? std::chrono::milliseconds(20) : Duration(std::chrono::hours(1));
    loop_ = nullptr;
    Start(options);
    SetOwnerSlow(true);
    Client client(port_);
    client.Send(kHello + kAck);
    Taken taken = Take();
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    EXPECT_EQ(client.Read(kOwnSettings.size()), kOwnSettings);
    const std::string data(900 << 10, 'd');
    client.Send(data);
    if (late) {
      WaitOpen(0);
      EXPECT_EQ(Ended(ConnectionEnding::kOversize), 1);
      EXPECT_EQ(ReadAll(taken.socket).size(), 0u);
      SetOwnerSlow(false);
      continue;
    }
    WaitUntil([&] { return UnreadBytes(taken.socket.get()) >= (512 << 10); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // Several looks of the loop.
    EXPECT_EQ(MetricValue(metrics_, families::kConnections), 1);
    SetOwnerSlow(false);
    client.Close();
    EXPECT_EQ(ReadAll(taken.socket), kAck + data);
    shutdown(taken.socket.get(), SHUT_RDWR);
    WaitOpen(0);
  }
}

}  // namespace
}  // namespace normd::testing
