// Connections with TLS, of which the loop sees the hello alone.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "server/net/connection_loop.h"
#include "server/net/socket_calls.h"
#include "server/net/tls_opening.h"
#include "tests/server/net/connection_loop_fixture.h"

namespace normd::testing {
namespace {

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
  const auto ended = [&](ConnectionEnding why) {
    return metrics_.ended[static_cast<std::size_t>(why)].load();
  };
  Client plain(port_);
  plain.Send(kHello + kAck);
  EXPECT_TRUE(plain.Closed());
  EXPECT_EQ(ended(ConnectionEnding::kNoTls), 1);
  Client old(port_);
  old.Send(TlsHello(/*minor=*/2));
  EXPECT_EQ(old.Read(7).substr(5), "\x02\x46");
  EXPECT_TRUE(old.Closed());
  EXPECT_EQ(ended(ConnectionEnding::kOldTls), 1);
  Client half(port_);
  half.Send(TlsHello().substr(0, 20));
  EXPECT_TRUE(half.Closed());
  EXPECT_EQ(ended(ConnectionEnding::kHandshakeTimeout), 1);
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
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 1);
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
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 0);
  streams_ = 101;
  send_while([&] { return Ended(ConnectionEnding::kOversize) == 0; });
  EXPECT_TRUE(client.Closed());
  taken.socket.Reset();
  WaitOpen(0);
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 1);
}

}  // namespace
}  // namespace normd::testing
